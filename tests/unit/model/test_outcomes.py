"""What the end of a run makes of its record."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from oplogue.model.definition import TaskDefinition, define_task
from oplogue.model.outcomes import (
    ERROR_LIMIT,
    Deferred,
    Moved,
    Raised,
    Released,
    Skipped,
    Succeeded,
    decide,
)
from oplogue.model.record import ClaimedRecord
from oplogue.model.retry import CronRetry, Exponential, Fixed, Series
from oplogue.model.states import Reason, Status
from oplogue.runtime.context import Context

NOW = datetime(2026, 1, 1, 9, 45, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def a_definition(**options: Any) -> TaskDefinition:
    """A task's definition with these options."""

    async def handler(ctx: Context) -> None: ...

    usual: dict[str, Any] = dict.fromkeys(
        ["filter", "watch_projection", "max_wait", "retry_policy", "cleanup_policy", "evolution", "timeout"]
    )
    usual |= {"concurrency": None, "priority": 0, "debounce": "2s", "execution_history_limit": 7}
    return define_task(
        handler, context_type=Context, task="sync", collection="orders", **{**usual, **options}
    ).definition


def a_record(attempts: int = 1, first_error_at: datetime | None = None) -> ClaimedRecord:
    """A claimed record."""
    return ClaimedRecord(
        id=1, task="sync", doc_id=7, attempts=attempts, values={}, token="t", first_error_at=first_error_at
    )


def test_a_success_completes() -> None:
    made = decide(Succeeded(12), a_record(), a_definition(), NOW)
    assert (made.reason, made.status, made.duration_ms) == (Reason.COMPLETED, Status.COMPLETED, 12)
    assert (made.again_in, made.history_limit, made.error) == (2 * SECOND, 7, None)
    assert made.succeeded
    assert made.counts


def test_a_skip_completes_and_counts_as_success() -> None:
    made = decide(Skipped(3), a_record(), a_definition(), NOW)
    assert (made.reason, made.status, made.succeeded) == (Reason.SKIPPED, Status.COMPLETED, True)


def test_values_that_moved_are_planned_anew() -> None:
    made = decide(Moved(3, {"total": 2}), a_record(), a_definition(), NOW)
    assert (made.reason, made.status, made.run_in) == (Reason.MOVED, Status.PENDING, 2 * SECOND)
    assert made.values == {"total": 2}
    assert made.succeeded


@pytest.mark.parametrize("until", [SECOND, NOW])
def test_a_deferral_counts_no_attempt(until: timedelta | datetime) -> None:
    made = decide(Deferred(until), a_record(), a_definition(), NOW)
    assert (made.reason, made.status, made.counts, made.succeeded) == (
        Reason.DEFERRED,
        Status.PENDING,
        False,
        False,
    )
    assert until in (made.run_in, made.run_at)


def test_a_release_is_due_at_once_and_counts_no_attempt() -> None:
    made = decide(Released(), a_record(), a_definition(), NOW)
    assert (made.reason, made.status, made.counts) == (Reason.RELEASED, Status.PENDING, False)
    assert made.run_in == timedelta()


@pytest.mark.parametrize(("attempts", "seconds"), [(1, 10), (2, 20), (3, 40)])
def test_a_failure_waits_as_its_policy_says(attempts: int, seconds: int) -> None:
    made = decide(Raised(5, "E: no"), a_record(attempts), a_definition(retry_policy=Exponential()), NOW)
    assert (made.reason, made.status, made.error) == (Reason.RETRIED, Status.PENDING, "E: no")
    assert made.run_in == timedelta(seconds=seconds)
    # Changed meanwhile: the longer of the debounce and the policy's first delay.
    assert made.again_in == timedelta(seconds=10)
    assert made.resets_attempts


def test_a_change_during_a_failing_run_waits_for_the_debounce_where_that_is_longer() -> None:
    definition = a_definition(retry_policy=Fixed("1s"), debounce="30s")
    assert decide(Raised(5, "no"), a_record(), definition, NOW).again_in == timedelta(seconds=30)


def test_a_cron_policy_says_its_next_time() -> None:
    made = decide(Raised(5, "no"), a_record(), a_definition(retry_policy=CronRetry("0 * * * *")), NOW)
    assert made.run_in == made.again_in == timedelta(minutes=15)


def test_the_last_attempt_fails_for_good() -> None:
    policy = Series(["1m", "5m"], max_attempts=3, reset_retries_on_data_change=False)
    made = decide(Raised(5, "no"), a_record(3), a_definition(retry_policy=policy), NOW)
    assert (made.reason, made.status, made.run_in, made.run_at) == (Reason.FAILED, Status.FAILED, None, None)
    assert not made.resets_attempts
    assert (
        decide(Raised(5, "no"), a_record(2), a_definition(retry_policy=policy), NOW).status == Status.PENDING
    )


def test_a_duration_counts_from_the_first_failure_of_the_sequence() -> None:
    definition = a_definition(retry_policy=Fixed("1m", max_duration="1h"))
    first = NOW - timedelta(hours=2)
    assert decide(Raised(5, "no"), a_record(9), definition, NOW).status == Status.PENDING
    assert decide(Raised(5, "no"), a_record(9, first), definition, NOW).status == Status.FAILED


def test_an_error_is_cut() -> None:
    made = decide(Raised(5, "x" * 10_000), a_record(), a_definition(), NOW)
    assert made.error == "x" * ERROR_LIMIT
