"""What operators ask: lists, counts, retries and deletions of task records, and the definitions in force."""

from __future__ import annotations

from typing import Any

import pytest
from bson import ObjectId
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from tests.integration.runtime.conftest import MakeStage
from tests.support.running import Gate, Stage

from oplogue import ConfigurationError, Context, Fixed, UnknownTaskError
from oplogue.model.record import TaskRecord
from oplogue.store.operations import FIELDS

Document = dict[str, Any]
Orders = AsyncCollection[Document]


@pytest.fixture
async def filled(stage: Stage, db: AsyncDatabase[Document]) -> Stage:
    """Two tasks over two collections: of six orders every other failed, four customers are done."""

    @stage.app.reactive_task(
        task="sync", collection="orders", debounce=0, retry_policy=Fixed(0, max_attempts=1)
    )
    async def _sync(ctx: Context) -> None:
        if ctx.doc_id % 2 and ctx.attempt == 1 and not mended:
            raise ValueError(f"Bad (order) {ctx.doc_id}")

    @stage.app.reactive_task(task="greet", collection="customers", debounce=0)
    async def _greet(ctx: Context) -> None: ...

    mended: list[bool] = []

    @stage.app.on("task.failed")
    def _mend(_event: object) -> None:
        if len(stage.heard("task.failed")) == 3:
            mended.append(True)

    await stage.app.start()
    await db["orders"].insert_many([{"_id": n, "total": 10 * n, "tags": ["a", str(n)]} for n in range(6)])
    await db["customers"].insert_many([{"_id": f"c{n}", "total": 10 * n} for n in range(4)])
    await stage.until(lambda: len(stage.heard("task.failed")) == 3)
    await stage.until(lambda: len(stage.heard("task.completed")) == 7)
    return stage


async def ids_of(stage: Stage, **which: Any) -> list[Any]:
    """The source ids of a listing, which the count must agree with."""
    page = await stage.app.get_reactive_tasks(**which)
    assert page.total == len(page.items) == await stage.app.count_reactive_tasks(**which)
    return sorted((record.source_doc_id for record in page.items), key=str)


ORDERS = [0, 1, 2, 3, 4, 5]
CUSTOMERS = ["c0", "c1", "c2", "c3"]


async def test_every_filter_of_a_listing(filled: Stage) -> None:
    assert await ids_of(filled) == ORDERS + CUSTOMERS
    assert await ids_of(filled, task="sync") == ORDERS
    assert await ids_of(filled, task=["sync", "greet"]) == ORDERS + CUSTOMERS
    assert await ids_of(filled, status="failed") == [1, 3, 5]
    assert await ids_of(filled, status=["failed", "pending"]) == [1, 3, 5]
    assert await ids_of(filled, status=[]) == []
    assert await ids_of(filled, has_error=True) == [1, 3, 5]
    assert await ids_of(filled, has_error=False) == [0, 2, 4, *CUSTOMERS]
    assert await ids_of(filled, error_message="bad (ORDER) 3") == [3]
    assert await ids_of(filled, error_message=".*") == []
    assert await ids_of(filled, task="greet", status="failed") == []
    assert await ids_of(filled, task="sync", has_error=True, source_doc_filter={"total": {"$gt": 20}}) == [
        3,
        5,
    ]


async def test_records_by_any_query_on_their_documents(filled: Stage) -> None:
    queries: list[tuple[Document, list[Any]]] = [
        ({}, ORDERS + CUSTOMERS),
        ({"total": {"$gte": 30}}, [3, 4, 5, "c3"]),
        ({"_id": 2}, [2]),
        ({"_id": {"$in": [2, "c1"]}}, [2, "c1"]),
        ({"tags": "4"}, [4]),
        ({"$or": [{"total": 0}, {"tags": {"$elemMatch": {"$eq": "5"}}}]}, [0, 5, "c0"]),
        ({"$expr": {"$eq": ["$total", 20]}}, [2, "c2"]),
        ({"$where": "this.total == 20"}, [2, "c2"]),
        ({"total": -1}, []),
    ]
    for query, expected in queries:
        assert await ids_of(filled, source_doc_filter=query) == expected, query


async def test_records_by_their_own_ids(filled: Stage) -> None:
    page = await filled.app.get_reactive_tasks("sync")
    wanted = [record.id for record in page.items if record.source_doc_id in (1, 2)]
    assert await ids_of(filled, ids=wanted) == [1, 2]
    assert await ids_of(filled, ids=[ObjectId()]) == []
    assert await ids_of(filled, ids=[]) == []


async def test_pages_over_two_collections_hold_each_record_once(filled: Stage) -> None:
    for sort in (
        ("source_doc_id", 1),
        ("source_doc_id", -1),
        ("next_run_at", 1),
        [("task", -1), ("created_at", 1)],
    ):
        seen: list[TaskRecord] = []
        for skip in range(0, 12, 3):
            page = await filled.app.get_reactive_tasks(limit=3, skip=skip, sort=sort)
            assert page.total == 10
            seen += page.items
        assert len({record.id for record in seen}) == len(seen) == 10
        if sort == ("source_doc_id", 1):
            assert [record.source_doc_id for record in seen] == ORDERS + CUSTOMERS
        if sort == ("source_doc_id", -1):
            assert [record.source_doc_id for record in seen] == (ORDERS + CUSTOMERS)[::-1]


async def test_a_listing_sorts_by_every_field(filled: Stage) -> None:
    for sort in FIELDS:
        up = (await filled.app.get_reactive_tasks(sort=(sort, 1))).items
        down = (await filled.app.get_reactive_tasks(sort=(sort, -1))).items
        values = [getattr(record, sort) for record in up]
        present = [value for value in values if value is not None]
        assert present == sorted(present, key=lambda value: (isinstance(value, str), value)), sort
        assert values[: len(values) - len(present)] == [None] * (len(values) - len(present)), sort
        assert [getattr(record, sort) for record in down] == values[::-1], sort


async def test_a_listing_by_documents_sorts_and_pages_too(filled: Stage) -> None:
    page = await filled.app.get_reactive_tasks(
        source_doc_filter={"total": {"$gte": 10}}, sort=("source_doc_id", -1), limit=2, skip=1
    )
    assert [record.source_doc_id for record in page.items] == ["c2", "c1"]
    assert page.total == 8


async def test_what_cannot_be_meant_is_refused(stage: Stage) -> None:
    await stage.app.start()
    wrong: list[tuple[str, Any]] = [
        ("limit", 0),
        ("limit", 501),
        ("limit", True),
        ("skip", -1),
        ("sort", ("nextRunAt", 1)),
        ("sort", ("task", 2)),
        ("sort", "task"),
        ("status", "done"),
        ("task", 5),
        ("has_error", "false"),
        ("error_message", 5),
        ("ids", "abc"),
        ("source_doc_filter", "paid"),
    ]
    for option, value in wrong:
        with pytest.raises(ConfigurationError, match=option):
            await stage.app.get_reactive_tasks(**{option: value})


async def test_a_task_that_is_not_known_is_refused(filled: Stage) -> None:
    with pytest.raises(UnknownTaskError, match="greet, sync"):
        await filled.app.count_reactive_tasks("nobody")


async def test_a_record_tells_its_fields(filled: Stage) -> None:
    record = await filled.record(3, task="sync")
    assert (record.collection, record.task, record.source_doc_id) == ("orders", "sync", 3)
    assert (record.status, record.attempts, record.next_run_at) == ("failed", 1, None)
    assert record.last_observed_values == {"_id": 3, "total": 30, "tags": ["a", "3"]}
    assert record.last_error == "ValueError: Bad (order) 3"
    assert record.created_at is not None
    assert record.created_at.tzinfo is not None
    assert record.created_at == record.updated_at == record.due_at
    assert record.started_at is not None
    assert record.last_finalized_at is not None
    assert record.started_at <= record.last_finalized_at
    assert record.execution_history[0].error == record.last_error


async def test_a_retry_runs_again_at_once_and_keeps_the_history(filled: Stage) -> None:
    assert await filled.app.retry_reactive_tasks("sync", "failed") == 3
    for doc_id in (1, 3, 5):
        await filled.next("task.completed", task="sync", doc_id=doc_id, attempt=1)
    record = await filled.record(3, task="sync")
    assert (record.status, record.attempts, record.last_error, record.first_error_at) == (
        "completed",
        1,
        None,
        None,
    )
    assert [entry.status for entry in record.execution_history] == ["failed", "completed"]


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        ({"source_doc_filter": {"total": {"$gt": 20}}, "task": "sync"}, [3, 4, 5]),
        ({"error_message": "order) 3"}, [3]),
        ({"has_error": True}, [1, 3, 5]),
        ({"task": "greet"}, CUSTOMERS),
        ({}, ORDERS + CUSTOMERS),
        ({"status": "pending"}, []),
    ],
    ids=str,
)
async def test_a_retry_takes_every_filter(filled: Stage, which: Document, expected: list[Any]) -> None:
    before = len(filled.heard("task.started"))
    assert await filled.app.retry_reactive_tasks(**which) == len(expected)
    await filled.until(lambda: len(filled.heard("task.started")) == before + len(expected))
    again = [event.fields["doc_id"] for event in filled.heard("task.started")[before:]]
    assert sorted(again, key=str) == expected
    await filled.counted(10, status="completed" if which in ({}, {"has_error": True}) else None)


async def test_a_retry_ends_a_debounce_and_a_backoff(stage: Stage, orders: Orders) -> None:
    @stage.app.reactive_task(task="sync", collection="orders", debounce="1h")
    async def _sync(ctx: Context) -> None: ...

    await stage.app.start()
    await orders.insert_one({"_id": 1})
    await stage.planned(1)
    assert await stage.app.retry_reactive_tasks(source_doc_filter={"_id": 1}) == 1
    await stage.next("task.completed", doc_id=1)


async def test_a_retry_of_a_running_record_runs_it_once_more_after_that(stage: Stage, orders: Orders) -> None:
    gate = Gate()

    @stage.app.reactive_task(task="sync", collection="orders", debounce="1h")
    async def _sync(ctx: Context) -> None:
        await gate()

    await stage.app.start()
    await orders.insert_one({"_id": 1})
    await stage.planned(1)
    await stage.app.retry_reactive_tasks()
    await gate.reached()
    assert await stage.app.retry_reactive_tasks() == 1
    gate.open()
    await stage.next("task.completed", doc_id=1, attempt=1)
    await stage.next("task.completed", doc_id=1, attempt=1)
    assert (await stage.record()).status == "completed"
    assert len(stage.heard("task.started")) == 2


async def test_a_retry_makes_no_records(stage: Stage, orders: Orders) -> None:
    @stage.app.reactive_task(task="sync", collection="orders", filter={"status": "paid"})
    async def _sync(ctx: Context) -> None: ...

    await stage.app.start()
    await orders.insert_one({"_id": 1})
    assert await stage.app.retry_reactive_tasks(source_doc_filter={"_id": 1}) == 0
    assert await stage.app.count_reactive_tasks() == 0


async def test_deleting_takes_every_filter(filled: Stage) -> None:
    assert await filled.app.delete_reactive_tasks(error_message="order) 3") == 1
    assert await filled.app.delete_reactive_tasks("sync", "failed", {"total": {"$lt": 20}}) == 1
    assert await ids_of(filled) == [0, 2, 4, 5, *CUSTOMERS]
    assert await filled.app.delete_reactive_tasks("greet") == 4
    assert await filled.app.delete_reactive_tasks() == 4
    assert await filled.app.count_reactive_tasks() == 0


async def test_deleting_a_running_record_loses_its_lease(stage: Stage, orders: Orders) -> None:
    gate = Gate()

    @stage.app.reactive_task(task="sync", collection="orders", debounce=0)
    async def _sync(ctx: Context) -> None:
        await gate()

    await stage.app.start()
    await orders.insert_one({"_id": 1})
    await gate.reached()
    assert await stage.app.delete_reactive_tasks() == 1
    gate.open()
    await stage.next("task.lease_lost", doc_id=1)
    assert await stage.app.count_reactive_tasks() == 0


async def test_thousands_of_records_are_counted_retried_and_deleted(stage: Stage, orders: Orders) -> None:
    @stage.app.reactive_task(task="sync", collection="orders", debounce="1h", watch_projection=["n"])
    async def _sync(ctx: Context) -> None: ...

    await orders.insert_many([{"_id": number, "n": number} for number in range(2_500)])
    await stage.app.start()
    await stage.next("reconciliation.finished")
    half: Document = {"n": {"$gte": 1_250}}
    assert await stage.app.count_reactive_tasks(source_doc_filter=half) == 1_250
    assert await stage.app.delete_reactive_tasks(source_doc_filter={"n": {"$lt": 1_250}}) == 1_250
    assert await stage.app.retry_reactive_tasks(source_doc_filter=half) == 1_250
    page = await stage.app.get_reactive_tasks(source_doc_filter=half, sort=("source_doc_id", -1), limit=500)
    assert [record.source_doc_id for record in page.items] == list(range(2_499, 1_999, -1))
    assert page.total == 1_250
    await stage.counted(1_250, status="completed")


async def test_the_definitions_of_all_instances_are_known_to_each(make_stage: MakeStage) -> None:
    first, second = make_stage(), make_stage()

    @first.app.reactive_task(task="one", collection="orders", filter={"status": "paid"}, priority=3)
    async def _one(ctx: Context) -> None: ...

    @second.app.reactive_task(task="two", collection="customers", debounce="7s")
    async def _two(ctx: Context) -> None: ...

    await first.app.start()
    await second.app.start()
    for stage in (first, second):
        known = {definition.task: definition for definition in await stage.app.get_task_definitions()}
        assert sorted(known) == ["one", "two"]
        assert (known["one"].source.collection, known["one"].priority) == ("orders", 3)
        assert known["one"].filter.raw == {"status": "paid"}
        assert known["two"].debounce.total_seconds() == 7
        assert await stage.app.count_reactive_tasks(["one", "two"]) == 0


async def test_reconciling_a_task_that_is_not_known_is_refused(stage: Stage) -> None:
    await stage.app.start()
    with pytest.raises(UnknownTaskError):
        await stage.app.reconcile("nobody")
