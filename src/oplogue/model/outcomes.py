"""How a run ended, and the pure decision what that makes of its record."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, assert_never

from oplogue.model import states
from oplogue.model.definition import TaskDefinition
from oplogue.model.record import ClaimedRecord
from oplogue.model.states import Transition

ERROR_LIMIT = 2_000
"""Characters of an error that are kept: what grows has a bound."""


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The handler returned."""

    duration_ms: int


@dataclass(frozen=True, slots=True)
class Skipped:
    """The document is gone or no longer matches; or the handler itself said that its condition has failed."""

    duration_ms: int
    outside: bool = True


@dataclass(frozen=True, slots=True)
class Moved:
    """The document matches, with other watched values than those that the run was planned for."""

    duration_ms: int
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Raised:
    """The handler raised, or ran out of its time."""

    duration_ms: int
    error: str


@dataclass(frozen=True, slots=True)
class Deferred:
    """The handler asked to run later."""

    until: timedelta | datetime


@dataclass(frozen=True, slots=True)
class Released:
    """The record was claimed and never started."""


Outcome = Succeeded | Skipped | Moved | Raised | Deferred | Released


def decide(outcome: Outcome, record: ClaimedRecord, definition: TaskDefinition, now: datetime) -> Transition:
    """What an outcome makes of a record. ``now`` is an estimate of the server's time."""
    debounce, limit = definition.debounce, definition.execution_history_limit
    match outcome:
        case Succeeded(duration_ms):
            return states.completed(duration_ms=duration_ms, debounce=debounce, history_limit=limit)
        case Skipped(duration_ms, outside):
            return states.skipped(
                outside=outside, duration_ms=duration_ms, debounce=debounce, history_limit=limit
            )
        case Moved(duration_ms, values):
            return states.moved(values, duration_ms=duration_ms, debounce=debounce, history_limit=limit)
        case Raised():
            return _after_failure(outcome, record, definition, now)
        case Deferred(until):
            return states.deferred(until)
        case Released():
            return states.released(debounce=debounce)
    assert_never(outcome)


def _after_failure(
    outcome: Raised, record: ClaimedRecord, definition: TaskDefinition, now: datetime
) -> Transition:
    policy = definition.retry_policy
    delay = policy.delay_after(record.attempts, now)
    backoff = policy.first_delay if policy.first_delay is not None else delay
    error = _storable(outcome.error)
    # A document that changed meanwhile still backs off: failing and changing must not become a busy loop.
    again_in = max(definition.debounce, backoff)
    resets, limit = policy.reset_retries_on_data_change, definition.execution_history_limit
    if policy.gives_up(record.attempts, record.first_error_at or now, now):
        return states.failed(
            error=error,
            duration_ms=outcome.duration_ms,
            again_in=again_in,
            resets_attempts=resets,
            history_limit=limit,
        )
    return states.retried(
        delay,
        error=error,
        duration_ms=outcome.duration_ms,
        again_in=again_in,
        resets_attempts=resets,
        history_limit=limit,
    )


def _storable(text: str) -> str:
    """An error's text as far as it can be kept: a file's name in it may be no Unicode."""
    return text[:ERROR_LIMIT].encode("utf-8", "replace").decode()
