"""Whether an instance is alive, and whether it can work: judged from a few facts, with reasons.

*Live* says that the process is worth keeping: its event loop turns, and the part that renews its leases makes its
rounds. What a restart would not mend is no reason against it: an instance without its database is live.
*Ready* says that it takes part: started, not stopping, and the database has answered its heartbeat within a lease.
One length decides all of it: the lease. Nothing of an instance that is silent for longer is trusted by the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum


class Phase(StrEnum):
    """Where an instance is in its life."""

    NOT_STARTED = "not started"
    STARTING = "starting"
    STARTED = "started"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class Vitals:
    """What is known of an instance; ``None``: that part does not run now."""

    phase: Phase
    loop_silent: float | None = None
    """Seconds since the event loop last turned."""
    renewal_silent: float | None = None
    """Seconds since the part that renews leases last ended a round, successful or not."""
    database_silent: float | None = None
    """Seconds since the database last answered the heartbeat."""


@dataclass(frozen=True, slots=True)
class Health:
    """Whether an instance is alive and can work, and what speaks against it.

    >>> Health(live=True, ready=False, reasons=("the instance is starting",)).ready
    False
    """

    live: bool
    ready: bool
    reasons: tuple[str, ...] = ()


def judge_health(vitals: Vitals, lease: timedelta) -> Health:
    """What these facts say.

    >>> judge_health(Vitals(Phase.STARTED, 0.1, 0.1, 75.0), timedelta(seconds=60))
    Health(live=True, ready=False, reasons=('the database has not answered for 75 s, longer than a lease',))
    """
    limit = lease.total_seconds()
    dead = _silent(vitals.loop_silent, limit, "the event loop has not turned")
    dead += _silent(vitals.renewal_silent, limit, "lease renewal has made no round")
    idle = [] if vitals.phase is Phase.STARTED else [f"the instance is {vitals.phase}"]
    idle += _silent(vitals.database_silent, limit, "the database has not answered")
    return Health(live=not dead, ready=not dead and not idle, reasons=(*dead, *idle))


def _silent(seconds: float | None, limit: float, what: str) -> list[str]:
    late = seconds is not None and seconds > limit
    return [f"{what} for {seconds:.0f} s, longer than a lease"] if late else []
