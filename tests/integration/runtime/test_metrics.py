"""Metrics of running apps, against a ledger of what their handlers did."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from pymongo import AsyncMongoClient
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import AutoReconnect
from pymongo.monitoring import CommandListener, CommandStartedEvent
from tests.integration.runtime.conftest import Document, MakeStage
from tests.support.running import Gate, Stage
from tests.support.scraped import Scraped, scrape

from oplogue import Context, Fixed, Monitoring
from oplogue.clock import Clock
from oplogue.model.figures import Figures
from oplogue.model.metrics import METRICS
from oplogue.store.backlog import Backlog
from oplogue.store.stream import Batch, ChangeStream
from oplogue.store.totals import Totals

CLUSTER = Monitoring(push_interval="1h", read_preference="primary")
LOCAL = Monitoring(scrape_mode="local")
RUNS = "duration_seconds_count"


class SkippingClock(Clock):
    """A clock that the test moves on."""

    skipped = 0.0

    def monotonic(self) -> float:
        """The time that has passed, and what was skipped."""
        return super().monotonic() + self.skipped


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SkippingClock:
    """The clock of every app that is made from then on."""
    skipping = SkippingClock()
    monkeypatch.setattr("oplogue.app.Clock", lambda: skipping)
    return skipping


class Shop:
    """Two apps with the same tasks, and a ledger of their runs."""

    def __init__(self, make_stage: MakeStage, monitoring: Monitoring) -> None:
        self.ledger: Counter[tuple[str, str]] = Counter()
        self.stages = [
            self.open(make_stage(instance_id=name, monitoring=monitoring, concurrency=4, lease="10m"))
            for name in ("one", "two")
        ]

    def open(self, stage: Stage) -> Stage:
        """Give an app the tasks."""

        @stage.app.reactive_task(task="bill", collection="orders", debounce=0)
        async def bill(ctx: Context) -> None:
            self.ledger["bill", "success"] += 1

        @stage.app.reactive_task(
            task="ship", collection="orders", debounce=0, retry_policy=Fixed(0, max_attempts=2)
        )
        async def ship(ctx: Context) -> None:
            fails = ctx.doc_id % 3 == 0
            self.ledger["ship", "failed" if fails else "success"] += 1
            if fails:
                raise ValueError("no")

        return stage

    async def start(self) -> tuple[Stage, Stage]:
        """Start both, the first as the leader."""
        one, two = self.stages
        for stage in (one, two):
            await stage.app.start()
        return one, two

    async def work_off(self, orders: AsyncCollection[Document], first: int, count: int = 30) -> None:
        """Write orders, and wait until every instance knows how its runs ended."""
        await orders.insert_many([{"_id": number} for number in range(first, first + count)])

        async def ended() -> bool:
            codes = ("task.completed", "task.failed")
            heard = sum(len(stage.heard(code)) for stage in self.stages for code in codes)
            return heard == 2 * await orders.count_documents({})

        await self.stages[0].eventually(ended)

    def agrees(self, scraped: Scraped) -> bool:
        """Whether a scrape says what the ledger says."""
        return all(
            scraped.one(RUNS, task_name=task, status=status) == self.ledger[task, status]
            for task in ("bill", "ship")
            for status in ("success", "failed")
        )


# -- the cluster as one


async def test_any_instance_answers_for_all_and_the_sums_are_the_ledger_s(
    make_stage: MakeStage, orders: AsyncCollection[Document]
) -> None:
    shop = Shop(make_stage, CLUSTER)
    one, two = await shop.start()
    await shop.work_off(orders, 0)
    # Each answer brings its instance's own figures along; the first one's are there when the second answers.
    await scrape(one.app)
    second, first = await scrape(two.app), await scrape(one.app)
    assert shop.agrees(first)
    assert shop.agrees(second)
    assert first.sum("retries_total") == shop.ledger["ship", "failed"] / 2 == 10
    assert first.one("dead_letters_total", task_name="ship") == 10
    assert first.one("claimed_records_sum") == sum(shop.ledger.values())
    assert first.one("leader_elections_total") == 1
    assert (first.one("instances"), first.one("leader")) == (2, 1)


async def test_totals_stay_when_instances_leave_and_go_on_when_they_come_back(
    make_stage: MakeStage, orders: AsyncCollection[Document]
) -> None:
    shop = Shop(make_stage, CLUSTER)
    one, two = await shop.start()
    await shop.work_off(orders, 0)
    await two.app.stop()
    assert shop.agrees(await scrape(one.app))
    await two.app.start()
    await shop.work_off(orders, 100)
    await scrape(two.app)
    assert shop.agrees(await scrape(one.app))
    await one.app.stop()
    assert shop.agrees(await scrape(two.app))
    # A process that starts anew under an old name begins at zero itself, and adds to what was counted before.
    anew = shop.open(make_stage(instance_id="one", monitoring=CLUSTER))
    shop.stages.append(anew)
    await anew.app.start()
    await shop.work_off(orders, 200)
    await scrape(anew.app)
    assert shop.agrees(await scrape(two.app))


async def test_totals_never_fall_whoever_answers(
    make_stage: MakeStage, orders: AsyncCollection[Document]
) -> None:
    """As behind a load balancer: a counter that falls looks like a restart, and doubles every rate."""
    shop = Shop(make_stage, CLUSTER)
    one, two = await shop.start()
    last = 0.0
    writing = asyncio.create_task(shop.work_off(orders, 0, 300))
    while not writing.done():
        for stage in (one, two):
            total = (await scrape(stage.app)).sum(RUNS)
            assert total >= last
            last = total
    await writing
    assert last > 0


async def test_others_learn_what_was_counted_within_the_push_interval(
    make_stage: MakeStage, orders: AsyncCollection[Document]
) -> None:
    shop = Shop(make_stage, Monitoring(push_interval="20ms"))
    _, two = await shop.start()
    await shop.work_off(orders, 0)

    async def told() -> bool:
        scraped = await scrape(two.app)
        return shop.agrees(scraped) and scraped.one("slots") == 8

    await two.eventually(told)


async def test_addition_whose_answer_was_lost_counts_once(
    make_stage: MakeStage, orders: AsyncCollection[Document], monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(make_stage, CLUSTER)
    one, two = await shop.start()
    add = Totals.add

    async def lost(self: Totals, figures: Figures, number: int) -> Figures:
        await add(self, figures, number)
        raise AutoReconnect("connection closed")

    await shop.work_off(orders, 0)
    with monkeypatch.context() as broken:
        broken.setattr(Totals, "add", lost)
        for stage in (one, two):
            await scrape(stage.app)
            await stage.next("part.failed", part="metrics")
    await shop.work_off(orders, 100)
    await scrape(two.app)
    assert shop.agrees(await scrape(one.app))


# -- each for itself


async def test_each_instance_answers_for_itself_and_only_the_leader_for_the_cluster(
    make_stage: MakeStage, orders: AsyncCollection[Document]
) -> None:
    shop = Shop(make_stage, LOCAL)
    one, two = await shop.start()
    await shop.work_off(orders, 0)
    first, second = await scrape(one.app), await scrape(two.app)
    assert first.sum(RUNS) + second.sum(RUNS) == sum(shop.ledger.values())
    assert (first.one("leader"), second.one("leader")) == (1, 0)
    of_cluster = {name for name, metric in METRICS.items() if metric.of_cluster}
    assert of_cluster <= first.types.keys()
    assert not of_cluster & second.types.keys()
    assert first.one("queue_depth", task_name="ship", status="failed") == 10
    await one.app.stop()
    await two.next("planner.started")
    third = await scrape(two.app)
    assert of_cluster <= third.types.keys()
    assert third.sum(RUNS) == second.sum(RUNS)


async def test_local_figures_are_written_nowhere(make_stage: MakeStage, db: AsyncDatabase[Document]) -> None:
    for monitoring in (LOCAL, Monitoring(enabled=False)):
        stage = make_stage(monitoring=monitoring)
        await stage.app.start()
        assert (await stage.app.get_prometheus_metrics() is None) == (not monitoring.enabled)
        await stage.app.stop()
    assert await db["_oplogue_globals"].count_documents({"_id": "figures"}) == 0


# -- gauges


async def test_backlog_and_slots_are_told_and_kept_for_a_few_seconds(
    make_stage: MakeStage, orders: AsyncCollection[Document], clock: SkippingClock
) -> None:
    stage, gate = make_stage(concurrency=2, lease="10m"), Gate()

    @stage.app.reactive_task(task="sync", collection="orders", debounce=0)
    async def sync(ctx: Context) -> None:
        await gate()

    await stage.app.start()
    await orders.insert_many([{"_id": number} for number in range(20)])
    await gate.reached(2)
    await stage.planned(18)
    before = await scrape(stage.app)
    assert before.one("queue_depth", status="pending") == 18
    assert before.one("queue_depth", status="processing") == 2
    assert (before.one("slots"), before.one("slots_in_use")) == (2, 2)
    gate.open()
    await stage.counted(20, status="completed")
    assert (await scrape(stage.app)).one("queue_depth", status="pending") == 18
    clock.skipped += 5
    assert (await scrape(stage.app)).sum("queue_depth") == 0


class Commands(CommandListener):
    """What a client sends while it is listened to."""

    def __init__(self) -> None:
        self.sent: Counter[tuple[str, str]] = Counter()

    def started(self, event: CommandStartedEvent) -> None:
        name = event.command_name
        collection = event.command["collection"] if name == "getMore" else event.command[name]
        self.sent[name, str(collection)] += 1

    def succeeded(self, event: object) -> None: ...

    def failed(self, event: object) -> None: ...


async def test_a_scrape_asks_once_for_the_records_of_a_collection_and_never_for_its_documents(
    make_stage: MakeStage, database_uri: str, clock: SkippingClock
) -> None:
    commands = Commands()
    async with AsyncMongoClient[Document](database_uri, event_listeners=[commands]) as listened_to:
        stage = make_stage(client=listened_to, lease="10m", concurrency=0, monitoring=CLUSTER)
        for name in ("bill", "ship"):

            @stage.app.reactive_task(task=name, collection="orders", debounce=0)
            async def handle(ctx: Context) -> None: ...

        await stage.app.start()
        await stage.next("reconciliation.finished")
        await scrape(stage.app)

        async def asked(fresh: bool, once: set[tuple[str, str]]) -> bool:
            """Whether a scrape asks just that of the orders; what the engine itself asks may come between."""
            clock.skipped += 5 * fresh
            commands.sent.clear()
            await scrape(stage.app)
            return {sent for sent in commands.sent.elements() if sent[1].startswith("orders")} == once

        await stage.eventually(lambda: asked(True, {("aggregate", "orders_tasks")}))
        assert commands.sent["aggregate", "orders_tasks"] == 1
        await stage.eventually(lambda: asked(False, set()))
        await stage.app.stop()


async def test_global_lag_is_the_age_of_the_oldest_pending_record(
    make_stage: MakeStage, orders: AsyncCollection[Document], db: AsyncDatabase[Document]
) -> None:
    def never(task: str) -> bool:
        return False

    stage = make_stage(task_filter=never)

    @stage.app.reactive_task(task="sync", collection="orders", debounce=0)
    async def sync(ctx: Context) -> None: ...

    await stage.app.start()
    await orders.insert_many([{"_id": 1}, {"_id": 2}])
    await stage.planned(2)
    hour = {"$subtract": ["$$NOW", 3_600_000]}
    await db["orders_tasks"].update_one({"sourceDocId": 2}, [{"$set": {"dueAt": hour, "nextRunAt": hour}}])
    assert 3_600 <= (await scrape(stage.app)).one("global_lag_seconds", task_name="sync") < 3_660


async def test_last_reconciliation_is_told_and_what_is_still_to_be_reconciled(
    make_stage: MakeStage, clock: SkippingClock
) -> None:
    stage = make_stage(lease="10m")

    @stage.app.reactive_task(task="sync", collection="orders")
    async def sync(ctx: Context) -> None: ...

    await stage.app.start()
    ended = await stage.next("reconciliation.finished")
    clock.skipped += 5
    scraped = await scrape(stage.app)
    at = scraped.one("last_reconciliation_timestamp_seconds")
    assert abs(at - ended.at.timestamp()) < 60
    assert (scraped.one("unreconciled"), scraped.one("reconciliations_total")) == (0, 1)


async def test_a_reconciliation_under_way_is_told_with_its_estimate(
    make_stage: MakeStage, orders: AsyncCollection[Document], clock: SkippingClock
) -> None:
    await orders.insert_many([{"_id": number} for number in range(1_200)])
    stage = make_stage(lease="10m", concurrency=0, pace=1e-9)

    @stage.app.reactive_task(task="sync", collection="orders")
    async def sync(ctx: Context) -> None: ...

    await stage.app.start()
    await stage.next("reconciliation.progress")
    scraped = await scrape(stage.app)
    collection = f"{stage.app.database.name}.orders"
    assert scraped.one("reconciliation_documents", collection=collection) == 1_000
    assert scraped.one("reconciliation_estimated_documents", collection=collection) == 1_200


# -- the stream's lag


async def started(make_stage: MakeStage, **options: Any) -> Stage:
    stage = make_stage(lease="10m", monitoring=CLUSTER, **options)

    @stage.app.reactive_task(task="sync", collection="orders", debounce=0)
    async def sync(ctx: Context) -> None: ...

    await stage.app.start()
    return stage


async def lag(stage: Stage) -> float:
    return (await scrape(stage.app)).one("change_stream_lag_seconds")


async def test_stalled_stream_has_a_growing_lag_and_one_that_goes_on_has_none(
    make_stage: MakeStage, clock: SkippingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, following = asyncio.Event(), ChangeStream.next

    async def stalled(self: ChangeStream, patience: timedelta) -> Batch:
        await go_on.wait()
        return await following(self, patience)

    stage = await started(make_stage)
    with monkeypatch.context() as broken:
        broken.setattr(ChangeStream, "next", stalled)
        await stage.next("reconciliation.finished")
        clock.skipped += 30
        assert 28 <= await lag(stage) < 60
        clock.skipped += 30
        assert 58 <= await lag(stage) < 90
        go_on.set()

    async def caught_up() -> bool:
        return await lag(stage) == 0

    # Nothing was written meanwhile: that nothing is unread is enough.
    await stage.eventually(caught_up)


async def test_lag_is_seen_from_elsewhere_too_and_grows_when_nobody_leads(
    make_stage: MakeStage,
    db: AsyncDatabase[Document],
    orders: AsyncCollection[Document],
    clock: SkippingClock,
) -> None:
    one, two = await started(make_stage), await started(make_stage)
    await orders.insert_one({"_id": 1})
    await one.counted(1, status="completed")
    globals_ = db["_oplogue_globals"]

    async def saved() -> bool:
        # The next answer of the stream brings the position along, and is saved by this clock at once.
        clock.skipped += 20
        return await globals_.count_documents({"_id": "leader", "savedAt": {"$type": "date"}}) == 1

    async def level() -> bool:
        # A leap between an answer and its plan is a lag until the next position is saved.
        clock.skipped += 20
        return await lag(two) == 0

    await one.eventually(saved)
    await two.eventually(level)
    await one.app.stop()
    silent = {"$subtract": ["$$NOW", timedelta(minutes=5) // timedelta(milliseconds=1)]}
    await two.app.stop()
    three = make_stage(concurrency=0, monitoring=CLUSTER, lease="10m")
    await globals_.update_one(
        {"_id": "leader"},
        [{"$set": {"savedAt": silent, "by": "dead", "expiresAt": {"$add": ["$$NOW", 600_000]}}}],
    )
    await three.app.start()
    scraped = await scrape(three.app)
    assert scraped.one("change_stream_lag_seconds") > 280
    assert (scraped.one("leader"), scraped.one("instances")) == (1, 1)


# -- without the database


async def test_figures_are_told_while_the_database_is_out_of_reach_and_its_gauges_are_not(
    make_stage: MakeStage,
    orders: AsyncCollection[Document],
    clock: SkippingClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shop = Shop(make_stage, CLUSTER)
    one, two = await shop.start()
    await shop.work_off(orders, 0)
    for stage in (two, one):
        await scrape(stage.app)
    clock.skipped += 5

    async def unreachable(*_: object, **__: object) -> None:
        raise AutoReconnect("connection closed")

    with monkeypatch.context() as broken:
        broken.setattr(Backlog, "depths", unreachable)
        broken.setattr(Totals, "add", unreachable)
        scraped = await scrape(one.app)
    await one.next("part.failed", part="metrics")
    assert shop.agrees(scraped)
    assert scraped.all("queue_depth") == scraped.all("instances") == []
    assert scraped.one("change_stream_lag_seconds") < 60
