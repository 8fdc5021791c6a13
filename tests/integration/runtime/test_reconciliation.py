"""When documents are reconciled, how a scan goes on, and when it starts again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from bson import Timestamp
from pymongo import AsyncMongoClient
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from tests.integration.runtime.conftest import MakeStage
from tests.support.rig import BOUND
from tests.support.running import Stage

from oplogue import Context, Evolution
from oplogue.clock import Clock
from oplogue.model.definition import Namespace
from oplogue.runtime.console import open_console
from oplogue.store.definitions import Definitions, StoredTask

Document = dict[str, Any]
Orders = AsyncCollection[Document]

FIRST_RANGE, ALL = 1_000, 1_500
RESTING = 1e-9
"""A pace at which nothing follows the first range."""


def define(stage: Stage, task: str = "sync", **options: Any) -> None:
    """A task whose runs say nothing."""
    usual: dict[str, Any] = {"collection": "orders", "watch_projection": ["v"], "debounce": 0}

    @stage.app.reactive_task(task=task, **{**usual, **options})
    async def _sync(ctx: Context) -> None: ...


def planner(make_stage: MakeStage, *tasks: str, pace: float = 1.0) -> Stage:
    """An instance that plans and runs nothing."""
    stage = make_stage(concurrency=0, pace=pace)
    for task in tasks or ("sync",):
        define(stage, task)
    return stage


async def half_way(make_stage: MakeStage, orders: Orders) -> Stage:
    """A leader that rests behind the first of two ranges."""
    await orders.insert_many([{"_id": number, "v": 1} for number in range(ALL)])
    stage = planner(make_stage, pace=RESTING)
    await stage.app.start()
    assert (await stage.next("reconciliation.progress")).fields["documents"] == FIRST_RANGE
    return stage


async def begins_with(stage: Stage, documents: int, tasks: Sequence[str] = ("sync",)) -> None:
    """The next scan goes on behind so many documents."""
    started = await stage.next("reconciliation.started")
    assert (started.fields["documents"], started.fields["tasks"]) == (documents, list(tasks))


# -- where a scan goes on


async def test_the_next_leader_goes_on_at_the_checkpoint(make_stage: MakeStage, orders: Orders) -> None:
    first = await half_way(make_stage, orders)
    await first.app.stop()
    second = planner(make_stage)
    await second.app.start()
    await begins_with(second, FIRST_RANGE)
    assert (await second.next("reconciliation.finished")).fields["documents"] == ALL
    assert await second.app.count_reactive_tasks() == ALL


async def test_a_task_that_came_meanwhile_starts_the_scan_again_for_all(
    make_stage: MakeStage, orders: Orders
) -> None:
    first = await half_way(make_stage, orders)
    await first.app.stop()
    second = planner(make_stage, "sync", "another")
    await second.app.start()
    await begins_with(second, 0, ("another", "sync"))
    await second.next("reconciliation.finished")
    assert await second.app.count_reactive_tasks() == 2 * ALL


async def test_a_history_lost_half_way_starts_the_scan_again(
    make_stage: MakeStage, orders: Orders, db: AsyncDatabase[Document]
) -> None:
    first = await half_way(make_stage, orders)
    await first.app.stop()
    # Behind the checkpoint, and no event will tell of it.
    await orders.update_one({"_id": 5}, {"$set": {"v": 2}})
    beyond = {"position.time": Timestamp(4_000_000_000, 1)}
    await db["_oplogue_globals"].update_one({"_id": "leader"}, {"$set": beyond})
    second = planner(make_stage)
    await second.app.start()
    await second.next("planner.history_lost")
    await second.next("reconciliation.finished")
    assert (await second.record(5)).last_observed_values == {"v": 2}
    assert [event.fields["documents"] for event in second.heard("reconciliation.started")][-1:] == [0]
    # No event will fence what a former leader has read: the scan does, also where nothing has changed.
    unchanged = await db["orders_tasks"].find_one({"sourceDocId": 6})
    leader = await db["_oplogue_globals"].find_one({"_id": "leader"})
    assert unchanged is not None
    assert leader is not None
    assert unchanged["oplogue"]["term"] == leader["term"]


async def test_a_reconciliation_asked_for_half_way_starts_the_scan_again(
    make_stage: MakeStage, orders: Orders
) -> None:
    stage = await half_way(make_stage, orders)
    await begins_with(stage, 0)
    assert await stage.app.delete_reactive_tasks(source_doc_filter={"_id": 5}) == 1
    await stage.app.reconcile("sync")
    await begins_with(stage, 0)
    await stage.counted(1, source_doc_filter={"_id": 5})


async def test_a_request_that_comes_as_the_scan_ends_is_met_by_another_scan(
    make_stage: MakeStage, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    await orders.insert_one({"_id": 1, "v": 1})
    reconciled, asked = Definitions.reconciled, False

    async def asked_just_before(self: Definitions, tasks: Sequence[StoredTask]) -> list[str]:
        nonlocal asked
        if not asked:
            asked = True
            await self.to_be_reconciled(["sync"])
        return await reconciled(self, tasks)

    monkeypatch.setattr(Definitions, "reconciled", asked_just_before)
    stage = planner(make_stage)
    await stage.app.start()
    await stage.next("reconciliation.finished")
    assert len(stage.heard("reconciliation.started")) == 2
    assert len(stage.heard("reconciliation.finished")) == 1


async def test_a_trigger_edited_back_and_forth_half_way_starts_the_scan_again(
    make_stage: MakeStage, orders: Orders
) -> None:
    first = await half_way(make_stage, orders)
    await first.app.stop()
    other = make_stage(concurrency=0, pace=RESTING)
    define(other, filter={"v": {"$gt": 5}}, evolution=Evolution(reconcile_on_trigger_change=False))
    await other.app.start()
    # The documents that no trigger was planned for yet are still to be planned.
    await begins_with(other, 0)
    await other.app.stop()
    last = planner(make_stage)
    await last.app.start()
    await begins_with(last, 0)


# -- what can't be planned at once


async def test_no_checkpoint_passes_a_document_that_is_held_back(
    make_stage: MakeStage, orders: Orders, db: AsyncDatabase[Document], client: AsyncMongoClient[Document]
) -> None:
    first = await half_way(make_stage, orders)
    await first.app.stop()
    records, globals_ = db["orders_tasks"], db["_oplogue_globals"]
    await records.update_one({"sourceDocId": 5}, {"$set": {"status": "processing"}})
    await Definitions(client, Namespace(db.name, "_oplogue_globals"), bound=BOUND).to_be_reconciled()
    second = make_stage(concurrency=0, pace=1.0, lease="3s")
    define(second)
    async with client.start_session() as session, await session.start_transaction():
        # As a handler's transaction, that has marked its record completed and goes on.
        await records.update_one({"sourceDocId": 5}, {"$set": {"v": 1}}, session=session)
        await second.app.start()
        await begins_with(second, 0)
        await second.next("reconciliation.progress")
        await second.counted(ALL)
        tried = len(second.heard("planner.batch_failed"))
        await second.until(lambda: len(second.heard("planner.batch_failed")) > tried)
        scan = await globals_.find_one({"_id": f"scan:{db.name}.orders"})
        assert scan is not None
        assert scan["documents"] == 0
        assert second.heard("reconciliation.finished") == []
    assert (await second.next("reconciliation.finished")).fields["documents"] == ALL


async def test_a_filter_too_slow_for_a_range_is_planned_in_parts_and_nothing_is_parked(
    make_stage: MakeStage, orders: Orders
) -> None:
    await orders.insert_many([{"_id": number, "v": 1} for number in range(120)])
    slow = {"$function": {"body": "function(v) { sleep(8); return true }", "args": ["$v"], "lang": "js"}}
    stage = make_stage(concurrency=0, pace=1.0, lease="1800ms")
    define(stage, filter=slow)
    await stage.app.start()
    await stage.next("reconciliation.finished")
    assert stage.heard("planner.batch_failed")
    assert await stage.app.count_reactive_tasks(status="pending") == 120


async def test_a_document_that_is_refused_is_parked_and_the_scan_goes_on(
    make_stage: MakeStage, orders: Orders
) -> None:
    await orders.insert_many([{"_id": None, "v": 1}, *({"_id": number, "v": 1} for number in range(ALL))])
    stage = planner(make_stage)
    await stage.app.start()
    assert (await stage.next("reconciliation.finished")).fields["documents"] == ALL + 1
    assert await stage.app.count_reactive_tasks(status="pending") == ALL
    assert (await stage.next("planner.parked")).fields["doc_id"] is None


async def test_values_are_compared_to_the_letter_in_a_collection_with_a_collation(
    make_stage: MakeStage, db: AsyncDatabase[Document]
) -> None:
    orders = await db.create_collection("orders", collation={"locale": "en", "strength": 1})
    await orders.insert_one({"_id": 1, "v": "a"})
    first, second = planner(make_stage), planner(make_stage)
    await first.app.start()
    await first.next("reconciliation.finished")
    await first.app.stop()
    await db["orders_tasks"].update_one({}, {"$set": {"lastObservedValues": {"v": "A"}}})
    await second.app.start()
    await second.app.reconcile()
    await second.next("reconciliation.finished")
    assert (await second.record(1)).last_observed_values == {"v": "a"}


# -- beside live changes


async def test_changes_are_planned_while_a_scan_goes_on(make_stage: MakeStage, orders: Orders) -> None:
    stage = await half_way(make_stage, orders)
    # One behind the checkpoint, one before it, one that is new.
    await orders.update_one({"_id": 5}, {"$set": {"v": 2}})
    await orders.update_one({"_id": ALL - 1}, {"$set": {"v": 2}})
    await orders.insert_one({"_id": ALL, "v": 2})
    await stage.counted(FIRST_RANGE + 2)
    await stage.eventually(lambda: changed(stage, 5))
    await stage.app.stop()
    other = planner(make_stage)
    await other.app.start()
    await other.next("reconciliation.finished")
    for id_ in (5, ALL - 1, ALL):
        assert await changed(other, id_)
    assert await other.app.count_reactive_tasks() == ALL + 1


async def changed(stage: Stage, id_: int) -> bool:
    """Whether the record has the newest values."""
    return (await stage.record(id_)).last_observed_values == {"v": 2}


async def test_a_record_that_is_planned_again_unchanged_runs_nothing(
    make_stage: MakeStage, orders: Orders
) -> None:
    stage = make_stage(pace=1.0)
    define(stage)
    await orders.insert_many([{"_id": number, "v": 1} for number in range(10)])
    await stage.app.start()
    await stage.next("reconciliation.finished")
    await stage.counted(10, status="completed")
    await stage.app.reconcile()
    await stage.next("reconciliation.finished")
    assert await stage.app.count_reactive_tasks(status="completed") == 10
    assert len(stage.heard("task.started")) == 10


async def test_a_document_outside_the_filter_gets_no_record_and_one_that_is_missing_comes_back(
    make_stage: MakeStage, orders: Orders
) -> None:
    stage = make_stage(concurrency=0, pace=1.0)
    define(stage, filter={"v": {"$gt": 1}})
    await orders.insert_many([{"_id": 1, "v": 1}, {"_id": 2, "v": 2}])
    await stage.app.start()
    await stage.next("reconciliation.finished")
    assert await stage.app.delete_reactive_tasks() == 1
    await stage.app.reconcile("sync")
    await stage.next("reconciliation.finished")
    assert (await stage.record()).source_doc_id == 2
    assert (await stage.record()).status == "pending"


async def test_time_that_passes_runs_nothing_until_the_next_reconciliation(
    make_stage: MakeStage, orders: Orders
) -> None:
    stage = make_stage(concurrency=0, pace=1.0)
    define(stage, filter={"due": {"$lte": "$$NOW"}})
    await stage.app.start()
    await stage.next("reconciliation.finished")
    due = Clock().now() + timedelta(milliseconds=400)
    await orders.insert_one({"_id": 1, "due": due})
    await stage.next("planner.planned")

    async def has_come() -> bool:
        return await orders.count_documents({"$expr": {"$lt": ["$due", "$$NOW"]}}) == 1

    await stage.eventually(has_come)
    assert await stage.app.count_reactive_tasks() == 0
    await stage.app.reconcile()
    await stage.next("reconciliation.finished")
    assert await stage.app.count_reactive_tasks() == 1


async def test_a_leader_that_stops_leaves_a_scan_at_once(make_stage: MakeStage, orders: Orders) -> None:
    stage = await half_way(make_stage, orders)
    async with asyncio.timeout(3):
        await stage.app.stop()
    assert stage.heard("reconciliation.finished") == []


# -- what is told of it


async def test_how_far_it_has_come_can_be_read_from_the_database(
    make_stage: MakeStage, orders: Orders, database_uri: str
) -> None:
    stage = await half_way(make_stage, orders)
    async with open_console(database_uri) as console:
        (under_way,) = await console.desk.reconciliations()
        assert (under_way.tasks, under_way.documents, under_way.estimate) == (("sync",), FIRST_RANGE, ALL)
        assert under_way.share == FIRST_RANGE / ALL
        assert not under_way.waits
        assert under_way.remaining is not None
        await stage.app.stop()
        await console.desk.reconcile("sync")
        (waiting,) = await console.desk.reconciliations()
        assert (waiting.waits, waiting.documents, waiting.estimate) == (True, 0, ALL)
        assert waiting == (await console.desk.would_reconcile("sync"))[0]
        other = planner(make_stage)
        await other.app.start()
        await other.next("reconciliation.finished")
        assert await console.desk.reconciliations() == ()


async def test_speed_and_estimate_are_told_by_events(make_stage: MakeStage, orders: Orders) -> None:
    stage = await half_way(make_stage, orders)
    progress = stage.heard("reconciliation.progress")[0].fields
    assert (progress["estimate"], progress["tasks"]) == (ALL, ["sync"])
    assert progress["per_second"] > 0
    assert progress["seconds_left"] == pytest.approx(500 / progress["per_second"], abs=0.1)
