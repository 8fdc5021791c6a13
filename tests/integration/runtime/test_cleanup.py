"""Which records are cleaned up, when, and by whom."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from bson import Timestamp
from bson.datetime_ms import DatetimeMS
from pymongo import AsyncMongoClient, MongoClient
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.monitoring import CommandListener, CommandStartedEvent
from tests.integration.runtime.conftest import MakeStage
from tests.support.rig import BOUND
from tests.support.running import Gate, Stage

from oplogue import CleanupPolicy, Context
from oplogue.clock import Clock
from oplogue.model.definition import Namespace, TaskDefinition
from oplogue.store.cleanup import Cleanup, Swept
from oplogue.store.definitions import Definitions
from oplogue.store.ranges import Edge

Document = dict[str, Any]
Orders = AsyncCollection[Document]
PAID: Document = {"status": "paid"}
NO_LONGER = "source_document_deleted_or_no_longer_matching"
HOUR = timedelta(hours=1)
GLOBALS = "_oplogue_globals"


def define(
    stage: Stage, task: str = "sync", *, when: str = "source_document_deleted", keep: Any = "2h", **more: Any
) -> None:
    """A task with that policy."""
    policy = CleanupPolicy(delete_when=when, keep_for=keep)  # pyright: ignore[reportArgumentType] - by name

    @stage.app.reactive_task(task=task, collection="orders", debounce=0, cleanup_policy=policy, **more)
    async def _sync(ctx: Context) -> None: ...


async def age(db: AsyncDatabase[Document], by: timedelta, **which: Any) -> None:
    """All dates of these records are earlier."""
    fields = ("updatedAt", "lastFinalizedAt", "createdAt", "completedAt")
    earlier = {field: {"$subtract": [f"${field}", by / timedelta(milliseconds=1)]} for field in fields}
    await db["orders_tasks"].update_many(which, [{"$set": earlier}])


async def completed(stage: Stage, orders: Orders, *documents: Document) -> None:
    """The app is started, and has run these documents' tasks."""
    await stage.app.start()
    await stage.next("reconciliation.finished")
    await orders.insert_many(documents)
    tasks = len(await stage.app.get_task_definitions())
    await stage.counted(len(documents) * tasks, status="completed")


async def left(stage: Stage) -> list[Any]:
    """The documents that have records."""
    page = await stage.app.get_reactive_tasks(sort=("source_doc_id", 1))
    return [record.source_doc_id for record in page.items]


# -- what is deleted


async def test_the_record_of_a_deleted_document_is_deleted_when_it_was_kept_long_enough(
    stage: Stage, orders: Orders, db: AsyncDatabase[Document]
) -> None:
    define(stage)
    await completed(stage, orders, {"_id": 1}, {"_id": 2})
    await orders.delete_one({"_id": 1})
    assert await stage.app.run_cleanup() == 0
    await age(db, 3 * HOUR)
    await stage.app.run_cleanup()
    assert await left(stage) == [2]


@pytest.mark.parametrize(("when", "kept"), [("source_document_deleted", [1, 2]), (NO_LONGER, [1])])
async def test_a_record_whose_document_no_longer_matches_is_deleted_where_the_policy_says_so(
    stage: Stage, orders: Orders, db: AsyncDatabase[Document], when: str, kept: list[int]
) -> None:
    define(stage, when=when, filter=PAID, watch_projection=["total"])
    await completed(stage, orders, {"_id": 1, **PAID}, {"_id": 2, **PAID})
    await orders.update_one({"_id": 2}, {"$set": {"status": "refunded"}})
    await age(db, 3 * HOUR)
    await stage.app.run_cleanup()
    assert await left(stage) == kept


@pytest.mark.parametrize(
    "condition",
    [{"until": {"$gt": "$$NOW"}}, {"$gt": ["$until", "$$NOW"]}],
    ids=["query", "expression"],
)
async def test_a_document_whose_time_has_passed_no_longer_matches(
    stage: Stage, orders: Orders, db: AsyncDatabase[Document], condition: Document
) -> None:
    define(stage, when=NO_LONGER, filter=condition, watch_projection=["n"])
    now = Clock().now()
    await completed(stage, orders, {"_id": 1, "until": now + HOUR}, {"_id": 2, "until": now + HOUR})
    await age(db, 3 * HOUR)
    assert await stage.app.run_cleanup() == 0
    await orders.update_one({"_id": 1}, {"$set": {"until": now - HOUR}})
    assert await stage.app.run_cleanup() == 1
    assert await left(stage) == [2]


async def test_never_keeps_every_record(stage: Stage, orders: Orders, db: AsyncDatabase[Document]) -> None:
    define(stage, when="never", keep=0)
    await completed(stage, orders, {"_id": 1})
    await orders.delete_one({"_id": 1})
    await age(db, 1_000 * HOUR)
    assert await stage.app.run_cleanup() == 0
    assert await left(stage) == [1]


@pytest.mark.parametrize(
    ("updated", "finalized", "kept"),
    [(3, 3, False), (1, 3, True), (3, 1, True), (1, 1, True)],
    ids=["both long ago", "changed since", "run since", "both since"],
)
async def test_a_record_is_kept_for_so_long_after_its_last_change_and_its_last_run(
    stage: Stage, orders: Orders, db: AsyncDatabase[Document], updated: int, finalized: int, kept: bool
) -> None:
    define(stage)
    await completed(stage, orders, {"_id": 1})
    await orders.delete_one({"_id": 1})
    now = Clock().now()
    dates = {"updatedAt": now - updated * HOUR, "lastFinalizedAt": now - finalized * HOUR}
    await db["orders_tasks"].update_one({}, {"$set": {**dates, "createdAt": now - 9 * HOUR}})
    await stage.app.run_cleanup()
    assert await left(stage) == ([1] if kept else [])


async def test_records_that_wait_or_run_are_spared(make_stage: MakeStage, orders: Orders) -> None:
    stage, gate = make_stage(concurrency=1), Gate()

    @stage.app.reactive_task(collection="orders", debounce=0, cleanup_policy=CleanupPolicy(keep_for=0))
    async def sync(ctx: Context) -> None:
        await gate()

    await stage.app.start()
    await orders.insert_many([{"_id": 1}, {"_id": 2}])
    await gate.reached()
    await stage.counted(1, status="pending")
    await orders.delete_many({})
    assert await stage.app.run_cleanup() == 0
    gate.open()
    await stage.until(lambda: len(stage.heard("task.completed")) + len(stage.heard("task.skipped")) == 2)
    await stage.app.run_cleanup()
    assert await left(stage) == []


async def test_each_task_of_a_collection_has_its_own_policy(
    stage: Stage, orders: Orders, db: AsyncDatabase[Document]
) -> None:
    define(stage, "short", keep="1h")
    define(stage, "long", keep="9h")
    define(stage, "outside", when=NO_LONGER, filter=PAID, watch_projection=["n"], keep="1h")
    define(stage, "never", when="never")
    await completed(stage, orders, {"_id": 1, **PAID}, {"_id": 2, **PAID})
    await orders.update_one({"_id": 1}, {"$set": {"status": "refunded"}})
    await orders.delete_one({"_id": 2})
    await stage.counted(6, status="completed", task=["short", "long", "never"])
    await age(db, 2 * HOUR)
    await stage.app.run_cleanup()
    page = await stage.app.get_reactive_tasks(sort=[("task", 1), ("source_doc_id", 1)])
    assert [(record.task, record.source_doc_id) for record in page.items] == [
        *(("long", 1), ("long", 2), ("never", 1), ("never", 2), ("short", 1))
    ]


async def test_many_orphans_are_deleted_page_by_page(
    make_stage: MakeStage, orders: Orders, db: AsyncDatabase[Document]
) -> None:
    stage = make_stage(concurrency=0)
    define(stage)
    await stage.app.start()
    await stage.next("reconciliation.finished")
    records = [
        {"_id": id_, "task": "sync", "sourceDocId": number, "status": "failed"}
        for number, id_ in enumerate([*range(1_200), *map(str, range(1_200)), None, Timestamp(1, 1)])
    ]
    await db["orders_tasks"].insert_many(records)
    await orders.insert_one({"_id": 7})
    # The live document's record is planned again by its event; it is spared, whichever of both comes first.
    assert await stage.app.run_cleanup() == len(records) - 1
    assert max(event.fields["count"] for event in stage.heard("cleanup.deleted")) <= 1_001


class AtDeletion(CommandListener):
    """Does something just before a deletion is sent."""

    def __init__(self, do: Callable[[], object]) -> None:
        self._do = do
        self.came = 0

    def started(self, event: CommandStartedEvent) -> None:
        if event.command_name == "delete" and event.command["delete"] == "orders_tasks":
            self.came += 1
            self._do()

    def succeeded(self, event: object) -> None: ...

    def failed(self, event: object) -> None: ...


@pytest.mark.parametrize(
    "change",
    [
        {"status": "pending", "nextRunAt": "$$NOW"},
        {"status": "processing", "nextRunAt": "$$NOW"},
        {"status": "completed", "updatedAt": {"$add": ["$$NOW", 1]}, "lastFinalizedAt": "$$NOW"},
    ],
    ids=["waits", "runs", "has run"],
)
async def test_a_record_that_was_planned_anew_after_the_look_survives(
    make_stage: MakeStage, orders: Orders, db: AsyncDatabase[Document], database_uri: str, change: Document
) -> None:
    stage = make_stage()
    define(stage, keep=0)
    await completed(stage, orders, {"_id": 1})
    (stored,) = await stage.app.get_task_definitions()
    await stage.app.stop()
    await orders.delete_one({"_id": 1})
    with MongoClient[Document](database_uri) as other:
        records = other.get_default_database()["orders_tasks"]
        listener = AtDeletion(lambda: records.update_one({}, [{"$set": change}]))
        async with AsyncMongoClient[Document](database_uri, event_listeners=[listener]) as client:
            cleanup = Cleanup(client, Namespace(db.name, GLOBALS), bound=BOUND)
            assert await cleanup.sweep([stored], None) == Swept({}, None)
    assert listener.came == 1
    assert await db["orders_tasks"].count_documents({}) == 1


# -- when it runs


async def test_a_deleted_document_triggers_the_same_check(stage: Stage, orders: Orders) -> None:
    define(stage, "at-once", keep=0)
    define(stage, "kept")
    await completed(stage, orders, {"_id": 1}, {"_id": 2})
    await orders.delete_one({"_id": 1})
    assert (await stage.next("cleanup.deleted")).fields["task"] == "at-once"
    page = await stage.app.get_reactive_tasks(sort=("source_doc_id", 1), task="at-once")
    assert [record.source_doc_id for record in page.items] == [2]
    assert await stage.app.count_reactive_tasks(task="kept") == 2


async def test_records_of_documents_that_went_unseen_are_found_after_a_reconciliation(
    make_stage: MakeStage, orders: Orders, db: AsyncDatabase[Document]
) -> None:
    def tasks(stage: Stage) -> Stage:
        define(stage)
        define(stage, "never", when="never")
        return stage

    first, second = tasks(make_stage()), tasks(make_stage())
    await completed(first, orders, {"_id": 1}, {"_id": 2}, {"_id": 3})
    await first.app.stop()
    await orders.delete_many({"_id": {"$in": [1, 2]}})
    await age(db, 3 * HOUR, sourceDocId={"$ne": 2})
    beyond = {"position.time": Timestamp(4_000_000_000, 1)}
    await db[GLOBALS].update_one({"_id": "leader"}, {"$set": beyond})
    await second.app.start()
    await second.next("planner.history_lost")
    await second.next("reconciliation.finished")
    deleted = await second.next("cleanup.deleted")
    assert (deleted.fields["task"], deleted.fields["count"]) == ("sync", 1)
    page = await second.app.get_reactive_tasks(task="sync", sort=("source_doc_id", 1))
    # The second document's record is young still: it is kept until a later cleanup.
    assert [record.source_doc_id for record in page.items] == [2, 3]
    assert await second.app.count_reactive_tasks(task="never") == 3


async def last_at(db: AsyncDatabase[Document]) -> datetime:
    """When the last cleanup was, by the schedule."""
    found = await db[GLOBALS].find_one({"_id": "cleanup"})
    assert found is not None
    return found["lastAt"]


async def cleaned_up(db: AsyncDatabase[Document], ago: timedelta) -> None:
    """The last cleanup was so long ago."""
    await db[GLOBALS].update_one({"_id": "cleanup"}, {"$set": {"lastAt": Clock().now() - ago}}, upsert=True)


@pytest.mark.parametrize("interval", ["1h", "CRON 0 * * * *"], ids=["interval", "cron"])
async def test_a_cleanup_that_came_due_while_nobody_ran_is_made_up_for_once(
    make_stage: MakeStage, db: AsyncDatabase[Document], interval: str
) -> None:
    await cleaned_up(db, 5 * HOUR)
    before = Clock().now()
    first, second = make_stage(cleanup_interval=interval), make_stage(cleanup_interval=interval)
    await first.app.start()
    await first.next("cleanup.finished")

    async def noted() -> bool:
        return await last_at(db) > before - HOUR

    await first.eventually(noted)
    noted_at = await last_at(db)
    await first.app.stop()
    await second.app.start()
    await second.app.stop()
    assert second.heard("cleanup.finished") == []
    assert await last_at(db) == noted_at


async def test_a_start_before_the_time_has_come_cleans_up_nothing(
    make_stage: MakeStage, db: AsyncDatabase[Document]
) -> None:
    await cleaned_up(db, 5 * HOUR)
    stage = make_stage(cleanup_interval="6h")
    await stage.app.start()
    await stage.app.stop()
    assert stage.heard("cleanup.finished") == []
    assert Clock().now() - await last_at(db) > 4 * HOUR


async def test_one_of_several_instances_takes_a_turn(
    make_stage: MakeStage, db: AsyncDatabase[Document]
) -> None:
    await cleaned_up(db, 5 * HOUR)
    stages = [make_stage(cleanup_interval="1h") for _ in range(3)]
    await asyncio.gather(*(stage.app.start() for stage in stages))
    await asyncio.gather(*(stage.app.stop() for stage in stages))
    finished = [stage for stage in stages if stage.heard("cleanup.finished")]
    taken = await db[GLOBALS].find_one({"_id": "cleanup"})
    assert taken is not None
    assert len(finished) <= 1
    assert taken["by"] in [stage.app.instance_id for stage in stages]


async def test_a_sweep_that_a_stop_breaks_off_is_made_up_for_by_another_instance(
    make_stage: MakeStage, db: AsyncDatabase[Document], monkeypatch: pytest.MonkeyPatch
) -> None:
    await cleaned_up(db, 5 * HOUR)
    sweep, gate = Cleanup.sweep, Gate()

    async def held(self: Cleanup, tasks: Sequence[TaskDefinition], beyond: Edge | None) -> Swept:
        await gate()
        return await sweep(self, tasks, beyond)

    monkeypatch.setattr(Cleanup, "sweep", held)
    first, second = make_stage(cleanup_interval="1h"), make_stage(cleanup_interval="1h")
    define(first)
    define(second)
    await first.app.start()
    await gate.reached()
    await first.app.stop()
    assert Clock().now() - await last_at(db) > 4 * HOUR
    monkeypatch.setattr(Cleanup, "sweep", sweep)
    await second.app.start()
    await second.next("cleanup.finished")


async def test_a_turn_is_held_while_its_sweep_goes_on_and_free_when_its_owner_is_gone(
    client: AsyncMongoClient[Document], db: AsyncDatabase[Document]
) -> None:
    await cleaned_up(db, 5 * HOUR)
    cleanup = Cleanup(client, Namespace(db.name, GLOBALS), bound=BOUND)
    turn = await cleanup.turn()
    assert await cleanup.take(turn, "one")
    assert not await cleanup.take(turn, "two")
    assert await cleanup.hold(turn, "one")
    assert not await cleanup.hold(turn, "two")
    # The first one dies, and says nothing for long.
    await db[GLOBALS].update_one({"_id": "cleanup"}, {"$set": {"heldUntil": Clock().now() - HOUR}})
    assert await cleanup.take(turn, "two")
    assert not await cleanup.hold(turn, "one")
    await cleanup.done(turn, "one")
    assert (await cleanup.turn()).last == turn.last
    assert await cleanup.last() is None
    await cleanup.done(turn, "two")
    assert (await cleanup.turn()).last > turn.last
    assert await cleanup.last() is not None
    assert not await cleanup.take(turn, "three")


# -- what it costs


async def test_a_page_reads_a_bounded_number_of_records_however_many_other_tasks_have(
    make_stage: MakeStage, orders: Orders, db: AsyncDatabase[Document], client: AsyncMongoClient[Document]
) -> None:
    stage = make_stage(concurrency=0)
    define(stage)
    await stage.app.start()
    await stage.next("reconciliation.finished")
    (stored,) = await Definitions(client, Namespace(db.name, GLOBALS), bound=BOUND).all()
    await stage.app.stop()
    many = [{"task": "other", "sourceDocId": number, "status": "completed"} for number in range(5_000)]
    await db["orders_tasks"].insert_many(many)
    await db["orders_tasks"].insert_one({"task": "sync", "sourceDocId": 1, "status": "completed"})
    cleanup = Cleanup(client, Namespace(db.name, GLOBALS), bound=BOUND)
    await db.command("profile", 2)
    deleted, last = 0, None
    for _ in range(6):
        page = await cleanup.sweep([stored.planned.definition], last)
        deleted, last = deleted + sum(page.deleted.values()), page.last
    await db.command("profile", 0)
    assert (deleted, last) == (1, None)
    reads = await db["system.profile"].find({"ns": f"{db.name}.orders_tasks"}).to_list()
    assert len([read for read in reads if read["command"].get("aggregate")]) == 6
    assert max(read["docsExamined"] for read in reads) <= 1_001
    assert max(read["keysExamined"] for read in reads) <= 1_001


async def test_a_filter_means_what_it_means_in_a_collection_with_a_collation(
    stage: Stage, db: AsyncDatabase[Document]
) -> None:
    orders = await db.create_collection("orders", collation={"locale": "en", "strength": 2})
    define(stage, when=NO_LONGER, keep=0, filter=PAID)
    await completed(stage, orders, {"_id": "a", "status": "PAID"}, {"_id": "b", "status": "Paid"})
    await orders.update_one({"_id": "b"}, {"$set": {"status": "new"}})
    await stage.app.run_cleanup()
    assert [row["sourceDocId"] async for row in db["orders_tasks"].find()] == ["a"]


async def test_a_record_whose_date_is_at_the_end_of_time_holds_up_no_other(
    stage: Stage, orders: Orders, db: AsyncDatabase[Document]
) -> None:
    define(stage)
    await completed(stage, orders, {"_id": 1}, {"_id": 2})
    await age(db, 3 * HOUR)
    await db["orders_tasks"].update_one({"sourceDocId": 1}, {"$set": {"updatedAt": DatetimeMS(2**63 - 1)}})
    await orders.delete_many({})
    await stage.app.run_cleanup()

    async def one_is_left() -> bool:
        return [row["sourceDocId"] async for row in db["orders_tasks"].find({}, {"sourceDocId": 1})] == [1]

    await stage.eventually(one_is_left)
    assert not stage.heard("part.failed")
