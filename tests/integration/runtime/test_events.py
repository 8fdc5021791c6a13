"""What subscribers hear of a running app."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo import AsyncMongoClient
from pymongo.asynchronous.collection import AsyncCollection
from tests.integration.runtime.conftest import MakeStage
from tests.support.running import Gate, Stage, within

from oplogue import Context, Evolution, Fixed
from oplogue.events import (
    CountEvent,
    Event,
    PartFailure,
    RunDeferred,
    RunFailed,
    RunRetried,
    StreamOpened,
    TaskPaused,
    TasksCounted,
    TaskThrottled,
)

Document = dict[str, Any]
Orders = AsyncCollection[Document]


def define(stage: Stage, name: str = "sync", **options: Any) -> None:
    """A task that does nothing."""

    @stage.app.reactive_task(task=name, collection="orders", debounce=0, **options)
    async def _sync(ctx: Context) -> None: ...


async def test_failures_carry_the_exception_and_when_the_next_run_is(
    stage: Stage, orders: Orders, caplog: pytest.LogCaptureFixture
) -> None:
    @stage.app.reactive_task(collection="orders", debounce=0, retry_policy=Fixed("0s", max_attempts=2))
    async def sync(ctx: Context) -> None:
        raise ValueError(f"attempt {ctx.attempt}")

    @stage.app.reactive_task(collection="orders", debounce=0, retry_policy=Fixed("1h"))
    def plain(ctx: Context) -> None:
        raise KeyError(ctx.doc_id)

    await stage.app.start()
    await orders.insert_one({"_id": 7})
    first = await stage.next("task.retried", task="sync")
    last = await stage.next("task.failed", task="sync")
    other = await stage.next("task.retried", task="plain")
    assert isinstance(first, RunRetried)
    assert isinstance(last, RunFailed)
    assert isinstance(other, RunRetried)
    assert (first.seconds, other.seconds) == (0, 3600)
    assert (str(first.exception), str(last.exception)) == ("attempt 1", "attempt 2")
    assert isinstance(other.exception, KeyError)
    written = [line for line in caplog.records if getattr(line, "code", "") == "task.failed"]
    assert [line.exc_info[1] for line in written if line.exc_info] == [last.exception]
    assert "of 7 failed for good at attempt 2: ValueError: attempt 2" in written[0].getMessage()


async def test_a_run_that_times_out_shows_where_it_hung(stage: Stage, orders: Orders) -> None:
    gate = Gate()

    @stage.app.reactive_task(collection="orders", debounce=0, timeout="50ms", retry_policy=Fixed("1h"))
    async def sync(ctx: Context) -> None:
        await gate()

    await stage.app.start()
    await orders.insert_one({"_id": 1})
    event = await stage.next("task.retried")
    assert isinstance(event, RunRetried)
    trace, places = event.exception.__traceback__ if event.exception else None, list[str]()
    while trace is not None:
        places.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    assert "sync" in places


async def test_a_deferral_says_for_how_long(stage: Stage, orders: Orders) -> None:
    @stage.app.reactive_task(collection="orders", debounce=0)
    async def sync(ctx: Context) -> None:
        late = ctx.doc_id == 2
        ctx.defer_current(datetime.now(UTC) + timedelta(hours=1) if late else "2h")  # noqa: TID251

    await stage.app.start()
    await orders.insert_many([{"_id": 1}, {"_id": 2}])
    relative, absolute = [await stage.next("task.deferred", doc_id=id_) for id_ in (1, 2)]
    assert isinstance(relative, RunDeferred)
    assert isinstance(absolute, RunDeferred)
    assert relative.seconds == 7200
    assert 3500 < absolute.seconds <= 3600


async def test_handlers_that_throttle_side_by_side_are_reported_once(stage: Stage, orders: Orders) -> None:
    gate = Gate()

    @stage.app.reactive_task(collection="orders", debounce=0)
    async def sync(ctx: Context) -> None:
        await gate()
        ctx.throttle_all("1h", scope="cluster")

    await stage.app.start()
    await orders.insert_many([{"_id": id_} for id_ in range(3)])
    await gate.reached(3)
    gate.open()
    for id_ in range(3):
        await stage.next("task.completed", doc_id=id_)
    (event,) = stage.heard("task.throttled")
    assert isinstance(event, TaskThrottled)
    assert (event.task, event.seconds, event.scope) == ("sync", 3600, "cluster")


async def test_what_operators_ask_for_is_reported_where_they_asked(
    make_stage: MakeStage, orders: Orders
) -> None:
    here, there = make_stage(instance_id="here"), make_stage(instance_id="there")
    for stage in (here, there):
        define(stage)
        await stage.app.start()
    await orders.insert_many([{"_id": 1}, {"_id": 2}])
    await here.counted(2, status="completed")
    noon = datetime(2100, 1, 1, 12, tzinfo=UTC)
    await there.app.pause_task("sync")
    await there.app.pause_task("sync", until=noon)
    await there.app.pause_task("sync", until="1h")
    await there.app.resume_task("sync")
    assert await there.app.retry_reactive_tasks("sync") == 2
    assert await there.app.retry_reactive_tasks("sync", ids=["none"]) == 0
    await there.counted(2, status="completed")
    assert await there.app.delete_reactive_tasks(source_doc_filter={"_id": 1}) == 1
    await there.app.reconcile()
    assert await there.app.run_cleanup() == 0

    asked = [
        event
        for event in there.events
        if event.code.split(".")[0] == "records"
        or event.code in ("task.paused", "task.resumed", "reconciliation.requested", "cleanup.finished")
    ]
    assert [event.code for event in asked] == [
        "task.paused",
        "task.paused",
        "task.paused",
        "task.resumed",
        "records.retried",
        "records.deleted",
        "reconciliation.requested",
        "cleanup.finished",
    ]
    pauses = [event.until for event in asked if isinstance(event, TaskPaused)]
    assert pauses[:2] == [None, noon]
    assert pauses[2] is not None
    assert timedelta(minutes=59) < pauses[2] - asked[2].at <= timedelta(hours=1)
    assert [(event.tasks, event.count) for event in asked if isinstance(event, TasksCounted)] == [
        (["sync"], 2),
        (["sync"], 1),
    ]
    assert isinstance(asked[-1], CountEvent)
    assert {event.instance_id for event in asked} == {"there"}
    assert not here.heard("task.paused")


async def test_a_stream_that_broke_is_reported_open_again(
    stage: Stage, client: AsyncMongoClient[Document]
) -> None:
    define(stage)
    await stage.app.start()
    opened = await stage.next("planner.stream_opened")
    assert isinstance(opened, StreamOpened)
    assert opened.tasks == ["sync"]
    await _kill_streams(client, stage.app.database.name)
    await stage.next("planner.stream_error")
    again = await stage.next("planner.stream_opened")
    assert (again.at > opened.at, again.fields) == (True, opened.fields)


async def _kill_streams(client: AsyncMongoClient[Document], database: str) -> None:
    streams = {"cursor.originatingCommand.pipeline.0.$changeStream": {"$exists": True}}
    of_database: Document = {"ns": {"$regex": f"^{database}\\."}, **streams}
    listed = await client.admin.aggregate([{"$currentOp": {"idleCursors": True}}, {"$match": of_database}])
    (found,) = await listed.to_list()
    source, _, collection = found["ns"].partition(".")
    await client[source].command("killCursors", collection, cursors=[found["cursor"]["cursorId"]])


async def test_an_instance_that_stops_says_what_still_runs(make_stage: MakeStage, orders: Orders) -> None:
    stage, gate = make_stage(shutdown_timeout="50ms"), Gate()

    @stage.app.reactive_task(collection="orders", debounce=0)
    async def sync(ctx: Context) -> None:
        await gate()

    await stage.app.start()
    await orders.insert_many([{"_id": 1}, {"_id": 2}])
    await gate.reached(2)
    await within(stage.app.stop())
    told = [event for event in stage.events if isinstance(event, TasksCounted)]
    assert [(event.code, event.count, event.tasks) for event in told] == [
        ("instance.stopping", 2, ["sync"]),
        ("instance.shutdown_timeout", 2, ["sync"]),
    ]
    assert {event.fields["doc_id"] for event in stage.heard("task.released")} == {1, 2}


async def test_what_was_claimed_and_never_started_is_given_back_in_silence(
    make_stage: MakeStage, orders: Orders
) -> None:
    stage, gate = make_stage(concurrency=1), Gate()

    @stage.app.reactive_task(collection="orders", debounce=0)
    async def sync(ctx: Context) -> None:
        await gate()

    await orders.insert_many([{"_id": id_} for id_ in range(10)])
    await stage.app.start()
    await gate.reached()
    gate.open()
    await stage.next("task.completed")
    await stage.app.stop()
    assert not stage.heard("task.released")
    assert len(stage.heard("task.started")) == len(stage.heard("task.completed"))


async def test_an_instance_with_older_code_says_that_it_leaves_a_task_to_newer(make_stage: MakeStage) -> None:
    old, new = make_stage(lease="1s"), make_stage()
    define(old)
    define(new, evolution=Evolution(handler_version=3, on_handler_version_change="reprocess_all"))
    await old.app.start()
    await new.app.start()
    event = await old.next("task.superseded", task="sync")
    assert event.fields["version"] == 3
    assert not new.heard("task.superseded")


async def test_a_subscriber_that_never_ends_does_not_keep_the_instance(
    make_stage: MakeStage, caplog: pytest.LogCaptureFixture
) -> None:
    stage, called = make_stage(lease="1s"), asyncio.Event()

    @stage.app.on("*")
    async def forever(_event: Event) -> None:
        called.set()
        await asyncio.Event().wait()

    define(stage)
    await stage.app.start()
    await within(called.wait())
    await within(stage.app.stop())
    assert "calls were cancelled, 0 of them still run" in caplog.text


async def test_a_part_of_ours_that_breaks_shows_where(
    make_stage: MakeStage, caplog: pytest.LogCaptureFixture
) -> None:
    calls = [0]

    def broken_once(_task: str) -> bool:
        calls[0] += 1
        if calls[0] == 1:
            raise ZeroDivisionError("in the filter")
        return True

    stage = make_stage(task_filter=broken_once)
    define(stage)
    await stage.app.start()
    event = await stage.next("part.failed")
    assert isinstance(event, PartFailure)
    assert isinstance(event.exception, ZeroDivisionError)
    (line,) = [line for line in caplog.records if line.levelno == logging.ERROR]
    assert line.exc_info is not None
