"""Which changes of data run a task, and which do not."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import bson
import pytest
from bson import Binary, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.codec_options import TypeCodec, TypeRegistry
from bson.raw_bson import RawBSONDocument
from pymongo import AsyncMongoClient
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from tests.integration.runtime.conftest import MakeStage
from tests.support.running import Stage

from oplogue import Context, Evolution, Fixed
from oplogue.clock import Clock

Document = dict[str, Any]
Orders = AsyncCollection[Document]
PAID: Document = {"status": "paid"}


def define(stage: Stage, task: str = "sync", collection: str = "orders", **options: Any) -> list[Document]:
    """A task that notes the watched values of its runs."""
    seen: list[Document] = []
    usual: dict[str, Any] = {"debounce": 0}

    @stage.app.reactive_task(task=task, collection=collection, **{**usual, **options})
    async def _sync(ctx: Context) -> None:
        seen.append(ctx.watched_values)

    return seen


# -- the filter is the gatekeeper, the projection the trigger


async def test_only_documents_that_match_run(stage: Stage, orders: Orders) -> None:
    define(stage, filter=PAID)
    await stage.app.start()
    await orders.insert_many([{"_id": 1, "status": "new"}, {"_id": 2, "status": "paid"}])
    await stage.next("task.completed", doc_id=2)
    assert await stage.app.count_reactive_tasks() == 1


async def test_a_document_that_enters_the_filter_runs(stage: Stage, orders: Orders) -> None:
    define(stage, filter=PAID)
    await stage.app.start()
    await orders.insert_one({"_id": 1, "status": "new"})
    await stage.next("planner.planned")
    assert await stage.app.count_reactive_tasks() == 0
    await orders.update_one({"_id": 1}, {"$set": PAID})
    await stage.next("task.completed", doc_id=1)


async def test_a_document_that_left_and_came_back_runs_again_with_the_same_values(
    stage: Stage, orders: Orders
) -> None:
    seen = define(stage, filter=PAID, watch_projection=["total"])
    await stage.app.start()
    await orders.insert_one({"_id": 1, "status": "paid", "total": 5})
    await stage.next("task.completed", doc_id=1)
    await stage.next("planner.planned")
    await orders.update_one({"_id": 1}, {"$set": {"status": "refunded"}})
    await stage.next("planner.planned")
    await orders.update_one({"_id": 1}, {"$set": PAID})
    await stage.next("task.completed", doc_id=1)
    assert seen == [{"total": 5}, {"total": 5}]


async def test_a_change_inside_the_filter_runs_only_where_it_is_watched(stage: Stage, orders: Orders) -> None:
    seen = define(stage, filter=PAID, watch_projection=["total"])
    await stage.app.start()
    await orders.insert_one({"_id": 1, "status": "paid", "total": 5})
    await stage.next("task.completed", doc_id=1)
    await orders.update_one({"_id": 1}, {"$set": {"note": "unwatched"}})
    await orders.update_one({"_id": 1}, {"$set": {"total": 6}})
    await stage.next("task.completed", doc_id=1)
    assert seen == [{"total": 5}, {"total": 6}]


async def test_an_update_that_cannot_matter_is_not_even_planned(stage: Stage, orders: Orders) -> None:
    define(stage, filter=PAID, watch_projection=["total"])
    await stage.app.start()
    await orders.insert_one({"_id": 1, "status": "paid", "total": 5})
    # The reconciliation at start may have planned it, and run it, before its event was.
    await stage.next("planner.planned", count=1)
    await stage.next("task.completed", doc_id=1)
    before = sum(event.fields["count"] for event in stage.heard("planner.planned"))
    for number in range(20):
        await orders.update_one({"_id": 1}, {"$set": {"note": number, "totals": number}})
    await orders.insert_one({"_id": 2, "status": "paid", "total": 5})
    await stage.next("task.completed", doc_id=2)
    assert sum(event.fields["count"] for event in stage.heard("planner.planned")) == before + 1


@pytest.mark.parametrize(
    "update",
    [
        {"$set": {"lines.0.price": 2}},
        {"$set": {"lines": [{"price": 2}]}},
        {"$unset": {"lines": ""}},
        {"$push": {"lines": {"price": 2}}},
        {"$rename": {"lines": "items"}},
    ],
    ids=["index", "parent", "unset", "push", "rename"],
)
async def test_an_update_of_a_part_of_a_watched_path_runs(
    stage: Stage, orders: Orders, update: Document
) -> None:
    define(stage, watch_projection=["lines.price"])
    await stage.app.start()
    await orders.insert_one({"_id": 1, "lines": [{"price": 1}]})
    await stage.next("task.completed", doc_id=1)
    await orders.update_one({"_id": 1}, update)
    await stage.next("task.completed", doc_id=1)


async def test_a_replaced_document_runs_where_watched_values_changed(stage: Stage, orders: Orders) -> None:
    seen = define(stage, watch_projection=["total"])
    await stage.app.start()
    await orders.insert_one({"_id": 1, "total": 1})
    await stage.next("task.completed", doc_id=1)
    await orders.replace_one({"_id": 1}, {"total": 1, "note": "same"})
    await orders.replace_one({"_id": 1}, {"total": 2})
    await stage.next("task.completed", doc_id=1)
    assert seen == [{"total": 1}, {"total": 2}]


async def test_the_whole_document_is_watched_without_a_projection(stage: Stage, orders: Orders) -> None:
    seen = define(stage)
    await stage.app.start()
    await orders.insert_one({"_id": 1})
    await stage.next("task.completed", doc_id=1)
    await orders.update_one({"_id": 1}, {"$set": {"anything": True}})
    await stage.next("task.completed", doc_id=1)
    assert seen == [{"_id": 1}, {"_id": 1, "anything": True}]


async def test_computed_values_are_watched(stage: Stage, orders: Orders) -> None:
    seen = define(stage, watch_projection={"large": {"$gt": ["$total", 100]}})
    await stage.app.start()
    await orders.insert_one({"_id": 1, "total": 1})
    await stage.next("task.completed", doc_id=1)
    await orders.update_one({"_id": 1}, {"$set": {"total": 50}})
    await orders.update_one({"_id": 1}, {"$set": {"total": 150}})
    await stage.next("task.completed", doc_id=1)
    assert seen == [{"large": False}, {"large": True}]


async def test_watched_values_that_are_all_missing_are_an_empty_document(
    stage: Stage, orders: Orders
) -> None:
    seen = define(stage, watch_projection=["total"])
    await stage.app.start()
    await orders.insert_one({"_id": 1})
    await stage.next("task.completed", doc_id=1)
    assert seen == [{}]
    assert (await stage.record()).last_observed_values == {}


async def test_watching_only_the_id_runs_on_inserts_alone(stage: Stage, orders: Orders) -> None:
    seen = define(stage, watch_projection={"_id": 1})
    await stage.app.start()
    await orders.insert_one({"_id": 1, "total": 1})
    await stage.next("task.completed", doc_id=1)
    await orders.update_one({"_id": 1}, {"$set": {"total": 2}})
    await orders.replace_one({"_id": 1}, {"total": 3})
    await orders.insert_one({"_id": 2})
    await stage.next("task.completed", doc_id=2)
    assert seen == [{"_id": 1}, {"_id": 2}]


async def test_a_document_deleted_and_inserted_again_is_new(stage: Stage, orders: Orders) -> None:
    seen = define(stage, watch_projection=["total"])
    await stage.app.start()
    for _ in range(2):
        await orders.insert_one({"_id": 1, "total": 1})
        await stage.next("task.completed", doc_id=1)
        await orders.delete_one({"_id": 1})
    await orders.insert_one({"_id": 1, "total": 1})
    await stage.next("task.completed", doc_id=1)
    assert seen == [{"total": 1}] * 3


async def test_a_document_deleted_and_inserted_at_once_is_new(stage: Stage, orders: Orders) -> None:
    seen = define(stage, watch_projection=["total"])
    await stage.app.start()
    await orders.insert_one({"_id": 1, "total": 1})
    await stage.next("task.completed", doc_id=1)

    async def again(session: Any) -> None:
        mine = stage.app.database["orders"]
        await mine.delete_one({"_id": 1}, session=session)
        await mine.insert_one({"_id": 1, "total": 1}, session=session)

    await stage.app.with_transaction(again)
    await stage.next("task.completed", doc_id=1)
    assert seen == [{"total": 1}] * 2


async def test_a_filter_may_be_an_expression(stage: Stage, orders: Orders) -> None:
    define(stage, filter={"$gt": ["$paid", "$total"]})
    await stage.app.start()
    await orders.insert_many([{"_id": 1, "paid": 1, "total": 2}, {"_id": 2, "paid": 3, "total": 2}])
    await stage.next("task.completed", doc_id=2)
    assert await stage.app.count_reactive_tasks() == 1


async def test_a_filter_in_query_syntax_has_the_servers_semantics(stage: Stage, orders: Orders) -> None:
    define(stage, filter={"lines": {"$elemMatch": {"sku": "a", "count": {"$gte": 2}}}, "gone": None})
    await stage.app.start()
    await orders.insert_many(
        [
            {"_id": 1, "lines": [{"sku": "a", "count": 1}, {"sku": "b", "count": 5}]},
            {"_id": 2, "lines": [{"sku": "a", "count": 2}], "gone": 1},
            {"_id": 3, "lines": [{"sku": "a", "count": 2}]},
        ]
    )
    await stage.next("task.completed", doc_id=3)
    assert await stage.app.count_reactive_tasks() == 1


@pytest.mark.parametrize(
    "filter_", [{"due": {"$lte": "$$NOW"}}, {"$lte": ["$due", "$$NOW"]}], ids=["query", "expression"]
)
async def test_now_in_a_filter_is_the_servers_time(stage: Stage, orders: Orders, filter_: Document) -> None:
    define(stage, filter=filter_)
    await stage.app.start()
    now = Clock().now()
    await orders.insert_many(
        [{"_id": 1, "due": now + timedelta(hours=1)}, {"_id": 2, "due": now - timedelta(hours=1)}]
    )
    await stage.next("task.completed", doc_id=2)
    assert await stage.app.count_reactive_tasks() == 1
    await orders.update_one({"_id": 1}, {"$set": {"due": now - timedelta(hours=1)}})
    await stage.next("task.completed", doc_id=1)


async def test_a_document_whose_time_has_come_runs_when_it_is_touched(stage: Stage, orders: Orders) -> None:
    define(stage, filter={"due": {"$lte": "$$NOW"}}, watch_projection=["due"])
    await stage.app.start()
    due = Clock().now() + timedelta(milliseconds=300)
    await orders.insert_one({"_id": 1, "due": due})
    await stage.next("planner.planned")
    assert await stage.app.count_reactive_tasks() == 0
    await orders.insert_one({"_id": 2, "due": due - timedelta(hours=1)})
    await stage.next("task.completed", doc_id=2)

    async def touched_in_time() -> bool:
        await orders.update_one({"_id": 1}, {"$inc": {"touched": 1}})
        return bool(stage.heard("task.completed", doc_id=1))

    await stage.eventually(touched_in_time)


# -- time


async def test_a_storm_of_changes_is_one_run(stage: Stage, orders: Orders) -> None:
    seen = define(stage, debounce="400ms", watch_projection=["total"])
    await stage.app.start()
    await orders.insert_one({"_id": 1, "total": 0})
    for number in range(1, 31):
        await orders.update_one({"_id": 1}, {"$set": {"total": number}})
    await stage.next("task.completed", doc_id=1)
    assert seen == [{"total": 30}]


async def test_a_run_waits_for_its_debounce(stage: Stage, orders: Orders) -> None:
    define(stage, debounce="500ms")
    await stage.app.start()
    before = Clock().now()
    await orders.insert_one({"_id": 1})
    started = await stage.next("task.started", doc_id=1)
    assert timedelta(milliseconds=500) <= started.at - before < timedelta(seconds=2)


async def test_a_document_that_never_rests_runs_after_max_wait(stage: Stage, orders: Orders) -> None:
    define(stage, debounce="600ms", max_wait="900ms", watch_projection=["total"])
    await stage.app.start()
    before = Clock().now()
    await orders.insert_one({"_id": 1, "total": 0})

    async def kept_busy_until_it_runs() -> bool:
        await orders.update_one({"_id": 1}, {"$inc": {"total": 1}})
        return bool(stage.heard("task.started"))

    await stage.eventually(kept_busy_until_it_runs)
    assert stage.heard("task.started")[0].at - before < timedelta(seconds=2)


# -- several tasks, collections, databases


async def test_tasks_of_one_collection_each_have_their_records(stage: Stage, orders: Orders) -> None:
    paid = define(stage, "paid", filter=PAID, watch_projection=["status"])
    total = define(stage, "total", watch_projection=["total"])
    await stage.app.start()
    await orders.insert_one({"_id": 1, "status": "new", "total": 1})
    await stage.next("task.completed", task="total")
    await orders.update_one({"_id": 1}, {"$set": PAID})
    await stage.next("task.completed", task="paid")
    assert (paid, total) == ([PAID], [{"total": 1}])


async def test_records_live_beside_their_collection(
    stage: Stage, orders: Orders, db: AsyncDatabase[Document]
) -> None:
    define(stage, "one")
    define(stage, "two", "customers")
    await stage.app.start()
    await orders.insert_one({"_id": 1})
    await db["customers"].insert_one({"_id": 1})
    await stage.next("task.completed", task="one")
    await stage.next("task.completed", task="two")
    assert await db["orders_tasks"].count_documents({"task": "one", "sourceDocId": 1}) == 1
    assert await db["customers_tasks"].count_documents({"task": "two", "sourceDocId": 1}) == 1


@pytest.fixture
async def other(client: AsyncMongoClient[Document]) -> AsyncIterator[AsyncDatabase[Document]]:
    """A second database."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    yield client[name]
    await client.drop_database(name)


async def test_tasks_may_span_databases(
    make_stage: MakeStage, orders: Orders, other: AsyncDatabase[Document]
) -> None:
    stage = make_stage()
    define(stage, "here")
    define(stage, "there", f"{other.name}.orders")
    await stage.app.start()
    await orders.insert_one({"_id": 1, "where": "here"})
    await other["orders"].insert_one({"_id": 1, "where": "there"})
    await stage.next("task.completed", task="here")
    await stage.next("task.completed", task="there")
    page = await stage.app.get_reactive_tasks(sort=("task", 1))
    assert [record.collection for record in page.items] == ["orders", f"{other.name}.orders"]
    assert await other["orders_tasks"].count_documents({}) == 1
    await stage.app.stop()


async def test_an_instance_plans_for_tasks_of_another(make_stage: MakeStage, orders: Orders) -> None:
    leader, worker = make_stage(), make_stage()
    define(leader, "leaders")
    define(worker, "workers")
    await leader.app.start()
    await worker.app.start()
    await orders.insert_one({"_id": 1})
    await leader.next("task.completed", task="leaders")
    await worker.next("task.completed", task="workers")
    assert worker.heard("leadership.gained") == []


# -- what was there before


async def test_documents_that_were_there_are_planned_at_the_first_start(stage: Stage, orders: Orders) -> None:
    define(stage, filter=PAID)
    await orders.insert_many([{"_id": number, "status": "paid"} for number in range(5)])
    await orders.insert_one({"_id": 9, "status": "new"})
    await stage.app.start()
    await stage.until(lambda: len(stage.heard("task.completed")) == 5)
    finished = await stage.next("reconciliation.finished")
    assert finished.fields["tasks"] == ["sync"]
    assert await stage.app.count_reactive_tasks() == 5


async def test_a_second_start_reconciles_nothing(make_stage: MakeStage, orders: Orders) -> None:
    await orders.insert_one({"_id": 1})
    first, second = make_stage(), make_stage()
    for stage in (first, second):
        define(stage)
    await first.app.start()
    await first.next("task.completed")
    await first.next("reconciliation.finished")
    await first.app.stop()
    await second.app.start()
    await orders.insert_one({"_id": 2})
    await second.next("task.completed", doc_id=2)
    assert second.heard("reconciliation.started") == []
    assert second.heard("task.started", doc_id=1) == []


async def test_a_new_task_is_reconciled_at_a_later_start_and_the_old_one_is_not(
    make_stage: MakeStage, orders: Orders
) -> None:
    await orders.insert_one({"_id": 1})
    first, second = make_stage(), make_stage()
    define(first, "old")
    define(second, "old")
    define(second, "new")
    await first.app.start()
    await first.next("reconciliation.finished")
    await first.next("task.completed")
    await first.app.stop()
    await second.app.start()
    await second.next("task.completed", task="new", doc_id=1)
    finished = await second.next("reconciliation.finished")
    assert finished.fields["tasks"] == ["new"]
    assert second.heard("task.started", task="old") == []


async def test_a_changed_filter_is_filled_in(make_stage: MakeStage, orders: Orders) -> None:
    await orders.insert_many([{"_id": 1, "total": 5}, {"_id": 2, "total": 50}])
    first, second = make_stage(), make_stage()
    define(first, filter={"total": {"$gt": 10}}, watch_projection=["total"])
    define(second, filter={"total": {"$gt": 1}}, watch_projection=["total"])
    await first.app.start()
    await first.next("task.completed", doc_id=2)
    await first.next("reconciliation.finished")
    await first.app.stop()
    await second.app.start()
    await second.next("task.completed", doc_id=1)
    await second.next("reconciliation.finished")
    assert second.heard("task.started", doc_id=2) == []


async def test_a_filter_edited_narrower_and_wide_again_runs_nothing_again(
    make_stage: MakeStage, orders: Orders
) -> None:
    await orders.insert_many([{"_id": 1, "total": 5}, {"_id": 2, "total": 50}])
    stages = [make_stage() for _ in range(3)]
    for stage, least in zip(stages, (1, 10, 1), strict=True):
        define(stage, filter={"total": {"$gt": least}}, watch_projection=["total"])
        await stage.app.start()
        await stage.next("reconciliation.finished")
        if stage is stages[0]:
            await stage.next("task.completed", doc_id=1)
            await stage.next("task.completed", doc_id=2)
        await stage.app.stop()
    assert stages[1].heard("task.started") == stages[2].heard("task.started") == []


async def test_a_collection_that_comes_with_a_collation_is_followed(
    stage: Stage, db: AsyncDatabase[Document]
) -> None:
    seen = define(stage, filter={"status": "paid"})
    await stage.app.start()
    orders = await db.create_collection("orders", collation={"locale": "en", "strength": 2})
    await orders.insert_one({"_id": 1, "status": "PAID"})
    await stage.next("task.completed", doc_id=1)
    await orders.update_one({"_id": 1}, {"$set": {"total": 3}})
    await stage.next("task.completed", doc_id=1)
    assert [values["status"] for values in seen] == ["PAID", "PAID"]


async def test_a_changed_filter_is_not_filled_in_where_that_is_not_wanted(
    make_stage: MakeStage, orders: Orders
) -> None:
    await orders.insert_many([{"_id": 1, "total": 5}, {"_id": 2, "total": 50}])
    first, second = make_stage(), make_stage()
    define(first, filter={"total": {"$gt": 10}})
    define(second, filter={"total": {"$gt": 1}}, evolution=Evolution(reconcile_on_trigger_change=False))
    await first.app.start()
    await first.next("task.completed", doc_id=2)
    await first.next("reconciliation.finished")
    await first.app.stop()
    await second.app.start()
    await orders.insert_one({"_id": 3, "total": 5})
    await second.next("task.completed", doc_id=3)
    await second.app.stop()
    assert second.heard("reconciliation.started") == []
    assert second.heard("task.started", doc_id=1) == []


async def test_reconcile_plans_records_that_are_missing(stage: Stage, orders: Orders) -> None:
    seen = define(stage)
    await stage.app.start()
    await orders.insert_many([{"_id": 1}, {"_id": 2}])
    await stage.until(lambda: len(stage.heard("task.completed")) == 2)
    assert await stage.app.delete_reactive_tasks(source_doc_filter={"_id": 1}) == 1
    await stage.app.reconcile("sync")
    await stage.next("reconciliation.finished")
    await stage.until(lambda: len(stage.heard("task.completed")) == 3)
    assert seen[2:] == [{"_id": 1}]


async def test_a_scan_that_was_broken_off_before_history_was_lost_starts_again(
    make_stage: MakeStage, orders: Orders, db: AsyncDatabase[Document]
) -> None:
    await orders.insert_many([{"_id": number, "total": 1} for number in range(2500)])
    first, second = make_stage(concurrency=0), make_stage(concurrency=0)
    for stage in (first, second):
        define(stage, watch_projection=["total"])
    await first.app.start()
    meta = db["_oplogue_globals"]

    async def begun() -> bool:
        return await meta.count_documents({"_id": f"scan:{db.name}.orders"}) == 1

    await first.eventually(begun)
    await first.app.stop()
    assert await begun()
    await orders.update_one({"_id": 0}, {"$set": {"total": 2}})
    await meta.update_one({"_id": "leader"}, {"$set": {"position.time": Timestamp(2**32 - 1, 1)}})
    await second.app.start()
    await second.next("planner.history_lost")
    await second.next("reconciliation.finished")
    assert (await second.record(0)).last_observed_values == {"total": 2}


IDS: list[Any] = [
    1,
    Int64(2**60),
    1.5,
    Decimal128("2.25"),
    "1",
    "",
    "$$ROOT",
    ObjectId(),
    True,
    False,
    Binary(b"\x01\x02", 5),
    uuid.UUID(int=7).bytes,
    {"a": 1, "b": {"c": "$x"}},
    {},
    Clock().now().replace(microsecond=0),
    MinKey(),
    MaxKey(),
    float("inf"),
]


async def test_ids_of_any_type_are_planned_by_events(stage: Stage, orders: Orders) -> None:
    define(stage, watch_projection=["n"])
    await stage.app.start()
    for place, id_ in enumerate(IDS):
        await orders.insert_one({"_id": id_, "n": place})
    await stage.until(lambda: len(stage.heard("task.completed")) == len(IDS))
    for place, id_ in enumerate(IDS):
        await orders.update_one({"_id": id_}, {"$set": {"n": -1 - place}})
    await stage.until(lambda: len(stage.heard("task.completed")) == 2 * len(IDS))
    assert await stage.app.count_reactive_tasks(status="completed") == len(IDS)


REPRESENTATIONS = ["standard", "pythonLegacy", "javaLegacy", "csharpLegacy"]


@pytest.mark.parametrize("representation", REPRESENTATIONS)
async def test_native_uuids_as_ids_are_planned_followed_and_reconciled(
    make_stage: MakeStage, database_uri: str, representation: str
) -> None:
    stage = make_stage(uri=f"{database_uri}&uuidRepresentation={representation}")
    define(stage, filter=PAID, watch_projection=["total"])
    await stage.app.start()
    orders = stage.app.database["orders"]
    ids = [uuid.UUID(int=number) for number in range(150)]
    await orders.insert_many([{"_id": id_, "status": "paid", "total": 1} for id_ in ids])
    await stage.counted(len(ids), status="completed")
    # So many at once that the planner asks which of them have records.
    await orders.update_many({}, {"$set": {"status": "new"}})
    await orders.update_many({}, {"$set": {"status": "paid", "total": 2}})
    await stage.until(lambda: len(stage.heard("task.completed")) == 2 * len(ids))
    await stage.app.delete_reactive_tasks()
    await stage.app.reconcile()
    await stage.counted(len(ids), status="completed")
    assert (await stage.record(ids[0])).last_observed_values == {"total": 2}
    assert stage.heard("part.failed") == []


@pytest.mark.parametrize("representation", REPRESENTATIONS)
async def test_native_uuids_in_documents_are_verified_and_fetched(
    make_stage: MakeStage, database_uri: str, representation: str
) -> None:
    stage = make_stage(uri=f"{database_uri}&uuidRepresentation={representation}")
    handled: list[Document] = []

    @stage.app.reactive_task(task="sync", collection="orders", debounce=0)
    async def _sync(order: Document, ctx: Context) -> None:
        assert await ctx.get_document() == order
        if not handled:
            # Moves on while it is handled: what is read next is compared with what was planned.
            await stage.app.database["orders"].update_one({}, {"$set": {"account": uuid.UUID(int=9)}})
            handled.append(order)
            await ctx.get_document()
        handled.append(order)

    await stage.app.start()
    order = {"_id": {"shop": uuid.UUID(int=1)}, "account": uuid.UUID(int=2)}
    await stage.app.database["orders"].insert_one(order)
    await stage.next("task.skipped")
    await stage.next("task.completed", doc_id=order["_id"])
    assert handled == [order, order | {"account": uuid.UUID(int=9)}]
    assert stage.heard("part.failed") == []


async def test_ids_of_any_type_are_reconciled(stage: Stage, orders: Orders) -> None:
    define(stage, watch_projection=["n"])
    await orders.insert_many([{"_id": id_, "n": place} for place, id_ in enumerate(IDS)])
    await stage.app.start()
    await stage.next("reconciliation.finished")
    await stage.until(lambda: len(stage.heard("task.completed")) == len(IDS))


@pytest.mark.parametrize(
    "value",
    [float("nan"), Regex("a"), "$$ROOT", {"$literal": 1}, {"a.b": 1, "$c": 2}, [[]], None, Decimal128("NaN")],
    ids=str,
)
async def test_any_value_can_be_watched_and_fetched_and_runs_once(
    stage: Stage, orders: Orders, value: Any
) -> None:
    @stage.app.reactive_task(task="sync", collection="orders", debounce=0, watch_projection=["x"])
    async def _sync(ctx: Context) -> None:
        await ctx.get_document()

    @stage.app.reactive_task(task="whole", collection="orders", debounce=0)
    async def _whole(ctx: Context) -> None:
        await ctx.get_document()

    await stage.app.start()
    await orders.insert_one({"_id": 1, "x": value})
    await stage.next("task.completed", task="sync")
    await stage.next("task.completed", task="whole")
    await orders.update_one({"_id": 1}, {"$set": {"y": 1}})
    await stage.next("task.completed", task="whole")
    await orders.insert_one({"_id": 2})
    await stage.next("task.completed", task="sync", doc_id=2)
    assert len(stage.heard("task.started", task="sync", doc_id=1)) == 1
    assert stage.heard("task.skipped") == []


def _not_unicode(document: Document) -> RawBSONDocument:
    """A document as some driver may write it: its ``?`` are bytes that no text has."""
    return RawBSONDocument(bson.encode(document).replace(b"?", b"\xff"))


def _of_one_field(element: bytes) -> RawBSONDocument:
    content = b"\x10_id\x00\x01\x00\x00\x00" + element + b"\x00"
    return RawBSONDocument((len(content) + 4).to_bytes(4, "little") + content)


@pytest.mark.parametrize(
    "document",
    [
        {"_id": 1, "x": {"note": 1, "$ref": "shops", "$id": 1}},
        {"_id": 1, "x": [{"$id": 1, "$ref": "shops", "$db": "d", "note": 1}]},
        _of_one_field(b"\x06x\x00"),
        _of_one_field(b"\x0ex\x00\x02\x00\x00\x00a\x00"),
    ],
    ids=["reference", "references", "undefined", "symbol"],
)
async def test_values_that_are_not_sent_as_they_came_are_fetched_and_run_once(
    stage: Stage, orders: Orders, document: Document
) -> None:
    @stage.app.reactive_task(task="sync", collection="orders", debounce=0, watch_projection=["x"])
    async def _sync(ctx: Context) -> None:
        await ctx.get_document()

    await stage.app.start()
    await orders.insert_one(document)
    await stage.next("task.completed", doc_id=1)
    await orders.insert_one({"_id": 2})
    await stage.next("task.completed", doc_id=2)
    assert len(stage.heard("task.started", doc_id=1)) == 1


async def test_what_is_no_unicode_fails_the_run_that_reads_it_and_keeps_none_from_running(
    stage: Stage, orders: Orders
) -> None:
    @stage.app.reactive_task(
        task="sync", collection="orders", debounce=0, watch_projection=["x"], retry_policy=Fixed(0)
    )
    async def _sync(ctx: Context) -> None:
        await ctx.get_document()

    await orders.insert_many([_not_unicode({"_id": "?", "x": 1}), {"_id": 3}])
    await stage.app.start()
    await stage.next("task.completed", doc_id=3)
    await orders.insert_many([_not_unicode({"_id": 1, "x": "?"}), {"_id": 2}])
    failed = await stage.next("task.failed", doc_id=1)
    assert "utf-8" in failed.fields["error"]
    await stage.next("task.completed", doc_id=2)
    assert stage.heard("part.failed") == []


class _Decimals(TypeCodec):
    python_type = Decimal  # type: ignore[assignment]  # how the driver's page does it
    bson_type = Decimal128  # type: ignore[assignment]

    def transform_python(self, value: Decimal) -> Decimal128:
        return Decimal128(value)

    def transform_bson(self, value: Decimal128) -> Decimal:
        return value.to_decimal()


async def test_values_of_a_codecs_own_types_are_verified_and_fetched(
    make_stage: MakeStage, database_uri: str
) -> None:
    registry = TypeRegistry([_Decimals()])
    async with AsyncMongoClient[Document](database_uri, type_registry=registry) as client:
        stage = make_stage(uri=None, client=client)
        orders = client.get_default_database()["orders"]
        handled: list[Document] = []

        @stage.app.reactive_task(task="sync", collection="orders", debounce=0, watch_projection=["x"])
        async def _sync(order: Document, ctx: Context) -> None:
            handled.append(order)
            if len(handled) == 1:
                await orders.update_one({}, {"$set": {"x.price": Decimal("3.5")}})
            await ctx.get_document()

        await stage.app.start()
        await orders.insert_one({"_id": {"number": Decimal("1.5")}, "x": {"price": Decimal("2.5")}})
        await stage.next("task.completed")
        assert [order["x"] for order in handled] == [{"price": Decimal("2.5")}, {"price": Decimal("3.5")}]
        await stage.app.stop()


async def test_a_dropped_collection_leaves_records_behind_that_run_again_for_new_documents(
    stage: Stage, orders: Orders
) -> None:
    seen = define(stage, watch_projection=["total"])
    await stage.app.start()
    await orders.insert_one({"_id": 1, "total": 1})
    await stage.next("task.completed", doc_id=1)
    await orders.drop()
    await stage.next("planner.source_gone")
    await orders.insert_one({"_id": 1, "total": 1})
    await stage.next("task.completed", doc_id=1)
    assert seen == [{"total": 1}] * 2


async def test_documents_of_a_collection_that_was_renamed_to_a_watched_one_are_planned(
    stage: Stage, orders: Orders, db: AsyncDatabase[Document]
) -> None:
    define(stage)
    await stage.app.start()
    await stage.next("reconciliation.finished")
    await db["imported"].insert_many([{"_id": 1}, {"_id": 2}])
    await db["imported"].rename("orders", dropTarget=True)
    await stage.counted(2, status="completed")
    await orders.rename("archive")
    await stage.next("planner.source_gone")


async def test_a_trigger_that_the_saved_position_does_not_cover_is_reconciled(
    make_stage: MakeStage, orders: Orders, db: AsyncDatabase[Document]
) -> None:
    first, second = make_stage(), make_stage()
    for stage in (first, second):
        define(stage, watch_projection=["total"])
    async with first.app:
        await first.next("reconciliation.finished")
        await orders.insert_one({"_id": 1, "total": 1})
        await first.next("task.completed", doc_id=1)
    # Meanwhile a leader on other code pruned this change, and moved the position past it.
    await orders.update_one({"_id": 1}, {"$set": {"total": 2}})
    await db["elsewhere"].insert_one({})  # a stream begins with the write of its time
    now = (await db.command("ping"))["operationTime"]
    past = {"position.time": now, "position.token": None, "position.covers": ["another"]}
    await db["_oplogue_globals"].update_one({"_id": "leader"}, {"$set": past})
    await second.app.start()
    await second.next("task.completed", doc_id=1)
    assert (await second.record(1)).last_observed_values == {"total": 2}


async def test_a_flood_of_changes_with_one_that_cannot_be_planned_is_planned_but_for_that_one(
    make_stage: MakeStage, orders: Orders
) -> None:
    """So many are planned by two statements beside each other: what is refused to one is taken apart all the same."""
    stage, many = make_stage(concurrency=0), 600

    @stage.app.reactive_task(
        task="share", collection="orders", watch_projection={"share": {"$divide": [10, "$parts"]}}, debounce=0
    )
    async def _share(ctx: Context) -> None: ...

    await orders.insert_many([{"_id": number, "parts": 1} for number in range(many)])
    await stage.app.start()
    await stage.next("reconciliation.finished")
    await orders.update_many({"_id": {"$ne": many - 7}}, {"$set": {"parts": 5}})
    await orders.update_one({"_id": many - 7}, {"$set": {"parts": 0}})
    parked = await stage.next("planner.parked")
    assert parked.fields["doc_id"] == many - 7
    records = orders.database["orders_tasks"]

    async def all_others_planned() -> bool:
        return await records.count_documents({"lastObservedValues": {"share": 2.0}}) == many - 1

    await stage.eventually(all_others_planned)
