"""Failed attempts, dead letters, and what a record tells about them."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from tests.integration.runtime.conftest import MakeStage
from tests.support.running import Gate, Stage

from oplogue import Context, Exponential, Fixed, Linear, Series
from oplogue.clock import Clock
from oplogue.model.retry import RetryPolicy

Document = dict[str, Any]
Orders = AsyncCollection[Document]


def fail_until(stage: Stage, attempts: int, **options: Any) -> list[int]:
    """A task that fails until its run of that number; the attempts of all its runs."""
    seen: list[int] = []
    usual: dict[str, Any] = {
        "task": "sync",
        "collection": "orders",
        "debounce": 0,
        "watch_projection": ["total"],
    }

    @stage.app.reactive_task(**{**usual, **options})
    async def _sync(ctx: Context) -> None:
        seen.append(ctx.attempt)
        if len(seen) < attempts:
            raise ValueError(f"run {len(seen)}")

    return seen


async def test_a_failed_attempt_is_retried_until_it_succeeds(stage: Stage, orders: Orders) -> None:
    seen = fail_until(stage, 3, retry_policy=Fixed(0))
    await stage.app.start()
    await orders.insert_one({"_id": 1})
    assert (await stage.next("task.retried", attempt=1)).fields["error"] == "ValueError: run 1"
    await stage.next("task.retried", attempt=2)
    await stage.next("task.completed", attempt=3)
    assert seen == [1, 2, 3]
    record = await stage.record()
    assert (record.status, record.attempts, record.last_error) == ("completed", 3, None)
    assert [entry.status for entry in record.execution_history] == ["failed", "failed", "completed"]
    assert [entry.error for entry in record.execution_history] == [
        "ValueError: run 1",
        "ValueError: run 2",
        None,
    ]


async def test_retries_without_a_delay_follow_at_once(stage: Stage, orders: Orders) -> None:
    fail_until(stage, 10, retry_policy=Fixed(0, max_attempts=20))
    await stage.app.start()
    await orders.insert_one({"_id": 1})
    await stage.next("task.completed", attempt=10, limit=3)


async def test_after_the_last_attempt_the_record_has_failed_for_good(stage: Stage, orders: Orders) -> None:
    seen = fail_until(stage, 99, retry_policy=Fixed(0, max_attempts=3))
    await stage.app.start()
    await orders.insert_one({"_id": 1, "total": 1})
    event = await stage.next("task.failed", attempt=3)
    assert event.fields["error"] == "ValueError: run 3"
    record = await stage.record()
    assert seen == [1, 2, 3]
    assert (record.status, record.attempts, record.last_error) == ("failed", 3, "ValueError: run 3")
    assert record.next_run_at is None
    assert record.first_error_at is not None
    assert record.last_finalized_at is not None
    assert record.last_success is None
    assert record.completed_at is None
    assert record.first_error_at <= record.last_finalized_at


async def test_the_default_is_five_attempts(stage: Stage, orders: Orders) -> None:
    seen = fail_until(stage, 99, retry_policy=Fixed(0))
    await stage.app.start()
    await orders.insert_one({"_id": 1})
    await stage.next("task.failed")
    assert seen == [1, 2, 3, 4, 5]


async def test_unlimited_attempts_go_on(stage: Stage, orders: Orders) -> None:
    fail_until(stage, 12, retry_policy=Fixed(0, max_attempts=-1))
    await stage.app.start()
    await orders.insert_one({"_id": 1})
    await stage.next("task.completed", attempt=12)
    assert stage.heard("task.failed") == []


async def test_attempts_end_when_their_duration_is_over(stage: Stage, orders: Orders) -> None:
    fail_until(stage, 10_000, retry_policy=Fixed("20ms", max_duration="200ms"))
    await stage.app.start()
    await orders.insert_one({"_id": 1})
    await stage.next("task.failed")
    record = await stage.record()
    assert record.attempts > 1
    assert record.first_error_at is not None
    assert record.last_finalized_at is not None
    assert record.last_finalized_at - record.first_error_at >= timedelta(milliseconds=150)


@pytest.mark.parametrize(
    ("policy", "minutes"),
    [
        (Fixed("10m"), [10, 10]),
        (Linear("10m"), [10, 20]),
        (Exponential(min="10m", factor=3), [10, 30]),
        (Series(["10m", "1h"]), [10, 60]),
    ],
    ids=["fixed", "linear", "exponential", "series"],
)
async def test_a_policy_says_when_the_next_attempt_is(
    stage: Stage, orders: Orders, policy: RetryPolicy, minutes: list[int]
) -> None:
    fail_until(stage, 99, retry_policy=policy)
    await stage.app.start()
    await orders.insert_one({"_id": 1})
    for attempt, wait in enumerate(minutes, start=1):
        await stage.next("task.retried", attempt=attempt)
        record = await stage.record()
        assert record.next_run_at is not None
        assert (record.next_run_at - Clock().now()).total_seconds() / 60 == pytest.approx(wait, abs=1)
        await stage.app.database["orders_tasks"].update_one({}, {"$set": {"nextRunAt": record.created_at}})


async def test_due_at_and_updated_at_stay_through_retries(stage: Stage, orders: Orders) -> None:
    fail_until(stage, 3, retry_policy=Fixed(0))
    await stage.app.start()
    await orders.insert_one({"_id": 1})
    await stage.next("task.retried", attempt=1)
    before = await stage.record()
    await stage.next("task.completed")
    after = await stage.record()
    assert (before.due_at, before.updated_at, before.created_at) == (
        after.due_at,
        after.updated_at,
        after.created_at,
    )


async def test_a_success_ends_the_error_sequence(stage: Stage, orders: Orders) -> None:
    fail_until(stage, 2, retry_policy=Fixed(0))
    await stage.app.start()
    await orders.insert_one({"_id": 1})
    await stage.next("task.completed")
    record = await stage.record()
    assert (record.last_error, record.first_error_at) == (None, None)
    assert record.last_success is not None
    assert record.completed_at is not None
    assert record.last_success.at == record.execution_history[-1].at
    assert isinstance(record.last_success.duration_ms, int)


async def test_changed_data_give_a_failed_record_all_its_attempts_again(stage: Stage, orders: Orders) -> None:
    seen = fail_until(stage, 4, retry_policy=Fixed(0, max_attempts=2))
    await stage.app.start()
    await orders.insert_one({"_id": 1, "total": 1})
    await stage.next("task.failed", attempt=2)
    await orders.update_one({"_id": 1}, {"$set": {"total": 2}})
    await stage.next("task.retried", attempt=1)
    await stage.next("task.completed", attempt=2)
    assert seen == [1, 2, 1, 2]


async def test_changed_data_give_one_attempt_where_the_policy_keeps_the_count(
    stage: Stage, orders: Orders
) -> None:
    seen = fail_until(stage, 99, retry_policy=Fixed(0, max_attempts=2, reset_retries_on_data_change=False))
    await stage.app.start()
    await orders.insert_one({"_id": 1, "total": 1})
    await stage.next("task.failed", attempt=2)
    await orders.update_one({"_id": 1}, {"$set": {"total": 2}})
    await stage.next("task.failed", attempt=3)
    assert seen == [1, 2, 3]


async def test_changed_data_after_a_success_start_from_the_first_attempt(
    stage: Stage, orders: Orders
) -> None:
    seen = fail_until(stage, 2, retry_policy=Fixed(0, reset_retries_on_data_change=False))
    await stage.app.start()
    await orders.insert_one({"_id": 1, "total": 1})
    await stage.next("task.completed", attempt=2)
    await orders.update_one({"_id": 1}, {"$set": {"total": 2}})
    await stage.next("task.completed", attempt=1)
    assert seen == [1, 2, 1]


async def test_a_change_during_a_backoff_waits_for_the_policys_first_delay(
    stage: Stage, orders: Orders
) -> None:
    seen = fail_until(stage, 99, retry_policy=Series(["10m", "5h"]))
    await stage.app.start()
    await orders.insert_one({"_id": 1, "total": 1})
    await stage.next("task.retried", attempt=1)
    before = await stage.record()
    await orders.update_one({"_id": 1}, {"$set": {"total": 2}})

    async def replanned() -> bool:
        return (await stage.record()).last_observed_values == {"total": 2}

    await stage.until(replanned)
    record = await stage.record()
    assert seen == [1]
    assert record.attempts == 0
    assert before.last_finalized_at is not None
    assert record.next_run_at == before.last_finalized_at + timedelta(minutes=10)


async def test_a_change_while_a_run_fails_is_run_after_its_backoff(stage: Stage, orders: Orders) -> None:
    async def is_dirty() -> bool:
        return await stage.app.count_reactive_tasks(status="processing_dirty") == 1

    @stage.app.reactive_task(
        collection="orders", debounce=0, watch_projection=["total"], retry_policy=Fixed("10m", max_attempts=1)
    )
    async def _sync(ctx: Context) -> None:
        await orders.update_one({"_id": 1}, {"$set": {"total": 2}})
        await stage.until(is_dirty)
        raise ValueError("no")

    await stage.app.start()
    await orders.insert_one({"_id": 1, "total": 1})
    await stage.until(lambda: bool(stage.heard("task.failed") or stage.heard("task.retried")))
    record = await stage.record()
    assert (record.status, record.attempts, record.last_error) == ("pending", 0, "ValueError: no")
    assert record.next_run_at is not None
    assert record.next_run_at > Clock().now() + timedelta(minutes=8)


async def test_the_history_keeps_the_last_runs(stage: Stage, orders: Orders) -> None:
    fail_until(stage, 6, execution_history_limit=2, retry_policy=Fixed(0, max_attempts=10))
    await stage.app.start()
    await orders.insert_one({"_id": 1})
    await stage.next("task.completed")
    history = (await stage.record()).execution_history
    assert [entry.error for entry in history] == ["ValueError: run 5", None]
    assert history[0].at <= history[1].at


async def test_a_history_limit_of_zero_keeps_none(stage: Stage, orders: Orders) -> None:
    fail_until(stage, 2, execution_history_limit=0, retry_policy=Fixed(0))
    await stage.app.start()
    await orders.insert_one({"_id": 1})
    await stage.next("task.completed")
    assert (await stage.record()).execution_history == ()


async def test_an_endless_error_text_is_cut(stage: Stage, orders: Orders) -> None:
    @stage.app.reactive_task(collection="orders", debounce=0, retry_policy=Fixed(0, max_attempts=1))
    async def _sync(ctx: Context) -> None:
        raise ValueError("$$x " * 100_000)

    await stage.app.start()
    await orders.insert_one({"_id": 1})
    await stage.next("task.failed")
    error = (await stage.record()).last_error
    assert error is not None
    assert error.startswith("ValueError: $$x")
    assert len(error) <= 2_000


@pytest.mark.parametrize("text", ["$$ROOT", "$status", "\x00", "\ud800", "{$function: 1}", "ěšč 🎉"])
async def test_any_error_text_can_be_kept(stage: Stage, orders: Orders, text: str) -> None:
    @stage.app.reactive_task(collection="orders", debounce=0, retry_policy=Fixed(0, max_attempts=1))
    async def _sync(ctx: Context) -> None:
        raise ValueError(text)

    await stage.app.start()
    await orders.insert_one({"_id": 1})
    await stage.next("task.failed", limit=3)
    error = (await stage.record()).last_error
    assert error is not None
    if text != "\ud800":
        assert error == f"ValueError: {text}"


async def test_an_error_whose_text_raises_is_a_failed_attempt_too(stage: Stage, orders: Orders) -> None:
    class NastyError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    @stage.app.reactive_task(
        task="nasty", collection="orders", debounce=0, retry_policy=Fixed(0, max_attempts=1)
    )
    async def _nasty(ctx: Context) -> None:
        raise NastyError

    await stage.app.start()
    await orders.insert_one({"_id": 1})
    event = await stage.next("task.failed", limit=3)
    assert event.fields["error"].startswith("NastyError")


async def test_a_handler_that_exits_is_a_failed_attempt(stage: Stage, orders: Orders) -> None:
    """``sys.exit`` in a plain function's thread must not end the instance."""

    @stage.app.reactive_task(collection="orders", debounce=0, retry_policy=Fixed(0, max_attempts=1))
    def _sync(ctx: Context) -> None:
        if ctx.doc_id == 1:
            raise SystemExit(3)

    await stage.app.start()
    await orders.insert_one({"_id": 1})
    event = await stage.next("task.failed", limit=3)
    assert "SystemExit" in event.fields["error"]
    await orders.insert_one({"_id": 2})
    await stage.next("task.completed", doc_id=2)


async def test_a_record_whose_owner_died_is_run_by_another_and_counts(
    make_stage: MakeStage, orders: Orders
) -> None:
    stage = make_stage(lease="1s")
    seen = fail_until(stage, 1)
    await stage.app.start()
    await stage.app.pause_task("sync")
    await orders.insert_one({"_id": 1, "total": 1})
    await stage.planned(1)
    dead = {"status": "processing", "attempts": 1, "oplogue.token": "of the dead"}
    await stage.app.database["orders_tasks"].update_one(
        {}, [{"$set": {**dead, "nextRunAt": {"$add": ["$$NOW", 100]}}}]
    )
    await stage.app.resume_task("sync")
    await stage.next("task.completed", attempt=2)
    assert seen == [2]


async def test_an_owner_does_not_take_over_its_own_record_whose_lease_has_passed(
    make_stage: MakeStage, orders: Orders, db: AsyncDatabase[Document]
) -> None:
    """As after a blocked event loop: it is renewed late, and its run goes on."""
    stage, gate, records = make_stage(lease="3s"), Gate(), db["orders_tasks"]

    @stage.app.reactive_task(collection="orders", debounce=0)
    async def _sync(ctx: Context) -> None:
        await gate()

    async def is_renewed() -> bool:
        return await records.find_one({"$expr": {"$gt": ["$nextRunAt", "$$NOW"]}}) is not None

    await stage.app.start()
    await orders.insert_one({"_id": 1})
    await gate.reached()
    await records.update_one({}, [{"$set": {"nextRunAt": {"$subtract": ["$$NOW", 1_000]}}}])
    await stage.eventually(is_renewed)
    gate.open()
    await stage.next("task.completed", attempt=1)
    assert len(stage.heard("task.started")) == 1


async def test_a_record_that_kills_each_owner_is_a_dead_letter(make_stage: MakeStage, orders: Orders) -> None:
    stage = make_stage(lease="1s")
    seen = fail_until(stage, 1, retry_policy=Fixed(0, max_attempts=3))
    await stage.app.start()
    await stage.app.pause_task("sync")
    await orders.insert_one({"_id": 1, "total": 1})
    await stage.planned(1)
    dead = {
        "status": "processing",
        "attempts": 3,
        "oplogue.token": "x",
        "oplogue.lost": 2,
        "oplogue.alone": True,
    }
    await stage.app.database["orders_tasks"].update_one({}, [{"$set": {**dead, "nextRunAt": "$$NOW"}}])
    await stage.app.resume_task("sync")
    await stage.next("task.dead_letter", task="sync", count=1)
    record = await stage.record()
    assert (record.status, seen) == ("failed", [])
    assert record.last_error is not None
    assert "LeaseLost" in record.last_error


async def test_a_record_without_attempts_left_that_died_among_others_has_a_run_of_its_own(
    make_stage: MakeStage, orders: Orders
) -> None:
    """A neighbour may have killed them all, each time."""
    stage = make_stage(lease="3s")
    seen = fail_until(stage, 1, retry_policy=Fixed(0, max_attempts=3))
    await stage.app.start()
    await stage.app.pause_task("sync")
    await orders.insert_one({"_id": 1, "total": 1})
    await stage.planned(1)
    died = {"status": "processing", "attempts": 3, "oplogue.lost": 2, "oplogue.alone": False}
    await stage.app.database["orders_tasks"].update_one({}, [{"$set": {**died, "nextRunAt": "$$NOW"}}])
    await stage.app.resume_task("sync")
    await stage.next("task.completed", attempt=4)
    assert seen == [4]
    assert stage.heard("task.dead_letter") == []


async def test_a_dead_letter_that_is_retried_by_hand_runs_again(
    make_stage: MakeStage, orders: Orders
) -> None:
    stage = make_stage()
    seen = fail_until(stage, 3, retry_policy=Fixed(0, max_attempts=2))
    await stage.app.start()
    await orders.insert_one({"_id": 1, "total": 1})
    await stage.next("task.failed", attempt=2)
    assert await stage.app.retry_reactive_tasks(status="failed") == 1
    await stage.next("task.completed", attempt=1)
    assert seen == [1, 2, 1]
    assert len((await stage.record()).execution_history) == 3


async def test_runs_of_many_records_that_fail_alike_and_unlike(stage: Stage, orders: Orders) -> None:
    """Outcomes are written in groups; each record keeps its own."""
    failing = asyncio.Event()

    @stage.app.reactive_task(collection="orders", debounce=0, retry_policy=Fixed(0, max_attempts=1))
    async def _sync(ctx: Context) -> None:
        failing.set()
        match ctx.doc_id % 3:
            case 0:
                raise ValueError("alike")
            case 1:
                raise ValueError(f"of {ctx.doc_id}")
            case _:
                return

    await stage.app.start()
    await orders.insert_many([{"_id": number} for number in range(90)])
    await stage.until(lambda: len(stage.heard("task.failed")) == 60)
    await stage.until(lambda: len(stage.heard("task.completed")) == 30)
    page = await stage.app.get_reactive_tasks(limit=100)
    for record in page.items:
        id_: int = record.source_doc_id
        assert record.last_error == ("ValueError: alike", f"ValueError: of {id_}", None)[id_ % 3]
