"""How the slots of an instance are shared, and how its runs end: priorities, shares, pauses, timeouts, shutdown."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from tests.integration.runtime.conftest import MakeStage
from tests.support.running import Gate, Stage, within

from oplogue import App, ConfigurationError, Context, Fixed, UnknownTaskError
from oplogue.clock import Clock

Document = dict[str, Any]
Orders = AsyncCollection[Document]
ONCE = Fixed(0, max_attempts=1)


def numbered(count: int, start: int = 0) -> list[Document]:
    """So many documents."""
    return [{"_id": number} for number in range(start, start + count)]


async def backlog(
    make_stage: MakeStage, stage: Stage, db: AsyncDatabase[Document], sizes: dict[str, int]
) -> None:
    """Records of the stage's tasks, planned by another instance that runs nothing, due when the stage starts."""
    planner = make_stage(concurrency=0)
    planner.app._tasks.update(stage.app._tasks)  # pyright: ignore[reportPrivateUsage]
    await planner.app.start()
    for collection, size in sizes.items():
        await db[collection].insert_many(numbered(size))
    tasks = [task.definition for task in stage.app._tasks.values()]  # pyright: ignore[reportPrivateUsage]
    await planner.planned(sum(sizes[task.source.collection] for task in tasks))
    await planner.app.stop()


def order_of(stage: Stage) -> list[str]:
    """The tasks of all runs, in the order of their starts."""
    return [event.fields["task"] for event in stage.heard("task.started")]


# -- sharing


async def test_no_slots_plan_and_run_nothing(make_stage: MakeStage, orders: Orders) -> None:
    stage = make_stage(concurrency=0)

    @stage.app.reactive_task(collection="orders", debounce=0)
    async def _sync(ctx: Context) -> None: ...

    await stage.app.start()
    await orders.insert_many(numbered(3))
    await stage.planned(3)
    await stage.app.stop()
    assert stage.heard("task.started") == []


async def test_a_higher_priority_runs_first(make_stage: MakeStage, db: AsyncDatabase[Document]) -> None:
    stage = make_stage(concurrency=1)
    for name, priority in {"low": -1, "normal": 0, "high": 5}.items():

        @stage.app.reactive_task(task=name, collection="orders", debounce=0, priority=priority)
        async def _sync(ctx: Context) -> None: ...

    await backlog(make_stage, stage, db, {"orders": 3})
    await stage.app.start()
    await stage.until(lambda: len(stage.heard("task.completed")) == 9)
    assert order_of(stage) == ["high"] * 3 + ["normal"] * 3 + ["low"] * 3


async def test_a_higher_priority_runs_first_also_in_another_collection(
    make_stage: MakeStage, db: AsyncDatabase[Document]
) -> None:
    stage = make_stage(concurrency=1)
    for name, priority in {"low": -1, "normal": 0, "high": 5}.items():

        @stage.app.reactive_task(task=name, collection=name, debounce=0, priority=priority)
        async def _sync(ctx: Context) -> None: ...

    await backlog(make_stage, stage, db, {"low": 3, "normal": 3, "high": 3})
    await stage.app.start()
    await stage.until(lambda: len(stage.heard("task.completed")) == 9)
    assert order_of(stage) == ["high"] * 3 + ["normal"] * 3 + ["low"] * 3


async def test_a_small_task_is_not_behind_a_large_backlog(
    make_stage: MakeStage, db: AsyncDatabase[Document]
) -> None:
    stage = make_stage(concurrency=4)
    for name in ("big", "small"):

        @stage.app.reactive_task(task=name, collection="orders", debounce=0, filter={name: {"$ne": False}})
        async def _sync(ctx: Context) -> None: ...

    planner = make_stage(concurrency=0)
    planner.app._tasks.update(stage.app._tasks)  # pyright: ignore[reportPrivateUsage]
    await planner.app.start()
    await db["orders"].insert_many([{"_id": number, "small": False} for number in range(300)])
    await planner.planned(300)
    await db["orders"].insert_many([{"_id": -number, "big": False} for number in range(1, 3)])
    await planner.planned(302)
    await planner.app.stop()
    await stage.app.start()
    await stage.until(lambda: len(stage.heard("task.completed", task="small")) == 2)
    assert "small" in order_of(stage)[:4]


async def test_a_small_collection_is_not_behind_a_large_one(
    make_stage: MakeStage, db: AsyncDatabase[Document]
) -> None:
    stage = make_stage(concurrency=4)
    for name in ("big", "small"):

        @stage.app.reactive_task(task=name, collection=name, debounce=0)
        async def _sync(ctx: Context) -> None: ...

    await backlog(make_stage, stage, db, {"big": 300, "small": 2})
    await stage.app.start()
    await stage.until(lambda: len(stage.heard("task.completed", task="small")) == 2)
    assert order_of(stage)[:4].count("small") == 2


@pytest.mark.parametrize("names", [("big", "small"), ("small", "big")])
async def test_slots_that_come_free_one_by_one_are_given_to_the_tasks_in_turn(
    make_stage: MakeStage, db: AsyncDatabase[Document], names: tuple[str, str]
) -> None:
    stage = make_stage(concurrency=1)
    for name in names:

        @stage.app.reactive_task(task=name, collection=name, debounce=0)
        async def _sync(ctx: Context) -> None: ...

    await backlog(make_stage, stage, db, {"big": 300, "small": 2})
    await stage.app.start()
    await stage.until(lambda: len(stage.heard("task.completed", task="small")) == 2)
    # A claim that runs ahead of the slots may begin with either of the two.
    assert order_of(stage)[:8].count("small") == 2


async def test_a_task_that_fills_the_slots_gives_way_to_one_that_has_none(
    make_stage: MakeStage, db: AsyncDatabase[Document]
) -> None:
    """Each slot that comes free is the other's, until both hold as many."""
    stage, let_go = make_stage(concurrency=4), asyncio.Semaphore(0)
    for name in ("big", "late"):

        @stage.app.reactive_task(task=name, collection=name, debounce=0)
        async def _sync(ctx: Context) -> None:
            await let_go.acquire()

    await stage.app.start()
    await db["big"].insert_many(numbered(30))
    await stage.until(lambda: len(stage.heard("task.started", task="big")) == 4)
    await db["late"].insert_many(numbered(30))
    await stage.counted(30, task="late", status="pending")
    for started in (1, 2):
        let_go.release()
        await stage.until(lambda started=started: len(stage.heard("task.started", task="late")) == started)
    for _ in range(60):
        let_go.release()
    await stage.until(lambda: len(stage.heard("task.completed")) == 60)


async def test_the_instance_runs_no_more_than_its_slots(make_stage: MakeStage, orders: Orders) -> None:
    stage, gate = make_stage(concurrency=3), Gate()

    @stage.app.reactive_task(collection="orders", debounce=0)
    async def _sync(ctx: Context) -> None:
        await gate()

    await stage.app.start()
    await orders.insert_many(numbered(10))
    await gate.reached(3)
    gate.open()
    await stage.until(lambda: len(stage.heard("task.completed")) == 10)
    assert gate.most == 3


async def test_a_tasks_own_concurrency_holds_and_blocks_no_other(stage: Stage, orders: Orders) -> None:
    gate = Gate()

    @stage.app.reactive_task(task="narrow", collection="orders", debounce=0, concurrency=2)
    async def _narrow(ctx: Context) -> None:
        await gate()

    @stage.app.reactive_task(task="free", collection="orders", debounce=0)
    async def _free(ctx: Context) -> None: ...

    await stage.app.start()
    await orders.insert_many(numbered(20))
    await gate.reached(2)
    await stage.until(lambda: len(stage.heard("task.completed", task="free")) == 20)
    assert gate.waiting == 2
    gate.open()
    await stage.until(lambda: len(stage.heard("task.completed", task="narrow")) == 20)
    assert gate.most == 2


async def test_a_tasks_own_concurrency_holds_for_the_records_of_a_dead_owner(
    make_stage: MakeStage, db: AsyncDatabase[Document]
) -> None:
    stage, gate = make_stage(lease="3s"), Gate()

    @stage.app.reactive_task(task="narrow", collection="orders", debounce=0, concurrency=2)
    async def _narrow(ctx: Context) -> None:
        await gate()

    await backlog(make_stage, stage, db, {"orders": 6})
    await abandon(db["orders_tasks"])
    await stage.app.start()
    await gate.reached(2)
    # One more look at what was abandoned, and one at what is due.
    await db["orders"].insert_one({"_id": "later"})
    await stage.counted(1, status="pending")
    gate.open()
    await stage.until(lambda: len(stage.heard("task.completed")) == 7)
    assert gate.most == 2


@pytest.mark.parametrize(("lost", "together"), [(0, 32), (1, 4), (2, 1), (9, 1)])
async def test_records_that_lost_their_lease_again_are_claimed_in_smaller_groups(
    make_stage: MakeStage, db: AsyncDatabase[Document], lost: int, together: int
) -> None:
    stage, gate = make_stage(lease="3s", concurrency=50), Gate()

    @stage.app.reactive_task(task="sync", collection="orders", debounce=0)
    async def _sync(ctx: Context) -> None:
        if ctx.doc_id != "fresh":
            await gate()

    await backlog(make_stage, stage, db, {"orders": 40})
    await abandon(db["orders_tasks"])
    await db["orders_tasks"].update_many({}, {"$set": {"oplogue.lost": lost}})
    await stage.app.start()
    await gate.reached(together)
    # Nobody waits for the group but those who are suspected like it.
    await db["orders"].insert_one({"_id": "fresh"})
    await stage.next("task.completed", doc_id="fresh")
    try:
        assert gate.most == together
    finally:
        gate.open()


async def test_a_narrow_task_goes_on_as_soon_as_it_has_room(stage: Stage, orders: Orders) -> None:
    @stage.app.reactive_task(collection="orders", debounce=0, concurrency=1)
    async def _narrow(ctx: Context) -> None: ...

    await stage.app.start()
    await orders.insert_many(numbered(12))
    await stage.until(lambda: len(stage.heard("task.completed")) == 12, limit=3)


async def test_a_change_during_a_marked_run_is_run_at_once(stage: Stage, orders: Orders) -> None:
    async def is_dirty() -> bool:
        return await stage.app.count_reactive_tasks(status="processing_dirty") == 1

    @stage.app.reactive_task(collection="orders", debounce=0, watch_projection=["total"])
    async def _sync(ctx: Context) -> None:
        if ctx.watched_values["total"] < 5:
            await orders.update_one({"_id": 7}, {"$inc": {"total": 1}})
            await stage.until(is_dirty)
        await ctx.mark_completed()

    await stage.app.start()
    await orders.insert_one({"_id": 7, "total": 0})
    await stage.until(lambda: len(stage.heard("task.completed")) == 6, limit=2)


async def test_plain_functions_run_in_as_many_threads_as_there_are_slots(
    make_stage: MakeStage, orders: Orders
) -> None:
    stage, together = make_stage(concurrency=3), threading.Barrier(3, timeout=10)

    @stage.app.reactive_task(collection="orders", debounce=0, retry_policy=ONCE)
    def _sync(ctx: Context) -> None:
        together.wait()

    await stage.app.start()
    await orders.insert_many(numbered(6))
    await stage.until(lambda: len(stage.heard("task.completed")) == 6)


async def test_the_task_filter_decides_what_this_instance_runs(make_stage: MakeStage, orders: Orders) -> None:
    allowed = {"one"}

    def allow(name: str) -> bool:
        return name in allowed

    stage = make_stage(task_filter=allow)
    for name in ("one", "two"):

        @stage.app.reactive_task(task=name, collection="orders", debounce=0)
        async def _sync(ctx: Context) -> None: ...

    await stage.app.start()
    await orders.insert_one({"_id": 1})
    await stage.next("task.completed", task="one")
    await orders.insert_one({"_id": 2})
    await stage.next("task.completed", task="one")
    assert stage.heard("task.started", task="two") == []
    allowed.add("two")
    await stage.next("task.completed", task="two")
    await stage.next("task.completed", task="two")


async def test_a_task_filter_that_raises_stops_nothing_else(make_stage: MakeStage, orders: Orders) -> None:
    broken = {"yes"}

    def allow(_name: str) -> bool:
        if broken:
            broken.clear()
            raise ValueError("once")
        return True

    stage = make_stage(task_filter=allow)

    @stage.app.reactive_task(collection="orders", debounce=0)
    async def _sync(ctx: Context) -> None: ...

    await stage.app.start()
    await orders.insert_one({"_id": 1})
    await stage.next("part.failed")
    await stage.next("task.completed", doc_id=1)


# -- pauses


async def test_a_paused_task_waits_until_it_is_resumed(stage: Stage, orders: Orders) -> None:
    for name in ("paused", "free"):

        @stage.app.reactive_task(task=name, collection="orders", debounce=0)
        async def _sync(ctx: Context) -> None: ...

    await stage.app.start()
    await stage.app.pause_task("paused")
    for number in (1, 2):
        await orders.insert_one({"_id": number})
        await stage.next("task.completed", task="free", doc_id=number)
    assert stage.heard("task.started", task="paused") == []
    await stage.app.resume_task("paused")
    await stage.next("task.completed", task="paused", doc_id=1)
    await stage.next("task.completed", task="paused", doc_id=2)


@pytest.mark.parametrize("as_moment", [False, True], ids=["for a while", "until a moment"])
async def test_a_pause_ends_by_itself(stage: Stage, orders: Orders, as_moment: bool) -> None:
    @stage.app.reactive_task(task="sync", collection="orders", debounce=0)
    async def _sync(ctx: Context) -> None: ...

    await stage.app.start()
    paused_at = Clock().now()
    pause = timedelta(milliseconds=400)
    await stage.app.pause_task("sync", until=paused_at + pause if as_moment else pause)
    await orders.insert_one({"_id": 1})
    done = await stage.next("task.completed", doc_id=1)
    assert pause * 0.9 <= done.at - paused_at < pause + timedelta(seconds=2)


async def test_a_pause_holds_every_instance(make_stage: MakeStage, orders: Orders) -> None:
    first, second = make_stage(), make_stage()
    for stage in (first, second):
        for name in ("paused", "free"):

            @stage.app.reactive_task(task=name, collection="orders", debounce=0)
            async def _sync(ctx: Context) -> None: ...

    await first.app.start()
    await first.app.pause_task("paused")
    await first.app.stop()
    await orders.insert_one({"_id": 1})
    await second.app.start()
    await second.next("task.completed", task="free")
    await orders.insert_one({"_id": 2})
    await second.next("task.completed", task="free")
    assert await second.app.count_reactive_tasks("paused", "pending") == 2


async def test_what_is_claimed_and_not_started_is_given_back_when_its_task_is_paused(
    make_stage: MakeStage, orders: Orders
) -> None:
    """Short runs first, so that claims run far ahead of the slots; then the slots are blocked."""
    stage, gate = make_stage(concurrency=2, lease="1m"), Gate()

    @stage.app.reactive_task(task="sync", collection="orders", debounce=0)
    async def _sync(ctx: Context) -> None:
        if ctx.doc_id >= 600:
            await gate()

    await stage.app.start()
    await orders.insert_many(numbered(1_000))
    await gate.reached(2)
    await stage.app.pause_task("sync")
    try:
        await stage.counted(2, status="processing", limit=3)
    finally:
        gate.open()


async def abandon(records: AsyncCollection[Document]) -> None:
    """As if the owner of all these records had died: their leases are over."""
    over: Document = {"$subtract": ["$$NOW", 1_000]}
    await records.update_many({}, [{"$set": {"status": "processing", "attempts": 1, "nextRunAt": over}}])


async def test_records_of_a_dead_owner_wait_while_their_task_is_paused(
    make_stage: MakeStage, db: AsyncDatabase[Document]
) -> None:
    stage = make_stage(lease="3s")
    for name in ("paused", "free"):

        @stage.app.reactive_task(task=name, collection="orders", debounce=0)
        async def _sync(ctx: Context) -> None: ...

    await backlog(make_stage, stage, db, {"orders": 3})
    await abandon(db["orders_tasks"])
    operator = make_stage(concurrency=0)
    operator.app._tasks.update(stage.app._tasks)  # pyright: ignore[reportPrivateUsage]
    await operator.app.start()
    await operator.app.pause_task("paused")
    await operator.app.stop()
    await stage.app.start()
    await stage.until(lambda: len(stage.heard("task.completed", task="free")) == 3)
    assert stage.heard("task.started", task="paused") == []
    await stage.app.resume_task("paused")
    await stage.until(lambda: len(stage.heard("task.completed", task="paused")) == 3)


async def test_what_is_claimed_ahead_is_given_back_when_the_runs_before_it_get_slow(
    make_stage: MakeStage, orders: Orders, db: AsyncDatabase[Document]
) -> None:
    stage, gate = make_stage(concurrency=2, lease="3s"), Gate()

    @stage.app.reactive_task(task="sync", collection="orders", debounce=0)
    async def _sync(ctx: Context) -> None:
        if ctx.doc_id >= 600:
            await gate()

    await stage.app.start()
    await orders.insert_many(numbered(1_000))
    await gate.reached(2)
    try:
        await stage.counted(2, status="processing")
        waiting = await db["orders_tasks"].find({"status": "pending"}).to_list()
        assert {record["attempts"] for record in waiting} == {0}
    finally:
        gate.open()
    await stage.until(lambda: len(stage.heard("task.completed")) == 1_000)


async def test_pausing_a_task_that_is_not_known_is_refused(stage: Stage) -> None:
    await stage.app.start()
    with pytest.raises(UnknownTaskError, match="nobody"):
        await stage.app.pause_task("nobody")
    with pytest.raises(UnknownTaskError, match="nobody"):
        await stage.app.resume_task("nobody")


# -- ends of runs


async def test_a_hanging_handler_ends_as_a_failed_attempt(stage: Stage, orders: Orders) -> None:
    @stage.app.reactive_task(collection="orders", debounce=0, timeout="50ms", retry_policy=Fixed(0))
    async def _sync(ctx: Context) -> None:
        if ctx.attempt == 1:
            await asyncio.Event().wait()

    await stage.app.start()
    await orders.insert_one({"_id": 1})
    assert "TimeoutError" in (await stage.next("task.retried", attempt=1)).fields["error"]
    await stage.next("task.completed", attempt=2)


async def test_a_hanging_plain_function_ends_as_a_failed_attempt(stage: Stage, orders: Orders) -> None:
    let_go = threading.Event()

    @stage.app.reactive_task(collection="orders", debounce=0, timeout="50ms", retry_policy=ONCE)
    def _sync(ctx: Context) -> None:
        assert let_go.wait(10)

    await stage.app.start()
    await orders.insert_one({"_id": 1})
    assert "TimeoutError" in (await stage.next("task.failed", attempt=1)).fields["error"]
    let_go.set()


async def test_a_handler_within_its_timeout_is_left_alone(stage: Stage, orders: Orders) -> None:
    @stage.app.reactive_task(collection="orders", debounce=0, timeout="5s")
    async def _sync(ctx: Context) -> None: ...

    await stage.app.start()
    await orders.insert_one({"_id": 1})
    await stage.next("task.completed")


async def test_a_handler_that_raises_a_cancellation_itself_has_failed(stage: Stage, orders: Orders) -> None:
    @stage.app.reactive_task(collection="orders", debounce=0, retry_policy=ONCE)
    async def _sync(ctx: Context) -> None:
        raise asyncio.CancelledError("mine")

    await stage.app.start()
    await orders.insert_one({"_id": 1})
    assert "CancelledError" in (await stage.next("task.failed")).fields["error"]


async def test_a_handler_that_swallows_its_cancellation_has_failed_by_its_timeout(
    stage: Stage, orders: Orders
) -> None:
    @stage.app.reactive_task(collection="orders", debounce=0, timeout="50ms", retry_policy=ONCE)
    async def _sync(ctx: Context) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    await stage.app.start()
    await orders.insert_one({"_id": 1})
    assert "TimeoutError" in (await stage.next("task.failed")).fields["error"]


async def test_plain_handlers_that_hang_past_their_timeout_leave_room_for_others(
    make_stage: MakeStage, orders: Orders
) -> None:
    stage, hanging = make_stage(concurrency=1), threading.Event()

    @stage.app.reactive_task(collection="orders", debounce=0, timeout="50ms", retry_policy=ONCE)
    def _sync(ctx: Context) -> None:
        if ctx.doc_id != "last":
            hanging.wait()

    await stage.app.start()
    try:
        await orders.insert_many(numbered(3))
        await stage.until(lambda: len(stage.heard("task.failed")) == 3)
        await orders.insert_one({"_id": "last"})
        await stage.next("task.completed", doc_id="last")
    finally:
        hanging.set()


async def test_renewal_ends_at_the_timeout_of_a_handler_that_does_not_end(
    make_stage: MakeStage, orders: Orders
) -> None:
    stage, gate = make_stage(lease="1s"), Gate()

    @stage.app.reactive_task(collection="orders", debounce=0, timeout="50ms", retry_policy=Fixed(0))
    async def _sync(ctx: Context) -> None:
        if ctx.attempt == 1:
            while not gate.opened:
                try:
                    await gate()
                except asyncio.CancelledError:
                    continue

    await stage.app.start()
    await orders.insert_one({"_id": 1})
    try:
        await stage.next("task.completed", attempt=2, limit=4)
    finally:
        gate.open()


async def test_an_unlucky_handler_leaves_the_others_running(stage: Stage, orders: Orders) -> None:
    @stage.app.reactive_task(collection="orders", debounce=0, retry_policy=ONCE)
    async def _sync(ctx: Context) -> None:
        if ctx.doc_id % 2:
            raise ValueError("odd")

    await stage.app.start()
    await orders.insert_many(numbered(20))
    await stage.until(lambda: len(stage.heard("task.completed")) == 10)
    await stage.until(lambda: len(stage.heard("task.failed")) == 10)


@pytest.mark.slow
async def test_a_handler_that_blocks_the_loop_beyond_its_lease_is_not_run_twice(
    make_stage: MakeStage, orders: Orders, database_uri: str
) -> None:
    stage = make_stage(lease="2500ms")
    runs: list[str] = []

    def define(app: App) -> None:
        @app.reactive_task(task="sync", collection="orders", debounce=0)
        async def _sync(ctx: Context) -> None:
            runs.append(ctx.instance_id)
            if len(runs) == 1:
                Clock().block(6)

    define(stage.app)
    await stage.app.start()
    # Another instance, in a thread and a loop of its own: it would take the record over.
    started, ended = threading.Event(), threading.Event()

    async def elsewhere() -> None:
        other = App(database_uri, lease="2500ms")
        define(other)
        async with other:
            started.set()
            assert await asyncio.to_thread(ended.wait, 30)

    thread = threading.Thread(target=lambda: asyncio.run(elsewhere()))
    thread.start()
    assert await asyncio.to_thread(started.wait, 10)
    await orders.insert_one({"_id": 1})
    try:
        # Whichever of the two has claimed it blocks, and the other would take the record over.
        await stage.eventually(lambda: settled(stage), limit=20)
    finally:
        ended.set()
        await asyncio.to_thread(thread.join)
    assert len(runs) == 1


async def settled(stage: Stage) -> bool:
    """Whether a record has completed."""
    return await stage.app.count_reactive_tasks(status="completed") == 1


# -- shutdown


async def test_running_handlers_finish_before_the_app_stops(stage: Stage, orders: Orders) -> None:
    gate = Gate()

    @stage.app.reactive_task(collection="orders", debounce=0)
    async def _sync(ctx: Context) -> None:
        await gate()
        await ctx.get_document()

    await stage.app.start()
    await orders.insert_many(numbered(2))
    await gate.reached(2)
    stopping = asyncio.create_task(stage.app.stop())
    await stage.next("leadership.lost")
    gate.open()
    await within(stopping)
    assert len(stage.heard("task.completed")) == 2
    assert stage.heard("instance.shutdown_timeout") == []


async def test_what_is_claimed_and_not_started_is_given_back_when_the_app_stops(
    make_stage: MakeStage, orders: Orders, db: AsyncDatabase[Document]
) -> None:
    stage, gate = make_stage(concurrency=2), Gate()

    @stage.app.reactive_task(task="sync", collection="orders", debounce=0)
    async def _sync(ctx: Context) -> None:
        if ctx.doc_id >= 600:
            await gate()

    await stage.app.start()
    await orders.insert_many(numbered(1_000))
    await gate.reached(2)
    claimed = await stage.app.count_reactive_tasks(status="processing")
    records = db["orders_tasks"]

    async def given_back() -> bool:
        return await records.count_documents({"status": "processing"}) == 2

    stopping = asyncio.create_task(stage.app.stop())
    await stage.eventually(given_back)
    gate.open()
    await within(stopping)
    completed = len(stage.heard("task.completed"))
    assert claimed > 2, "claims were to run ahead of the slots"
    assert len(stage.heard("task.started")) == completed
    assert await records.count_documents({"status": "pending", "attempts": 0}) == 1_000 - completed


async def test_handlers_that_do_not_end_are_cancelled_after_the_shutdown_timeout(
    make_stage: MakeStage, orders: Orders, db: AsyncDatabase[Document]
) -> None:
    stage, gate = make_stage(shutdown_timeout="100ms"), Gate()
    seen: list[bool] = []

    @stage.app.reactive_task(collection="orders", debounce=0)
    async def _sync(ctx: Context) -> None:
        try:
            await gate()
        except asyncio.CancelledError:
            seen.append(ctx.cancelled.is_set())
            raise

    await stage.app.start()
    await orders.insert_one({"_id": 1})
    await gate.reached()
    await within(stage.app.stop())
    assert seen == [True]
    assert stage.heard("instance.shutdown_timeout", count=1)
    record = await db["orders_tasks"].find_one()
    assert record is not None
    assert (record["status"], record["attempts"]) == ("pending", 0)


async def test_a_handler_that_marked_completion_and_was_cut_short_has_completed(
    make_stage: MakeStage, orders: Orders, db: AsyncDatabase[Document]
) -> None:
    stage, gate = make_stage(shutdown_timeout="100ms"), Gate()

    @stage.app.reactive_task(collection="orders", debounce=0)
    async def _sync(ctx: Context) -> None:
        await ctx.mark_completed()
        await gate()

    await stage.app.start()
    await orders.insert_one({"_id": 1})
    await gate.reached()
    await within(stage.app.stop())
    record = await db["orders_tasks"].find_one()
    assert record is not None
    assert record["status"] == "completed"
    assert len(stage.heard("task.completed")) == 1
    assert stage.heard("task.lease_lost") == []


async def test_stopping_waits_for_asynchronous_subscribers(stage: Stage, orders: Orders) -> None:
    gate, told = Gate(), asyncio.Event()

    @stage.app.on("task.completed")
    async def _tell(_event: object) -> None:
        await gate()
        told.set()

    @stage.app.reactive_task(collection="orders", debounce=0)
    async def _sync(ctx: Context) -> None: ...

    await stage.app.start()
    await orders.insert_one({"_id": 1})
    await gate.reached()
    stopping = asyncio.create_task(stage.app.stop())
    await stage.next("instance.stopped")
    assert not stopping.done()
    gate.open()
    await within(stopping)
    assert told.is_set()


async def test_a_subscriber_that_raises_harms_nobody(
    stage: Stage, orders: Orders, caplog: pytest.LogCaptureFixture
) -> None:
    @stage.app.on("task.started")
    def _broken(_event: object) -> None:
        raise ValueError("a subscriber")

    @stage.app.on("task.completed")
    async def _broken_too(_event: object) -> None:
        raise ValueError("another subscriber")

    @stage.app.reactive_task(collection="orders", debounce=0)
    async def _sync(ctx: Context) -> None: ...

    await stage.app.start()
    await orders.insert_one({"_id": 1})
    await stage.next("task.completed")
    await stage.app.stop()
    assert len([line for line in caplog.records if "the subscriber" in line.message]) == 2


async def test_an_unknown_event_is_refused(stage: Stage) -> None:
    with pytest.raises(ConfigurationError, match="finished"):
        stage.app.on("task.finished")(print)
