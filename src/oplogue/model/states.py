"""The states of a task record, and the one place where a transition between them is made.

::

                       claim                        success, skip
      pending ───────────────────▶ processing ───────────────────▶ completed
       ▲  ▲  ▲                      │  │  │                            │
       │  │  └── retry, deferral, ──┘  │  └── no attempts left ──▶ failed
       │  │      release               │ data changed                  │
       │  │                            ▼                               │
       │  └── run ended ──── processing_dirty                          │
       └───────────── data changed, entered again, manual retry ───────┘

A transition is decided here without a look at the database, so it carries both answers: what the record becomes
when nothing happened meanwhile, and what it becomes *again* when the planner marked it dirty while it ran. The
store applies whichever holds, in one fenced update.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Any


class Status(StrEnum):
    """What is stored in a record's ``status``."""

    PENDING = "pending"
    PROCESSING = "processing"
    PROCESSING_DIRTY = "processing_dirty"
    COMPLETED = "completed"
    FAILED = "failed"


RUNNING = (Status.PROCESSING, Status.PROCESSING_DIRTY)
"""The statuses of a record that somebody owns."""


class Reason(StrEnum):
    """Why a run ended as it did; also the word that events and metrics use."""

    COMPLETED = "completed"
    SKIPPED = "skipped"
    MOVED = "moved"
    RETRIED = "retried"
    FAILED = "failed"
    DEFERRED = "deferred"
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class Edge:
    """One way from a status to another."""

    cause: str
    before: Status | None
    after: Status


EDGES = (
    Edge("planned for the first time", None, Status.PENDING),
    Edge("planned again", Status.PENDING, Status.PENDING),
    Edge("planned again", Status.COMPLETED, Status.PENDING),
    Edge("planned again", Status.FAILED, Status.PENDING),
    Edge("planned again", Status.PROCESSING, Status.PROCESSING_DIRTY),
    Edge("planned again", Status.PROCESSING_DIRTY, Status.PROCESSING_DIRTY),
    Edge("could not be planned", None, Status.FAILED),
    Edge("could not be planned", Status.PENDING, Status.FAILED),
    Edge("could not be planned", Status.COMPLETED, Status.FAILED),
    Edge("could not be planned", Status.FAILED, Status.FAILED),
    Edge("retried by hand", Status.PENDING, Status.PENDING),
    Edge("retried by hand", Status.COMPLETED, Status.PENDING),
    Edge("retried by hand", Status.FAILED, Status.PENDING),
    Edge("retried by hand", Status.PROCESSING, Status.PROCESSING_DIRTY),
    Edge("retried by hand", Status.PROCESSING_DIRTY, Status.PROCESSING_DIRTY),
    Edge("claimed", Status.PENDING, Status.PROCESSING),
    Edge("reclaimed", Status.PROCESSING, Status.PROCESSING),
    Edge("reclaimed", Status.PROCESSING_DIRTY, Status.PROCESSING),
    Edge("lost its lease too often", Status.PROCESSING, Status.FAILED),
    Edge("lost its lease too often", Status.PROCESSING_DIRTY, Status.PENDING),
    Edge("succeeded", Status.PROCESSING, Status.COMPLETED),
    Edge("succeeded", Status.PROCESSING_DIRTY, Status.PENDING),
    Edge("skipped, the document is outside or gone", Status.PROCESSING, Status.COMPLETED),
    Edge("skipped, the document is outside or gone", Status.PROCESSING_DIRTY, Status.PENDING),
    Edge("skipped, the watched values moved on", Status.PROCESSING, Status.PENDING),
    Edge("skipped, the watched values moved on", Status.PROCESSING_DIRTY, Status.PENDING),
    Edge("failed, attempts left", Status.PROCESSING, Status.PENDING),
    Edge("failed, attempts left", Status.PROCESSING_DIRTY, Status.PENDING),
    Edge("failed, no attempts left", Status.PROCESSING, Status.FAILED),
    Edge("failed, no attempts left", Status.PROCESSING_DIRTY, Status.PENDING),
    Edge("deferred", Status.PROCESSING, Status.PENDING),
    Edge("deferred", Status.PROCESSING_DIRTY, Status.PENDING),
    Edge("released", Status.PROCESSING, Status.PENDING),
    Edge("released", Status.PROCESSING_DIRTY, Status.PENDING),
)
"""Every way there is. Docs and tests are held against it."""


@dataclass(frozen=True, slots=True)
class Transition:
    """What the end of a run makes of its record. Equal transitions are written in one statement."""

    reason: Reason
    status: Status
    run_in: timedelta | None = None
    """Pending: how long after the server's now; with ``run_at`` the other way to say it."""
    run_at: datetime | None = None
    again_in: timedelta = timedelta()
    """How long a dirty record waits before it runs again."""
    resets_attempts: bool = True
    """Whether a dirty record starts with a full set of attempts."""
    duration_ms: int = 0
    history_limit: int = 5
    error: str | None = None
    leaves: bool = False
    """Skipped: the document was found outside, so that its return must be noticed."""
    trace: str | None = None
    """Failed: where this attempt is found in a tracing system, for the next one to link to."""
    values: dict[str, Any] | None = None
    """Moved: the watched values that the check read."""

    @property
    def counts(self) -> bool:
        """Whether this was an attempt: a deferral or a release takes it back."""
        return self.reason not in (Reason.DEFERRED, Reason.RELEASED)

    @property
    def succeeded(self) -> bool:
        """Whether it ended an error sequence: a skip counts as success."""
        return self.reason in (Reason.COMPLETED, Reason.SKIPPED, Reason.MOVED)


@lru_cache(maxsize=256)
def completed(*, duration_ms: int, debounce: timedelta, history_limit: int) -> Transition:
    """The handler returned. Most runs end so: those that end alike share one transition."""
    return Transition(
        Reason.COMPLETED,
        Status.COMPLETED,
        again_in=debounce,
        duration_ms=duration_ms,
        history_limit=history_limit,
    )


def skipped(*, duration_ms: int, debounce: timedelta, history_limit: int, outside: bool = True) -> Transition:
    """Nothing to do for this state. A document that is outside is marked as left, so that its return is noticed."""
    return Transition(
        Reason.SKIPPED,
        Status.COMPLETED,
        leaves=outside,
        again_in=debounce,
        duration_ms=duration_ms,
        history_limit=history_limit,
    )


def moved(values: dict[str, Any], *, duration_ms: int, debounce: timedelta, history_limit: int) -> Transition:
    """The watched values moved on before the handler looked: planned anew with the values that it found."""
    return Transition(
        Reason.MOVED,
        Status.PENDING,
        run_in=debounce,
        again_in=debounce,
        duration_ms=duration_ms,
        history_limit=history_limit,
        values=values,
    )


def retried(
    delay: timedelta,
    *,
    error: str,
    duration_ms: int,
    again_in: timedelta,
    resets_attempts: bool,
    history_limit: int,
) -> Transition:
    """The handler failed and has attempts left."""
    return Transition(
        Reason.RETRIED,
        Status.PENDING,
        run_in=delay,
        again_in=again_in,
        resets_attempts=resets_attempts,
        duration_ms=duration_ms,
        history_limit=history_limit,
        error=error,
    )


def failed(
    *, error: str, duration_ms: int, again_in: timedelta, resets_attempts: bool, history_limit: int
) -> Transition:
    """The handler failed for good: a dead letter, unless its data changed meanwhile."""
    return Transition(
        Reason.FAILED,
        Status.FAILED,
        again_in=again_in,
        resets_attempts=resets_attempts,
        duration_ms=duration_ms,
        history_limit=history_limit,
        error=error,
    )


def deferred(until: timedelta | datetime) -> Transition:
    """The handler put itself off. No attempt is counted, and a dirty record too waits until then."""
    if isinstance(until, timedelta):
        return Transition(Reason.DEFERRED, Status.PENDING, run_in=until)
    return Transition(Reason.DEFERRED, Status.PENDING, run_at=until)


def released(*, debounce: timedelta) -> Transition:
    """Claimed, never started, given back: due at once, no attempt counted."""
    return Transition(Reason.RELEASED, Status.PENDING, run_in=timedelta(), again_in=debounce)
