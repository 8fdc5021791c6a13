"""What a handler may ask of its context, and what becomes of its record."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import OperationFailure
from tests.integration.runtime.conftest import MakeStage
from tests.support.running import Gate, Stage, within

from oplogue import App, Context, Fixed, LeaseLostError, TaskConditionFailedError
from oplogue.clock import Clock

Document = dict[str, Any]
Orders = AsyncCollection[Document]
HOUR = timedelta(hours=1)
AT_ONCE = Fixed(0)


def minutes_until(moment: datetime | None) -> float:
    """From now, by this machine's clock, which is the server's too."""
    assert moment is not None
    return (moment - Clock().now()).total_seconds() / 60


# -- what it knows


async def test_the_context_knows_its_run(make_stage: MakeStage, orders: Orders) -> None:
    stage = make_stage(instance_id="the-one")
    seen: list[Any] = []

    @stage.app.reactive_task(collection="orders", debounce=0, watch_projection=["status", "a.b"])
    async def sync_order(ctx: Context) -> None:
        seen.extend([ctx.task, ctx.doc_id, ctx.watched_values, ctx.attempt, ctx.instance_id])
        assert not ctx.cancelled.is_set()

    await stage.app.start()
    await orders.insert_one({"_id": 7, "status": "paid", "a": {"b": 1, "c": 2}})
    await stage.next("task.completed")
    assert seen == ["sync-order", 7, {"status": "paid", "a": {"b": 1}}, 1, "the-one"]


async def test_a_handler_may_change_its_watched_values(stage: Stage, orders: Orders) -> None:
    @stage.app.reactive_task(collection="orders", debounce=0, watch_projection=["a"])
    async def _sync(ctx: Context) -> None:
        ctx.watched_values["a"]["b"] += 1
        assert ctx.watched_values == {"a": {"b": 2}}
        assert (await ctx.get_document())["a"] == {"b": 1}

    await stage.app.start()
    await orders.insert_one({"_id": 7, "a": {"b": 1}})
    await stage.next("task.completed")


async def test_without_a_projection_the_whole_document_is_watched(stage: Stage, orders: Orders) -> None:
    seen: list[Document] = []

    @stage.app.reactive_task(collection="orders", debounce=0)
    async def _sync(ctx: Context) -> None:
        seen.append(ctx.watched_values)

    await stage.app.start()
    await orders.insert_one({"_id": 7, "status": "paid"})
    await stage.next("task.completed")
    await orders.update_one({"_id": 7}, {"$set": {"note": "x"}})
    await stage.next("task.completed")
    assert seen == [{"_id": 7, "status": "paid"}, {"_id": 7, "status": "paid", "note": "x"}]


# -- the document


async def test_get_document_takes_find_options(stage: Stage, orders: Orders) -> None:
    seen: list[Document] = []

    @stage.app.reactive_task(collection="orders", debounce=0, watch_projection=["status"])
    async def _sync(ctx: Context) -> None:
        seen.append(await ctx.get_document())
        seen.append(await ctx.get_document(projection={"total": 1}))
        seen.append(await ctx.get_document(projection=["status"], hint="_id_", max_time_ms=5000))

    await stage.app.start()
    await orders.insert_one({"_id": 7, "status": "paid", "total": 5})
    await stage.next("task.completed")
    assert seen == [
        {"_id": 7, "status": "paid", "total": 5},
        {"_id": 7, "total": 5},
        {"_id": 7, "status": "paid"},
    ]


async def test_get_document_reads_within_a_transaction(stage: Stage, orders: Orders) -> None:
    seen: list[Document] = []

    @stage.app.reactive_task(collection="orders", debounce=0, watch_projection=["status"])
    async def _sync(ctx: Context) -> None:
        async def in_transaction(session: Any) -> None:
            seen.append(await ctx.get_document(session=session))
            await orders_of(stage.app).update_one({"_id": 7}, {"$set": {"note": "mine"}}, session=session)
            seen.append(await ctx.get_document(session=session))

        await stage.app.with_transaction(in_transaction)

    await stage.app.start()
    await orders.insert_one({"_id": 7, "status": "paid"})
    await stage.next("task.completed")
    assert seen == [{"_id": 7, "status": "paid"}, {"_id": 7, "status": "paid", "note": "mine"}]


def orders_of(app: App) -> Any:
    """The collection in the app's own client."""
    return app.database["orders"]


async def test_a_document_outside_the_filter_skips_the_run(stage: Stage, orders: Orders) -> None:
    raised: list[Exception] = []

    @stage.app.reactive_task(collection="orders", debounce=0, filter={"status": "paid"})
    async def _sync(ctx: Context) -> None:
        await orders.update_one({"_id": 7}, {"$set": {"status": "refunded"}})
        try:
            await ctx.get_document()
        except TaskConditionFailedError as error:
            raised.append(error)
            raise

    await stage.app.start()
    await orders.insert_one({"_id": 7, "status": "paid"})
    await stage.next("task.skipped", doc_id=7, attempt=1)
    # An event that arrived during the run may have it look once more.
    await stage.counted(1, status="completed")
    record = await stage.record()
    assert "outside the filter" in str(raised[0])
    assert record.last_error is None
    assert {entry.status for entry in record.execution_history} == {"completed"}
    assert record.last_success is not None


async def test_a_condition_that_failed_skips_the_run_also_when_it_is_swallowed(
    stage: Stage, orders: Orders
) -> None:
    @stage.app.reactive_task(collection="orders", debounce=0)
    async def _sync(ctx: Context) -> None:
        await orders.delete_one({"_id": 7})
        try:
            await ctx.get_document()
        except TaskConditionFailedError:
            return

    await stage.app.start()
    await orders.insert_one({"_id": 7})
    await stage.next("task.skipped", doc_id=7)
    assert stage.heard("task.completed") == []


async def test_a_condition_that_failed_wins_over_what_the_handler_raises_instead(
    stage: Stage, orders: Orders
) -> None:
    @stage.app.reactive_task(collection="orders", debounce=0)
    async def _sync(ctx: Context) -> None:
        await orders.delete_one({"_id": 7})
        try:
            await ctx.get_document()
        except TaskConditionFailedError:
            raise ValueError("wrapped") from None

    await stage.app.start()
    await orders.insert_one({"_id": 7})
    await stage.next("task.skipped", doc_id=7)


async def test_a_handler_may_raise_the_condition_error_itself(stage: Stage, orders: Orders) -> None:
    @stage.app.reactive_task(collection="orders", debounce=0)
    async def _sync(ctx: Context) -> None:
        raise TaskConditionFailedError(ctx.task, ctx.doc_id, "not today")

    await stage.app.start()
    await orders.insert_one({"_id": 7})
    await stage.next("task.skipped", doc_id=7, limit=3)


async def test_values_that_moved_on_run_again_with_the_new_ones(stage: Stage, orders: Orders) -> None:
    seen: list[Document] = []

    @stage.app.reactive_task(collection="orders", debounce=0, watch_projection=["total"])
    async def _sync(ctx: Context) -> None:
        if ctx.watched_values == {"total": 1}:
            await orders.update_one({"_id": 7}, {"$set": {"total": 2}})
        document = await ctx.get_document()
        seen.append(document)

    await stage.app.start()
    await orders.insert_one({"_id": 7, "total": 1})
    await stage.next("task.skipped", doc_id=7)
    await stage.next("task.completed", doc_id=7, attempt=1)
    assert seen == [{"_id": 7, "total": 2}]
    assert (await stage.record()).last_observed_values == {"total": 2}


async def test_values_that_moved_on_unseen_are_planned_from_the_document(
    make_stage: MakeStage, orders: Orders, db: Any
) -> None:
    """The record is older than its document, and no event will say so."""
    planner = make_stage(concurrency=0)
    stage = make_stage()
    seen: list[Document] = []
    for one in (planner, stage):

        @one.app.reactive_task(task="sync", collection="orders", debounce=0, watch_projection=["total"])
        async def _sync(ctx: Context) -> None:
            seen.append(await ctx.get_document())

    await planner.app.start()
    # Neither by a scan is it planned once more.
    await planner.next("reconciliation.finished")
    await orders.insert_one({"_id": 7, "total": 2})
    await planner.planned(1)
    await db["orders_tasks"].update_one({}, {"$set": {"lastObservedValues": {"total": 1}}})
    await stage.app.start()
    await stage.next("task.skipped", doc_id=7)
    await stage.next("task.completed", doc_id=7)
    assert seen == [{"_id": 7, "total": 2}]


# -- deferral


# Points in time are made when the test runs: those of collection are old by then.
IN_AN_HOUR: dict[str, Callable[[datetime], Any]] = {
    "timedelta": lambda now: HOUR,
    "seconds": lambda now: 3600,
    "text": lambda now: "1h",
    "aware": lambda now: now + HOUR,
    "naive": lambda now: (now + HOUR).replace(tzinfo=None),
}


@pytest.mark.parametrize("form", IN_AN_HOUR)
async def test_a_deferred_run_counts_no_attempt_and_waits(stage: Stage, orders: Orders, form: str) -> None:
    until = IN_AN_HOUR[form](Clock().now())

    @stage.app.reactive_task(collection="orders", debounce=0)
    async def _sync(ctx: Context) -> None:
        ctx.defer_current(until)

    await stage.app.start()
    await orders.insert_one({"_id": 7})
    await stage.next("task.deferred", doc_id=7)
    record = await stage.record()
    assert (record.status, record.attempts) == ("pending", 0)
    assert minutes_until(record.next_run_at) == pytest.approx(60, abs=2)
    assert record.execution_history == ()


async def test_a_deferred_run_comes_back_as_the_same_attempt(stage: Stage, orders: Orders) -> None:
    attempts: list[int] = []

    @stage.app.reactive_task(collection="orders", debounce=0, retry_policy=AT_ONCE)
    async def _sync(ctx: Context) -> None:
        attempts.append(ctx.attempt)
        if len(attempts) == 1:
            raise ValueError("first")
        if len(attempts) == 2:
            ctx.defer_current("20ms")

    await stage.app.start()
    await orders.insert_one({"_id": 7})
    await stage.next("task.completed")
    assert attempts == [1, 2, 2]


async def test_the_last_deferral_wins(stage: Stage, orders: Orders) -> None:
    @stage.app.reactive_task(collection="orders", debounce=0)
    async def _sync(ctx: Context) -> None:
        ctx.defer_current("1s")
        ctx.defer_current("1h")

    await stage.app.start()
    await orders.insert_one({"_id": 7})
    await stage.next("task.deferred")
    assert minutes_until((await stage.record()).next_run_at) > 50


async def test_a_deferral_is_ignored_when_the_handler_raises(stage: Stage, orders: Orders) -> None:
    @stage.app.reactive_task(collection="orders", debounce=0, retry_policy=Fixed("10m"))
    async def _sync(ctx: Context) -> None:
        ctx.defer_current("1h")
        raise ValueError("after all")

    await stage.app.start()
    await orders.insert_one({"_id": 7})
    await stage.next("task.retried")
    record = await stage.record()
    assert record.attempts == 1
    assert minutes_until(record.next_run_at) == pytest.approx(10, abs=1)


async def test_a_deferral_is_ignored_when_completion_was_marked(stage: Stage, orders: Orders) -> None:
    @stage.app.reactive_task(collection="orders", debounce=0)
    async def _sync(ctx: Context) -> None:
        await ctx.mark_completed()
        ctx.defer_current("1h")

    await stage.app.start()
    await orders.insert_one({"_id": 7})
    await stage.next("task.completed")
    assert (await stage.record()).status == "completed"


async def test_a_dirty_record_that_was_deferred_runs_at_the_deferrals_time(
    stage: Stage, orders: Orders
) -> None:
    @stage.app.reactive_task(collection="orders", debounce=0, watch_projection=["total"])
    async def _sync(ctx: Context) -> None:
        await orders.update_one({"_id": 7}, {"$set": {"total": 2}})
        await stage.until(lambda: is_dirty(stage))
        ctx.defer_current("1h")

    await stage.app.start()
    await orders.insert_one({"_id": 7, "total": 1})
    await stage.next("task.deferred")
    record = await stage.record()
    assert (record.status, record.attempts) == ("pending", 0)
    assert record.last_observed_values == {"total": 2}
    assert minutes_until(record.next_run_at) > 50


async def is_dirty(stage: Stage) -> bool:
    """Whether data of the running record changed."""
    return await stage.app.count_reactive_tasks(status="processing_dirty") == 1


@pytest.mark.parametrize("until", [-1, "soon", "", None])
async def test_a_deferral_that_is_no_time_is_refused_in_the_handler(
    stage: Stage, orders: Orders, until: Any
) -> None:
    @stage.app.reactive_task(collection="orders", debounce=0, retry_policy=Fixed(0, max_attempts=1))
    async def _sync(ctx: Context) -> None:
        ctx.defer_current(until)

    await stage.app.start()
    await orders.insert_one({"_id": 7})
    event = await stage.next("task.failed")
    assert "defer_current" in event.fields["error"]


# -- throttles


async def test_throttle_all_holds_the_task_back_and_no_other(stage: Stage, orders: Orders) -> None:
    @stage.app.reactive_task(task="throttled", collection="orders", debounce=0)
    async def _throttled(ctx: Context) -> None:
        ctx.throttle_all("1h")

    @stage.app.reactive_task(task="free", collection="orders", debounce=0)
    async def _free(ctx: Context) -> None: ...

    await stage.app.start()
    await orders.insert_one({"_id": 1})
    await stage.next("task.completed", task="throttled", doc_id=1)
    await orders.insert_one({"_id": 2})
    await stage.next("task.completed", task="free", doc_id=2)
    await orders.insert_one({"_id": 3})
    await stage.next("task.completed", task="free", doc_id=3)
    assert await stage.app.count_reactive_tasks("throttled", "pending") == 2


async def test_a_throttle_ends_by_itself(stage: Stage, orders: Orders) -> None:
    @stage.app.reactive_task(task="sync", collection="orders", debounce=0)
    async def _sync(ctx: Context) -> None:
        if ctx.doc_id == 1:
            ctx.throttle_all("300ms")

    await stage.app.start()
    await orders.insert_one({"_id": 1})
    throttled = await stage.next("task.throttled", task="sync")
    await stage.next("task.completed", doc_id=1)
    await orders.insert_one({"_id": 2})
    second = await stage.next("task.started", doc_id=2)
    assert second.at - throttled.at >= timedelta(milliseconds=290)


async def test_the_last_throttle_wins(stage: Stage, orders: Orders) -> None:
    @stage.app.reactive_task(task="sync", collection="orders", debounce=0)
    async def _sync(ctx: Context) -> None:
        ctx.throttle_all("1h")
        ctx.throttle_all(0)

    await stage.app.start()
    await orders.insert_one({"_id": 1})
    await stage.next("task.completed", doc_id=1)
    await orders.insert_one({"_id": 2})
    await stage.next("task.completed", doc_id=2)


async def test_the_last_throttle_of_the_cluster_wins(
    stage: Stage, orders: Orders, db: AsyncDatabase[Document]
) -> None:
    @stage.app.reactive_task(task="sync", collection="orders", debounce=0)
    async def _sync(ctx: Context) -> None:
        for _ in range(20):
            ctx.throttle_all("10h", scope="cluster")
        ctx.throttle_all("1h", scope="cluster")

    await stage.app.start()
    await orders.insert_one({"_id": 1})
    await stage.next("task.completed")
    # What was asked for is written when the app has stopped.
    await stage.app.stop()
    controls = await db["_oplogue_globals"].find_one({"_id": "controls"})
    assert controls is not None
    (control,) = controls["tasks"]
    assert 50 < minutes_until(control["throttledUntil"]) <= 60


async def test_a_throttle_holds_also_when_the_handler_raises(stage: Stage, orders: Orders) -> None:
    @stage.app.reactive_task(task="sync", collection="orders", debounce=0, retry_policy=AT_ONCE)
    async def _sync(ctx: Context) -> None:
        ctx.throttle_all(Clock().now() + HOUR)
        raise ValueError("the service is down")

    @stage.app.reactive_task(task="free", collection="orders", debounce=0)
    async def _free(ctx: Context) -> None: ...

    await stage.app.start()
    await orders.insert_one({"_id": 1})
    await stage.next("task.retried", doc_id=1)
    await orders.insert_one({"_id": 2})
    await stage.next("task.completed", task="free", doc_id=2)
    assert len(stage.heard("task.started", task="sync")) == 1


async def two_stages(
    make_stage: MakeStage, handler: Callable[[Context], Awaitable[None]]
) -> tuple[Stage, Stage]:
    """Two instances with the same task; the first plans and runs, the second starts later."""
    first, second = make_stage(instance_id="first"), make_stage(instance_id="second")
    for stage in (first, second):
        stage.app.reactive_task(task="sync", collection="orders", debounce=0)(handler)

        @stage.app.reactive_task(task="free", collection="orders", debounce=0, priority=-1)
        async def _free(ctx: Context) -> None: ...

    await first.app.start()
    return first, second


async def test_a_throttle_of_one_instance_does_not_hold_another(
    make_stage: MakeStage, orders: Orders
) -> None:
    async def handler(ctx: Context) -> None:
        if ctx.doc_id == 1:
            ctx.throttle_all("1h", scope="instance")

    first, second = await two_stages(make_stage, handler)
    await orders.insert_one({"_id": 1})
    await first.next("task.completed", task="sync", doc_id=1)
    await orders.insert_one({"_id": 2})
    await second.app.start()
    await second.next("task.completed", task="sync", doc_id=2)


async def test_a_throttle_of_the_cluster_holds_another_instance_too(
    make_stage: MakeStage, orders: Orders
) -> None:
    async def handler(ctx: Context) -> None:
        ctx.throttle_all("1h", scope="cluster")

    first, second = await two_stages(make_stage, handler)
    await orders.insert_one({"_id": 1})
    await first.next("task.completed", task="sync", doc_id=1)
    await first.app.stop()
    await orders.insert_one({"_id": 2})
    await second.app.start()
    await second.next("task.completed", task="free", doc_id=2)
    await orders.insert_one({"_id": 3})
    await second.next("task.completed", task="free", doc_id=3)
    assert await second.app.count_reactive_tasks("sync", "pending") == 2


async def test_resuming_a_task_ends_its_throttle(stage: Stage, orders: Orders) -> None:
    @stage.app.reactive_task(task="sync", collection="orders", debounce=0)
    async def _sync(ctx: Context) -> None:
        if ctx.doc_id == 1:
            ctx.throttle_all("1h", scope="cluster")

    await stage.app.start()
    await orders.insert_one({"_id": 1})
    await stage.next("task.completed", doc_id=1)
    await orders.insert_one({"_id": 2})
    await stage.planned(1)
    await stage.app.resume_task("sync")
    await stage.next("task.completed", doc_id=2, limit=3)


async def test_an_unknown_scope_is_refused_in_the_handler(stage: Stage, orders: Orders) -> None:
    wrong: Any = "galaxy"

    @stage.app.reactive_task(
        task="sync", collection="orders", debounce=0, retry_policy=Fixed(0, max_attempts=1)
    )
    async def _sync(ctx: Context) -> None:
        ctx.throttle_all("1h", scope=wrong)

    @stage.app.reactive_task(
        task="plain", collection="orders", debounce=0, retry_policy=Fixed(0, max_attempts=1)
    )
    def _plain(ctx: Context) -> None:
        ctx.throttle_all("1h", scope=wrong)

    await stage.app.start()
    await orders.insert_one({"_id": 1})
    assert "galaxy" in (await stage.next("task.failed", task="sync")).fields["error"]
    assert "galaxy" in (await stage.next("task.failed", task="plain", limit=3)).fields["error"]


# -- completion


async def test_mark_completed_writes_at_once(stage: Stage, orders: Orders) -> None:
    statuses: list[str] = []

    @stage.app.reactive_task(collection="orders", debounce=0)
    async def _sync(ctx: Context) -> None:
        await ctx.mark_completed()
        statuses.append((await stage.record()).status)

    await stage.app.start()
    await orders.insert_one({"_id": 7})
    await stage.next("task.completed", doc_id=7)
    assert statuses == ["completed"]


async def test_a_durable_completion_stands_when_the_handler_raises_later(
    stage: Stage, orders: Orders
) -> None:
    @stage.app.reactive_task(collection="orders", debounce=0)
    async def _sync(ctx: Context) -> None:
        await ctx.mark_completed()
        raise ValueError("too late")

    await stage.app.start()
    await orders.insert_one({"_id": 7})
    await stage.next("task.completed", doc_id=7)
    record = await stage.record()
    assert (record.status, record.last_error) == ("completed", None)


async def test_mark_completed_twice_is_once(stage: Stage, orders: Orders) -> None:
    @stage.app.reactive_task(collection="orders", debounce=0)
    async def _sync(ctx: Context) -> None:
        await ctx.mark_completed()
        await ctx.mark_completed()

    await stage.app.start()
    await orders.insert_one({"_id": 7})
    await stage.next("task.completed", doc_id=7)
    assert len((await stage.record()).execution_history) == 1


async def test_a_change_during_a_marked_run_runs_again(stage: Stage, orders: Orders) -> None:
    @stage.app.reactive_task(collection="orders", debounce=0, watch_projection=["total"])
    async def _sync(ctx: Context) -> None:
        if ctx.watched_values == {"total": 1}:
            await orders.update_one({"_id": 7}, {"$set": {"total": 2}})
            await stage.until(lambda: is_dirty(stage))
        await ctx.mark_completed()

    await stage.app.start()
    await orders.insert_one({"_id": 7, "total": 1})
    await stage.next("task.completed", doc_id=7)
    await stage.next("task.completed", doc_id=7)
    record = await stage.record()
    assert (record.status, record.last_observed_values) == ("completed", {"total": 2})


async def test_a_completion_in_a_committed_transaction_is_exactly_one_effect(
    stage: Stage, orders: Orders
) -> None:
    @stage.app.reactive_task(collection="orders", debounce=0)
    async def _sync(ctx: Context) -> None:
        async def effect(session: Any) -> None:
            await stage.app.database["effects"].insert_one({"order": ctx.doc_id}, session=session)
            await ctx.mark_completed(session=session)

        await stage.app.with_transaction(effect)

    await stage.app.start()
    await orders.insert_one({"_id": 7})
    await stage.next("task.completed", doc_id=7)
    record = await stage.record()
    assert (record.status, record.attempts) == ("completed", 1)
    assert await stage.app.database["effects"].count_documents({}) == 1


async def test_a_committed_completion_stands_when_the_handler_raises_later(
    stage: Stage, orders: Orders
) -> None:
    @stage.app.reactive_task(collection="orders", debounce=0, retry_policy=AT_ONCE)
    async def _sync(ctx: Context) -> None:
        await stage.app.with_transaction(lambda session: ctx.mark_completed(session=session))
        raise ValueError("too late")

    await stage.app.start()
    await orders.insert_one({"_id": 7})
    await stage.next("task.completed", doc_id=7)
    record = await stage.record()
    assert (record.status, record.attempts, record.last_error) == ("completed", 1, None)


async def test_an_aborted_transaction_is_a_failed_attempt_without_its_effect(
    stage: Stage, orders: Orders
) -> None:
    @stage.app.reactive_task(collection="orders", debounce=0, retry_policy=AT_ONCE)
    async def _sync(ctx: Context) -> None:
        async def effect(session: Any) -> None:
            await stage.app.database["effects"].insert_one({"attempt": ctx.attempt}, session=session)
            await ctx.mark_completed(session=session)
            if ctx.attempt == 1:
                raise ValueError("abort")

        await stage.app.with_transaction(effect)

    await stage.app.start()
    await orders.insert_one({"_id": 7})
    assert (await stage.next("task.retried", attempt=1)).fields["error"] == "ValueError: abort"
    await stage.next("task.completed", attempt=2)
    effects = await stage.app.database["effects"].find({}, {"_id": 0}).to_list()
    assert effects == [{"attempt": 2}]


async def test_a_transaction_that_was_never_committed_is_a_failed_attempt(
    stage: Stage, orders: Orders
) -> None:
    @stage.app.reactive_task(collection="orders", debounce=0, retry_policy=AT_ONCE)
    async def _sync(ctx: Context) -> None:
        if ctx.attempt > 1:
            return
        async with stage.app.client.start_session() as session:
            await session.start_transaction()
            await ctx.mark_completed(session=session)
            await session.abort_transaction()

    await stage.app.start()
    await orders.insert_one({"_id": 7})
    assert "not committed" in (await stage.next("task.retried", attempt=1)).fields["error"]
    await stage.next("task.completed", attempt=2)


async def test_a_transaction_that_calls_back_twice_completes_once(stage: Stage, orders: Orders) -> None:
    calls: list[int] = []

    @stage.app.reactive_task(collection="orders", debounce=0, retry_policy=AT_ONCE)
    async def _sync(ctx: Context) -> None:
        async def effect(session: Any) -> None:
            calls.append(1)
            await ctx.mark_completed(session=session)
            counters = stage.app.database["counters"]
            await counters.update_one({"_id": 1}, {"$inc": {"n": 1}}, session=session)
            if len(calls) == 1:
                # Another transaction wins the document: this one is to be tried again.
                await session.abort_transaction()
                raise transient()

        await stage.app.with_transaction(effect)

    await stage.app.start()
    await stage.app.database["counters"].insert_one({"_id": 1, "n": 0})
    await orders.insert_one({"_id": 7})
    await stage.next("task.completed", doc_id=7, attempt=1)
    assert len(calls) == 2
    assert await stage.app.database["counters"].find_one() == {"_id": 1, "n": 1}


def transient() -> Exception:
    """What the driver raises for a write conflict."""
    return OperationFailure("WriteConflict", 112, {"errorLabels": ["TransientTransactionError"]})


async def steal(stage: Stage) -> None:
    """Another owner has claimed the record."""
    await stage.app.database["orders_tasks"].update_one({}, {"$set": {"oplogue.token": "another's"}})


async def test_a_lost_lease_aborts_the_transaction(stage: Stage, orders: Orders) -> None:
    raised: list[str] = []

    @stage.app.reactive_task(collection="orders", debounce=0)
    async def _sync(ctx: Context) -> None:
        async def effect(session: Any) -> None:
            await stage.app.database["effects"].insert_one({"order": ctx.doc_id}, session=session)
            await steal(stage)
            try:
                await ctx.mark_completed(session=session)
            except LeaseLostError as error:
                raised.append(str(error))
                raise

        await stage.app.with_transaction(effect)

    await stage.app.start()
    await stage.app.database["effects"].insert_one({"_id": "there"})
    await orders.insert_one({"_id": 7})
    await stage.next("task.lease_lost", doc_id=7)
    assert len(raised) == 1
    assert await stage.app.database["effects"].count_documents({}) == 1
    assert (await stage.record()).status == "processing"


async def test_mark_completed_of_a_lost_record_raises(stage: Stage, orders: Orders) -> None:
    raised: list[str] = []

    @stage.app.reactive_task(collection="orders", debounce=0)
    async def _sync(ctx: Context) -> None:
        await steal(stage)
        try:
            await ctx.mark_completed()
        except LeaseLostError as error:
            raised.append(str(error))

    await stage.app.start()
    await orders.insert_one({"_id": 7})
    await stage.next("task.lease_lost", doc_id=7)
    assert len(raised) == 1


async def test_an_outcome_of_a_lost_record_is_not_written(stage: Stage, orders: Orders) -> None:
    @stage.app.reactive_task(collection="orders", debounce=0)
    async def _sync(ctx: Context) -> None:
        await steal(stage)

    await stage.app.start()
    await orders.insert_one({"_id": 7})
    await stage.next("task.lease_lost", doc_id=7)
    assert (await stage.record()).status == "processing"


# -- cancellation


async def test_cancelled_is_set_when_the_timeout_passes(stage: Stage, orders: Orders) -> None:
    seen: list[bool] = []

    @stage.app.reactive_task(
        collection="orders", debounce=0, timeout="50ms", retry_policy=Fixed(0, max_attempts=1)
    )
    async def _sync(ctx: Context) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(ctx.cancelled.is_set())

    await stage.app.start()
    await orders.insert_one({"_id": 7})
    event = await stage.next("task.failed")
    assert event.fields["error"].startswith("TimeoutError")
    assert seen == [True]


async def test_cancelled_is_set_when_the_lease_is_lost(make_stage: MakeStage, orders: Orders) -> None:
    stage = make_stage(lease="1500ms")
    seen = asyncio.Event()

    @stage.app.reactive_task(collection="orders", debounce=0)
    async def _sync(ctx: Context) -> None:
        await steal(stage)
        await ctx.cancelled.wait()
        with pytest.raises(LeaseLostError):
            await ctx.get_document()
        seen.set()

    await stage.app.start()
    await orders.insert_one({"_id": 7})
    await stage.next("task.lease_lost", doc_id=7)
    await within(seen.wait())


async def test_a_handler_that_goes_on_after_its_lease_was_lost_is_cancelled(
    make_stage: MakeStage, orders: Orders
) -> None:
    stage = make_stage(lease="1500ms")
    cancelled = asyncio.Event()

    @stage.app.reactive_task(collection="orders", debounce=0)
    async def _sync(ctx: Context) -> None:
        await steal(stage)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    await stage.app.start()
    await orders.insert_one({"_id": 7})
    await within(cancelled.wait())
    assert len(stage.heard("task.lease_lost")) == 1


# -- plain functions


async def test_a_plain_function_has_the_same_names_without_await(stage: Stage, orders: Orders) -> None:
    seen: list[Any] = []

    @stage.app.reactive_task(task="reads", collection="orders", debounce=0)
    def _reads(ctx: Context) -> None:
        seen.append((ctx.task, ctx.attempt, threading.current_thread() is threading.main_thread()))
        seen.append(ctx.get_document(projection={"total": 1}))
        ctx.mark_completed()  # pyright: ignore[reportUnusedCoroutine]

    await stage.app.start()
    await orders.insert_one({"_id": 7, "total": 1, "note": "x"})
    await stage.next("task.completed", task="reads")
    assert seen == [("reads", 1, False), {"_id": 7, "total": 1}]


@pytest.mark.parametrize("form", ["decorated", "bare"])
async def test_a_plain_function_around_a_coroutine_function_awaits_the_context(
    stage: Stage, orders: Orders, form: str
) -> None:
    seen: list[Any] = []

    async def sync(ctx: Context) -> None:
        seen.append(await ctx.get_document())
        ctx.throttle_all("1h")
        await ctx.mark_completed()

    @functools.wraps(sync)
    def decorated(ctx: Context) -> Awaitable[None]:
        return sync(ctx)

    def bare(ctx: Context) -> Awaitable[None]:
        return sync(ctx)

    handler: Callable[[Context], Awaitable[None]] = decorated if form == "decorated" else bare
    stage.app.reactive_task(task="sync", collection="orders", debounce=0)(handler)
    await stage.app.start()
    await orders.insert_one({"_id": 7})
    await stage.next("task.completed")
    assert seen == [{"_id": 7}]
    assert stage.heard("task.throttled", task="sync")


async def test_a_plain_function_may_defer_and_throttle(stage: Stage, orders: Orders) -> None:
    @stage.app.reactive_task(task="sync", collection="orders", debounce=0)
    def _sync(ctx: Context) -> None:
        ctx.defer_current("1h")
        ctx.throttle_all("1h")

    await stage.app.start()
    await orders.insert_one({"_id": 7})
    await stage.next("task.deferred")
    assert stage.heard("task.throttled", task="sync")
    assert minutes_until((await stage.record()).next_run_at) > 50


async def test_a_plain_functions_condition_skips_the_run(stage: Stage, orders: Orders) -> None:
    fetching, deleted = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    @stage.app.reactive_task(collection="orders", debounce=0)
    def _sync(ctx: Context) -> None:
        loop.call_soon_threadsafe(fetching.set)
        assert deleted.wait(10)
        _ = ctx.get_document()

    await stage.app.start()
    await orders.insert_one({"_id": 7})
    await within(fetching.wait())
    await orders.delete_one({"_id": 7})
    deleted.set()
    await stage.next("task.skipped", doc_id=7)


async def test_a_plain_function_that_raises_is_a_failed_attempt(stage: Stage, orders: Orders) -> None:
    @stage.app.reactive_task(collection="orders", debounce=0, retry_policy=Fixed(0, max_attempts=1))
    def _sync(ctx: Context) -> None:
        raise ValueError("no")

    await stage.app.start()
    await orders.insert_one({"_id": 7})
    assert (await stage.next("task.failed")).fields["error"] == "ValueError: no"


CORRELATION: contextvars.ContextVar[str] = contextvars.ContextVar("correlation", default="none")


async def test_context_variables_of_middleware_reach_threads(make_stage: MakeStage, orders: Orders) -> None:
    async def correlate(ctx: Context, call_next: Callable[[], Awaitable[None]]) -> None:
        CORRELATION.set(f"run of {ctx.doc_id}")
        await call_next()

    stage = make_stage(middleware=correlate)
    seen: dict[str, str] = {}

    @stage.app.reactive_task(task="plain", collection="orders", debounce=0)
    def _plain(ctx: Context) -> None:
        seen["plain"] = CORRELATION.get()

    @stage.app.reactive_task(task="async", collection="orders", debounce=0)
    async def _async(ctx: Context) -> None:
        seen["async"] = CORRELATION.get()

    await stage.app.start()
    await orders.insert_one({"_id": 7})
    await stage.next("task.completed", task="plain")
    await stage.next("task.completed", task="async")
    assert seen == {"plain": "run of 7", "async": "run of 7"}
    assert CORRELATION.get() == "none"


# -- middleware


async def test_the_first_middleware_is_outermost(make_stage: MakeStage, orders: Orders) -> None:
    order: list[str] = []

    def layer(name: str) -> Any:
        async def middleware(ctx: Context, call_next: Callable[[], Awaitable[None]]) -> None:
            order.append(f"{name} before")
            await call_next()
            order.append(f"{name} after")

        return middleware

    stage = make_stage(middleware=[layer("outer"), layer("inner")])

    @stage.app.reactive_task(collection="orders", debounce=0)
    async def _sync(ctx: Context) -> None:
        order.append("handler")

    await stage.app.start()
    await orders.insert_one({"_id": 7})
    await stage.next("task.completed")
    assert order == ["outer before", "inner before", "handler", "inner after", "outer after"]


async def test_middleware_awaits_the_context_also_around_a_plain_function(
    make_stage: MakeStage, orders: Orders
) -> None:
    seen: list[Document] = []

    async def look(ctx: Context, call_next: Callable[[], Awaitable[None]]) -> None:
        seen.append(await ctx.get_document())
        await call_next()
        await ctx.mark_completed()

    stage = make_stage(middleware=look)

    @stage.app.reactive_task(collection="orders", debounce=0)
    def _plain(ctx: Context) -> None:
        seen.append(ctx.get_document())  # type: ignore[arg-type]  # a plain function does not await it

    await stage.app.start()
    await orders.insert_one({"_id": 7})
    await stage.next("task.completed")
    assert seen == [{"_id": 7}, {"_id": 7}]


async def test_middleware_sees_what_the_handler_raises(make_stage: MakeStage, orders: Orders) -> None:
    seen: list[str] = []

    async def watch(ctx: Context, call_next: Callable[[], Awaitable[None]]) -> None:
        try:
            await call_next()
        except ValueError as error:
            seen.append(str(error))
            raise RuntimeError("translated") from error

    stage = make_stage(middleware=watch)

    @stage.app.reactive_task(collection="orders", debounce=0, retry_policy=Fixed(0, max_attempts=1))
    async def _sync(ctx: Context) -> None:
        raise ValueError("no")

    await stage.app.start()
    await orders.insert_one({"_id": 7})
    assert (await stage.next("task.failed")).fields["error"] == "RuntimeError: translated"
    assert seen == ["no"]


async def test_middleware_that_raises_before_the_handler_fails_the_attempt(
    make_stage: MakeStage, orders: Orders
) -> None:
    async def refuse(ctx: Context, call_next: Callable[[], Awaitable[None]]) -> None:
        if ctx.attempt == 1:
            raise ValueError("not yet")
        await call_next()

    stage = make_stage(middleware=refuse)
    ran: list[int] = []

    @stage.app.reactive_task(collection="orders", debounce=0, retry_policy=AT_ONCE)
    async def _sync(ctx: Context) -> None:
        ran.append(ctx.attempt)

    await stage.app.start()
    await orders.insert_one({"_id": 7})
    assert (await stage.next("task.retried")).fields["error"] == "ValueError: not yet"
    await stage.next("task.completed")
    assert ran == [2]


async def test_middleware_sees_a_document_that_does_not_fit(make_stage: MakeStage, orders: Orders) -> None:
    seen: list[str] = []

    @dataclass
    class Order:
        total: int

    async def tracking(_ctx: Context, call_next: Callable[[], Awaitable[None]]) -> None:
        try:
            await call_next()
        except Exception as error:
            seen.append(str(error))
            raise

    stage = make_stage(middleware=tracking)

    @stage.app.reactive_task(collection="orders", debounce=0, retry_policy=Fixed(0, max_attempts=1))
    async def _sync(_order: Order) -> None: ...

    await stage.app.start()
    await orders.insert_one({"_id": 1, "total": "much"})
    assert "Order.total" in (await stage.next("task.failed")).fields["error"]
    assert len(seen) == 1
    assert "Order.total" in seen[0]


async def test_middleware_that_calls_nobody_completes_the_run_in_its_place(
    make_stage: MakeStage, orders: Orders
) -> None:
    async def guarding(_ctx: Context, _call_next: Callable[[], Awaitable[None]]) -> None: ...

    stage, ran = make_stage(middleware=guarding), asyncio.Event()

    @stage.app.reactive_task(collection="orders", debounce=0)
    async def _sync(ctx: Context) -> None:
        ran.set()

    await stage.app.start()
    await orders.insert_one({"_id": 1})
    await stage.next("task.completed")
    assert not ran.is_set()


async def test_middleware_that_swallows_an_error_completes_the_run(
    make_stage: MakeStage, orders: Orders
) -> None:
    async def swallow(ctx: Context, call_next: Callable[[], Awaitable[None]]) -> None:
        with pytest.raises(ValueError, match="no"):
            await call_next()

    stage = make_stage(middleware=[swallow])

    @stage.app.reactive_task(collection="orders", debounce=0)
    async def _sync(ctx: Context) -> None:
        raise ValueError("no")

    await stage.app.start()
    await orders.insert_one({"_id": 7})
    await stage.next("task.completed")


async def test_contexts_of_concurrent_runs_are_apart(stage: Stage, orders: Orders) -> None:
    gate = Gate()
    seen: dict[int, int] = {}

    @stage.app.reactive_task(collection="orders", debounce=0, watch_projection=["total"])
    async def _sync(ctx: Context) -> None:
        await gate()
        seen[ctx.doc_id] = ctx.watched_values["total"]

    await stage.app.start()
    await orders.insert_many([{"_id": number, "total": 10 * number} for number in range(5)])
    await gate.reached(5)
    gate.open()
    for number in range(5):
        await stage.next("task.completed", doc_id=number)
    assert seen == {number: 10 * number for number in range(5)}
