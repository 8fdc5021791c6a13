"""Deployments: what happens when the code of a task changes, one instance after the other or all at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from tests.integration.runtime.conftest import MakeStage
from tests.support.running import Gate, Stage

from oplogue import Context, Evolution, Fixed

Document = dict[str, Any]
Orders = AsyncCollection[Document]
Run = tuple[str, Any, int]

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
ONCE = Fixed(0, max_attempts=1)


class Code:
    """What is deployed: stages of several versions of the same task, and who ran what."""

    def __init__(self, make_stage: MakeStage) -> None:
        self._make_stage = make_stage
        self.runs: list[Run] = []

    def version(
        self,
        number: int,
        policy: Any = "none",
        *,
        handler: Callable[[Context], Awaitable[None]] | None = None,
        lease: str = "1s",
        **options: Any,
    ) -> Stage:
        """An instance with that version, not started."""
        stage = self._make_stage(lease=lease)
        evolution = Evolution(handler_version=number, on_handler_version_change=policy)
        usual: dict[str, Any] = {"collection": "orders", "debounce": 0, "evolution": evolution}

        @stage.app.reactive_task(task="sync", **{**usual, **options})
        async def _sync(ctx: Context) -> None:
            self.runs.append((f"v{number}", ctx.doc_id, ctx.attempt))
            if handler is not None:
                await handler(ctx)

        return stage


@pytest.fixture
def code(make_stage: MakeStage) -> Code:
    """The deployments of one test."""
    return Code(make_stage)


async def fail(ctx: Context) -> None:
    """A handler with a bug."""
    if ctx.watched_values.get("odd"):
        raise ValueError("a bug")


async def deployed(stage: Stage, orders: Orders) -> None:
    """The first version has completed one record, and failed another for good."""
    await orders.insert_many([{"_id": 1}, {"_id": 2, "odd": True}])
    await stage.app.start()
    await stage.next("task.completed", doc_id=1)
    await stage.next("task.failed", doc_id=2)
    await stage.next("reconciliation.finished")


# -- triggers


async def test_a_narrower_filter_skips_what_is_pending_and_leaves_history(code: Code, orders: Orders) -> None:
    watch = ["total"]
    first = code.version(1, filter={"total": {"$gt": 50}}, watch_projection=watch)
    await orders.insert_many([{"_id": 1, "total": 60}, {"_id": 2, "total": 200}])
    await first.app.start()
    for doc_id in (1, 2):
        await first.next("task.completed", doc_id=doc_id)
    await first.app.pause_task("sync")
    await orders.insert_many([{"_id": 3, "total": 75}, {"_id": 4, "total": 300}])
    await first.planned(2)
    await first.app.stop()
    code.runs.clear()

    second = code.version(1, filter={"total": {"$gt": 100}}, watch_projection=watch)
    await second.app.start()
    await second.app.resume_task("sync")
    await second.next("task.skipped", doc_id=3)
    await second.next("task.completed", doc_id=4)
    await second.next("reconciliation.finished")
    assert code.runs == [("v1", 4, 1)]
    assert await second.app.count_reactive_tasks(status="completed") == 4
    # What no longer matches stays as history, and its changes run nothing.
    await orders.update_one({"_id": 1}, {"$set": {"total": 70}})
    await orders.insert_one({"_id": 5, "total": 500})
    await second.next("task.completed", doc_id=5)
    assert code.runs == [("v1", 4, 1), ("v1", 5, 1)]
    record = await second.record(1)
    assert (record.status, len(record.execution_history)) == ("completed", 1)


async def test_sorted_definitions_run_nothing_again_and_are_not_reconciled(
    code: Code, orders: Orders
) -> None:
    first = code.version(
        1, filter={"b": 1, "a": {"$lt": 9, "$gt": 0}}, watch_projection=["b", "a", "c.y", "c.x"]
    )
    await orders.insert_one({"_id": 1, "a": 5, "b": 1, "c": {"x": 1, "y": 2}})
    await first.app.start()
    await first.next("task.completed", doc_id=1)
    await first.next("reconciliation.finished")
    await first.app.stop()

    fetched: list[Document] = []

    async def fetch(ctx: Context) -> None:
        fetched.append(await ctx.get_document())

    second = code.version(
        1,
        handler=fetch,
        filter={"a": {"$gt": 0, "$lt": 9}, "b": 1},
        watch_projection=["a", "b", "c.x", "c.y"],
    )
    await second.app.start()
    await orders.update_one({"_id": 1}, {"$set": {"note": "not watched"}})
    await orders.insert_one({"_id": 2, "a": 5, "b": 1, "c": {"x": 1, "y": 2}})
    await second.next("task.completed", doc_id=2)
    assert [document["_id"] for document in fetched] == [2]
    assert not second.heard("reconciliation.started")
    await second.app.reconcile()
    await second.next("reconciliation.finished")
    assert code.runs == [("v1", 1, 1), ("v1", 2, 1)]


# -- versions


@pytest.mark.parametrize(
    ("policy", "again"),
    [
        ("none", set[Any]()),
        ("reprocess_failed", {2}),
        ("reprocess_all", {1, 2}),
    ],
)
async def test_a_new_version_runs_again_what_its_policy_says(
    code: Code, orders: Orders, policy: str, again: set[Any]
) -> None:
    first = code.version(1, handler=fail, retry_policy=ONCE)
    await deployed(first, orders)
    await first.app.stop()
    code.runs.clear()

    second = code.version(2, policy, retry_policy=ONCE)
    await second.app.start()
    if again:
        await second.next("evolution.reprocessed", version=2)
    await orders.insert_one({"_id": 3})
    for doc_id in (*again, 3):
        await second.next("task.completed", doc_id=doc_id)
    assert sorted(code.runs) == [("v2", doc_id, 1) for doc_id in sorted(again | {3})]
    await second.app.stop()

    third = code.version(2, policy, retry_policy=ONCE)
    await third.app.start()
    await orders.insert_one({"_id": 4})
    await third.next("task.completed", doc_id=4)
    assert not third.heard("evolution.reprocessed")
    assert len(code.runs) == len(again) + 2


async def test_older_code_starts_no_run_of_a_task_that_newer_code_reprocesses(
    code: Code, orders: Orders
) -> None:
    old = code.version(1, handler=fail, retry_policy=ONCE)
    await deployed(old, orders)
    new = code.version(2, "reprocess_all", retry_policy=ONCE)
    await new.app.start()
    for doc_id in (1, 2):
        await new.next("task.completed", doc_id=doc_id)
    await old.next("task.superseded", version=2)
    await orders.insert_many([{"_id": id_} for id_ in range(10, 60)])
    await new.until(lambda: len(new.heard("task.completed")) == 52)
    assert {version for version, doc_id, _ in code.runs if doc_id >= 10} == {"v2"}


async def test_older_code_reclaims_no_abandoned_run_of_such_a_task(code: Code, orders: Orders) -> None:
    old, new = code.version(1), code.version(2, "reprocess_all")
    await old.app.start()
    await new.app.start()
    await old.next("task.superseded", version=2)
    await new.app.pause_task("sync")
    await orders.insert_one({"_id": 1})
    await new.counted(1, status="pending")
    records = orders.database["orders_tasks"]
    await records.update_one({}, {"$set": {"status": "processing", "nextRunAt": LONG_AGO, "attempts": 1}})

    for _ in range(3):  # each instance looks for abandoned runs twice between two heartbeats
        await beaten(old, orders.database["_oplogue_globals"])
    assert code.runs == [], "a paused task's are left alone too"
    await new.app.resume_task("sync")
    await new.next("task.completed", doc_id=1)
    assert code.runs == [("v2", 1, 2)]


async def test_a_run_of_older_code_is_followed_by_one_of_the_new(code: Code, orders: Orders) -> None:
    gate = Gate()

    async def wait(_ctx: Context) -> None:
        await gate()

    old = code.version(1, handler=wait, lease="6s")
    await orders.insert_one({"_id": 1})
    await old.app.start()
    await gate.reached()
    new = code.version(2, "reprocess_all", lease="6s")
    await new.app.start()
    await old.next("evolution.reprocessed", version=2)
    gate.open()
    await old.next("task.completed", doc_id=1)
    await new.next("task.completed", doc_id=1)
    assert code.runs == [("v1", 1, 1), ("v2", 1, 1)]


async def test_with_policy_none_both_versions_go_on(code: Code, orders: Orders) -> None:
    old, new = code.version(1), code.version(2)
    await old.app.start()
    await new.app.start()
    await new.app.stop()
    await orders.insert_one({"_id": 1})
    await old.next("task.completed", doc_id=1)
    assert not old.heard("task.superseded")


async def test_a_rollback_is_reported_changes_nothing_and_stops_no_work(code: Code, orders: Orders) -> None:
    new = code.version(2, "reprocess_all", handler=fail, retry_policy=ONCE)
    await deployed(new, orders)
    await new.app.stop()
    code.runs.clear()
    old = code.version(1, "reprocess_all", retry_policy=ONCE)
    await old.app.start()
    event = await old.next("evolution.rolled_back", task="sync")
    assert (event.fields["version"], event.fields["stored"]) == (1, 2)
    await orders.insert_one({"_id": 3})
    await old.next("task.completed", doc_id=3)
    assert code.runs == [("v1", 3, 1)]
    assert not old.heard("evolution.reprocessed")
    (definition,) = await old.app.get_task_definitions()
    assert definition.evolution.handler_version == 2


async def test_two_versions_side_by_side_settle(
    code: Code, orders: Orders, db: AsyncDatabase[Document]
) -> None:
    """Several heartbeats of both: one definition stays in force, one stream open, one scan is made."""
    old = code.version(1, filter={"total": {"$gt": 10}}, watch_projection=["total"])
    await orders.insert_many([{"_id": 1, "total": 50}, {"_id": 2, "total": 5}])
    await old.app.start()
    await old.next("task.completed", doc_id=1)
    await old.next("reconciliation.finished")
    new = code.version(
        2, "reprocess_failed", filter={"total": {"$gt": 1}}, watch_projection=["total"], debounce="10ms"
    )
    await new.app.start()
    await new.next("task.completed", doc_id=2)
    await old.next("reconciliation.finished")
    globals_ = db["_oplogue_globals"]
    before = await globals_.find_one({"_id": "task:sync"})
    opened = len(old.heard("planner.stream_opened"))
    for stage in (old, new, old, new, old):
        await beaten(stage, globals_)
    assert await globals_.find_one({"_id": "task:sync"}) == before
    assert len(old.heard("planner.stream_opened")) == opened
    assert len(old.heard("reconciliation.started")) == 2
    assert len(code.runs) == 2


async def beaten(stage: Stage, globals_: AsyncCollection[Document]) -> None:
    """Wait for the instance's next heartbeat."""
    instance: Document = {"_id": f"instance:{stage.app.instance_id}"}
    before = await globals_.find_one(instance)
    assert before is not None

    async def later() -> bool:
        found = await globals_.find_one(instance)
        return found is not None and found["expiresAt"] > before["expiresAt"]

    await stage.eventually(later)


# -- removed tasks


async def test_a_task_that_nobody_has_any_more_is_reported_once_and_its_records_are_kept(
    make_stage: MakeStage, code: Code, orders: Orders
) -> None:
    first = code.version(1)
    await orders.insert_one({"_id": 1})
    await first.app.start()
    await first.next("task.completed")
    await first.app.stop()

    async def other(ctx: Context) -> None: ...

    stage = make_stage(lease="1s")
    stage.app.reactive_task(task="other", collection="orders", debounce=0)(other)
    await stage.app.start()
    await stage.next("task.removed", task="sync")
    for _ in range(3):
        await beaten(stage, orders.database["_oplogue_globals"])
    assert len(stage.heard("task.removed")) == 1
    assert await stage.app.count_reactive_tasks("sync") == 1


async def test_instances_with_different_tasks_miss_none(
    make_stage: MakeStage, code: Code, orders: Orders
) -> None:
    one, other = code.version(1), make_stage(lease="1s")

    @other.app.reactive_task(collection="orders", debounce=0)
    async def _other(ctx: Context) -> None: ...

    await one.app.start()
    await other.app.start()
    for _ in range(7):  # more than three leases
        await beaten(other, orders.database["_oplogue_globals"])
    assert not one.heard("task.removed") + other.heard("task.removed")
