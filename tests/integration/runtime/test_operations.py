"""What operators ask: lists, counts, retries and deletions of task records, and the definitions in force."""

from __future__ import annotations

import re
import tracemalloc
import uuid
from datetime import UTC, datetime
from typing import Any

import bson
import pytest
from bson import Binary, Decimal128, Int64, MaxKey, MinKey, ObjectId, Timestamp
from pymongo import MongoClient
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from tests.integration.runtime.conftest import MakeStage
from tests.support.running import Gate, Stage

from oplogue import ConfigurationError, Context, Fixed, UnknownTaskError
from oplogue.model.record import TaskRecord
from oplogue.runtime.console import open_console
from oplogue.runtime.desk import record_filter
from oplogue.store.records import FIELDS

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
    for _ in ("orders", "customers"):
        await stage.next("reconciliation.finished")  # or it might plan what a test has deleted
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


async def test_records_by_any_query_on_their_documents(filled: Stage, db: AsyncDatabase[Document]) -> None:
    queries: list[tuple[Document, list[Any]]] = [
        ({}, ORDERS + CUSTOMERS),
        ({"total": {"$gte": 30}}, [3, 4, 5, "c3"]),
        ({"_id": 2}, [2]),
        ({"_id": {"$in": [2, "c1"]}}, [2, "c1"]),
        ({"tags": "4"}, [4]),
        ({"$or": [{"total": 0}, {"tags": {"$elemMatch": {"$eq": "5"}}}]}, [0, 5, "c0"]),
        ({"$expr": {"$eq": ["$total", 20]}}, [2, "c2"]),
        ({"$where": "this.total == 20"}, [2, "c2"]),
        # As a task's own filter is written: an expression, and the server's time.
        ({"$eq": ["$total", 20]}, [2, "c2"]),
        ({"at": {"$lt": "$$NOW"}}, [0]),
        ({"total": -1}, []),
    ]
    await db["orders"].update_one({"_id": 0}, {"$set": {"at": datetime(2001, 1, 1, tzinfo=UTC)}})
    await db["orders"].update_one({"_id": 1}, {"$set": {"at": datetime(2201, 1, 1, tzinfo=UTC)}})
    for query, expected in queries:
        assert await ids_of(filled, source_doc_filter=query) == expected, query


async def test_records_by_the_id_of_a_document_that_is_gone(
    filled: Stage, db: AsyncDatabase[Document]
) -> None:
    await db["orders"].delete_many({"_id": {"$in": [2, 3]}})
    assert await ids_of(filled, source_doc_filter={"_id": 2}) == [2]
    assert await ids_of(filled, source_doc_filter={"_id": {"$in": [1, 2, "c1"]}}) == [1, 2, "c1"]
    assert await ids_of(filled, source_doc_filter={"_id": {"$gte": 3}}, status="failed") == [3, 5]
    # A document that is gone meets no other condition; no condition at all is no filter.
    assert await ids_of(filled, source_doc_filter={"_id": 2, "total": 20}) == []
    assert await ids_of(filled, source_doc_filter={}) == ORDERS + CUSTOMERS
    assert await filled.app.delete_reactive_tasks(source_doc_filter={"_id": {"$in": [2, 3, 4]}}) == 3
    assert await ids_of(filled) == [0, 1, 5, *CUSTOMERS]


async def test_records_by_ids_that_their_collection_compares_in_its_own_way(
    stage: Stage, db: AsyncDatabase[Document]
) -> None:
    await db.create_collection("orders", collation={"locale": "en", "strength": 2})

    @stage.app.reactive_task(task="sync", collection="orders", debounce=0)
    async def _sync(ctx: Context) -> None: ...

    await stage.app.start()
    await db["orders"].insert_many([{"_id": "A"}, {"_id": "b"}])
    await stage.counted(2, status="completed")
    assert await ids_of(stage, source_doc_filter={"_id": "a"}) == ["A"]
    assert await ids_of(stage, source_doc_filter={"_id": "A"}) == ["A"]
    assert await ids_of(stage, source_doc_filter={"_id": {"$in": ["a", "b", "c"]}}) == ["A", "b"]


async def test_uuids_and_patterns_in_queries_are_sent_by_any_client(
    stage: Stage, db: AsyncDatabase[Document]
) -> None:
    @stage.app.reactive_task(task="sync", collection="orders", debounce=0)
    async def _sync(ctx: Context) -> None: ...

    await stage.app.start()
    id_, customer = uuid.uuid4(), uuid.uuid4()
    await db["orders"].insert_many(
        [{"_id": Binary.from_uuid(id_)}, {"_id": "x.1", "customer": Binary.from_uuid(customer)}]
    )
    await stage.counted(2, status="completed")
    assert await ids_of(stage, source_doc_filter={"_id": id_}) == [Binary.from_uuid(id_)]
    assert await ids_of(stage, source_doc_filter={"customer": {"$in": [customer]}}) == ["x.1"]
    assert await ids_of(stage, source_doc_filter={"_id": re.compile(r"^X\.", re.IGNORECASE)}) == ["x.1"]
    assert await ids_of(stage, ids=[id_]) == []


async def test_a_part_of_an_error_is_taken_literally(stage: Stage, db: AsyncDatabase[Document]) -> None:
    errors = ["a.*b", "x[y", "É Ü", "nul\0in", "two\nlines", "tab\t# -&~", "(", r"\d+", "$^|", "{2}"]

    @stage.app.reactive_task(
        task="sync", collection="orders", debounce=0, retry_policy=Fixed(0, max_attempts=1)
    )
    async def _sync(ctx: Context) -> None:
        raise ValueError(ctx.watched_values["error"])

    await stage.app.start()
    await db["orders"].insert_many([{"_id": n, "error": error} for n, error in enumerate(errors)])
    await stage.counted(len(errors), status="failed")
    for n, error in enumerate(errors):
        assert await ids_of(stage, error_message=error) == [n], error
    assert await ids_of(stage, error_message="é ü") == [2]
    assert await ids_of(stage, error_message="VALUEERROR: TWO") == [4]


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


async def test_what_cannot_be_meant_is_refused(filled: Stage) -> None:
    wrong: list[tuple[str, Any]] = [
        ("limit", 0),
        ("limit", 501),
        ("limit", True),
        ("skip", -1),
        ("sort", ("nextRunAt", 1)),
        ("sort", ("task", 2)),
        ("sort", "task"),
        ("sort", ("task", True)),
        ("sort", ("task", 1.0)),
        ("sort", ("task", 1, 1)),
        ("sort", None),
        ("sort", {"task": 1}),
        ("status", "done"),
        ("task", 5),
        ("source_doc_filter", [{"status": "paid"}]),
        ("source_doc_filter", {"$eq": ["$status", "paid"], "status": "paid"}),
        ("source_doc_filter", {"status": {"$near": 5}}),
        ("error_message", 5),
        ("error_message", "x" * 8_001),
        ("error_message", "\ud800"),
        ("source_doc_filter", {"total": object()}),
        ("source_doc_filter", {5: "total"}),
        ("source_doc_filter", {"total": 2**64}),
        ("ids", [object()]),
        ("has_error", "yes"),
        ("ids", "5f3c"),
        ("ids", ObjectId()),
    ]
    for option, value in wrong:
        with pytest.raises(ConfigurationError, match=option):
            await filled.app.get_reactive_tasks(**{option: value})


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


async def test_a_run_at_its_last_attempt_that_was_retried_meanwhile_begins_a_new_sequence(
    stage: Stage, orders: Orders
) -> None:
    gate = Gate()

    @stage.app.reactive_task(
        task="sync", collection="orders", debounce=0, retry_policy=Fixed(0, max_attempts=2)
    )
    async def _sync(ctx: Context) -> None:
        if ctx.attempt == 2:
            await gate()
        raise ValueError("no")

    await stage.app.start()
    await orders.insert_one({"_id": 1})
    await gate.reached()
    assert await stage.app.retry_reactive_tasks(status="processing") == 1
    gate.open()
    # Its failure was the last of the first sequence; the record has another.
    for _ in range(2):
        await stage.next("task.failed", doc_id=1)
    runs = [event.fields["attempt"] for event in stage.heard("task.started")]
    assert runs == [1, 2, 1, 2]
    record = await stage.record()
    assert (record.status, record.attempts, len(record.execution_history)) == ("failed", 2, 4)


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


MIXED: list[Any] = [
    *(
        MinKey(),
        MaxKey(),
        True,
        False,
        -1,
        0.5,
        Int64(7),
        Decimal128("3.2"),
        float("nan"),
        "",
        "a",
        "É",
        "\U0001f600",
    ),
    *(
        ObjectId("0" * 24),
        ObjectId("f" * 24),
        datetime(2001, 1, 1, tzinfo=UTC),
        datetime(1901, 1, 1, tzinfo=UTC),
    ),
    *({}, {"a": 1}, {"a": "x"}, {"b": 0}, {"a": 1, "b": 1}),
    *(b"", b"\x02", b"\x01\x01", Binary(b"\x01", 128), Timestamp(5, 1), Timestamp(5, 0)),
]
"""Ids of all types that may be ids."""


async def test_ids_of_all_types_are_merged_in_the_order_of_the_server(
    make_stage: MakeStage, db: AsyncDatabase[Document]
) -> None:
    stage = make_stage(concurrency=0)
    for name in ("left", "right"):
        stage.app.reactive_task(task=name, collection=name, watch_projection=["n"])(_nothing)
    await stage.app.start()
    await db["left"].insert_many([{"_id": id_} for id_ in MIXED[::2]])
    await db["right"].insert_many([{"_id": id_} for id_ in MIXED[1::2]])
    await db["all"].insert_many([{"_id": id_} for id_ in MIXED])
    await stage.counted(len(MIXED))
    for direction in (1, -1):
        expected = [document["_id"] async for document in db["all"].find().sort("_id", direction)]
        filters: list[Document | None] = [None, {}]
        for source_doc_filter in filters:
            found: list[Any] = []
            for skip in range(0, len(MIXED), 7):
                page = await stage.app.get_reactive_tasks(
                    source_doc_filter=source_doc_filter, sort=("source_doc_id", direction), skip=skip, limit=7
                )
                assert page.total == len(MIXED)
                found += [record.source_doc_id for record in page.items]
            assert list(map(stored, found)) == list(map(stored, expected))


def stored(id_: Any) -> bytes:
    """What tells ids apart that Python finds equal, and not those that codecs read differently."""
    return bson.encode({"": id_})


async def _nothing(ctx: Context) -> None: ...


async def test_of_a_field_that_is_named_twice_the_first_direction_holds(filled: Stage) -> None:
    page = await filled.app.get_reactive_tasks("sync", sort=[("source_doc_id", -1), ("source_doc_id", 1)])
    assert [record.source_doc_id for record in page.items] == ORDERS[::-1]


async def test_a_listing_by_documents_holds_no_more_than_its_page(
    make_stage: MakeStage, orders: Orders
) -> None:
    stage = make_stage(concurrency=0)
    stage.app.reactive_task(task="sync", collection="orders")(_nothing)
    await orders.insert_many([{"_id": number, "text": "x" * 10_000} for number in range(4_000)])
    await stage.app.start()
    await stage.next("reconciliation.finished")
    tracemalloc.start()
    try:
        page = await stage.app.get_reactive_tasks(source_doc_filter={}, sort=("source_doc_id", -1), limit=5)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [record.source_doc_id for record in page.items] == [3_999, 3_998, 3_997, 3_996, 3_995]
    assert page.total == 4_000
    assert peak < 8_000_000  # the records have 40 MB


async def test_a_retry_meets_each_document_once_although_handlers_change_them(
    stage: Stage, orders: Orders, database_uri: str
) -> None:
    stage.app.reactive_task(task="sync", collection="orders", watch_projection=["name"], debounce="1h")(
        _nothing
    )
    await orders.create_index("ran")
    await orders.insert_many([{"_id": number, "ran": number} for number in range(3_000)])
    await stage.app.start()
    await stage.next("reconciliation.finished")

    with MongoClient[Document](database_uri) as blocking:
        documents = blocking.get_default_database()["orders"]

        def ahead(_count: int) -> None:
            # As handlers do that note in the document when they ran: it moves to the end of the index.
            documents.update_many({}, {"$inc": {"ran": 10_000}})

        async with open_console(database_uri) as console:
            which = record_filter(None, None, {"ran": {"$gte": 0}}, None, None, None)
            assert await console.desk.retry(which, ahead) == 3_000


async def test_a_retry_of_a_run_that_puts_itself_off_gives_a_full_set_of_attempts(
    stage: Stage, orders: Orders
) -> None:
    gate, attempts = Gate(), list[int]()

    @stage.app.reactive_task(task="sync", collection="orders", debounce=0, retry_policy=Fixed(0))
    async def _sync(ctx: Context) -> None:
        attempts.append(ctx.attempt)
        if len(attempts) < 3:
            raise ValueError("not yet")
        if len(attempts) == 3:
            await gate()
            ctx.defer_current(0)

    await stage.app.start()
    await orders.insert_one({"_id": 1})
    await gate.reached()
    assert await stage.app.retry_reactive_tasks() == 1
    gate.open()
    await stage.next("task.completed", doc_id=1)
    assert attempts == [1, 2, 3, 1]
    assert (await stage.record()).first_error_at is None


async def test_a_running_record_that_is_retried_twice_runs_once_more(stage: Stage, orders: Orders) -> None:
    gate = Gate()

    @stage.app.reactive_task(task="sync", collection="orders", debounce=0)
    async def _sync(ctx: Context) -> None:
        await gate()

    await stage.app.start()
    await orders.insert_one({"_id": 1})
    await gate.reached()
    assert [await stage.app.retry_reactive_tasks() for _ in range(2)] == [1, 1]
    assert (await stage.record()).status == "processing_dirty"
    gate.open()
    await stage.counted(1, status="completed")
    assert len(stage.heard("task.started")) == 2


async def test_a_retry_takes_waiting_records_too_and_each_once(stage: Stage, orders: Orders) -> None:
    """They stay pending: what a batch has changed still matches the filter."""
    stage.app.reactive_task(task="sync", collection="orders", debounce="1h", watch_projection=["n"])(_nothing)
    await orders.insert_many([{"_id": number} for number in range(2_100)])
    await stage.app.start()
    await stage.next("reconciliation.finished")
    await stage.app.pause_task("sync")
    assert await stage.app.retry_reactive_tasks(status="pending") == 2_100
    await stage.app.resume_task("sync")
    await stage.counted(2_100, status="completed")


async def test_records_edited_by_hand_are_listed_and_retried(
    make_stage: MakeStage, orders: Orders, db: AsyncDatabase[Document]
) -> None:
    stage = make_stage(concurrency=0)
    stage.app.reactive_task(task="sync", collection="orders", debounce="1h")(_nothing)
    await stage.app.start()
    await orders.insert_one({"_id": 1})
    await stage.counted(1)
    edited: Document = {
        "status": ["pending"],
        "attempts": 3.0,
        "lastError": {"message": "of another language"},
        "lastSuccess": {"at": datetime(2001, 1, 1, tzinfo=UTC), "durationMs": "long"},
        "executionHistory": [{"at": datetime(2001, 1, 1, tzinfo=UTC), "status": None, "durationMs": 5.0}, 7],
        "oplogue": "nonsense",
    }
    await db["orders_tasks"].update_one({}, {"$set": edited})
    record = await stage.record()
    assert (record.status, record.attempts) == ("failed", 3)
    assert record.last_error == "{'message': 'of another language'}"
    assert record.last_success is not None
    assert record.last_success.duration_ms == 0
    assert [entry.duration_ms for entry in record.execution_history] == [5]
    assert await stage.app.retry_reactive_tasks() == 1
    assert ((await stage.record()).status, (await stage.record()).attempts) == ("pending", 0)
