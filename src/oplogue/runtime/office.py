"""One term in office, as the parts that work in it see it."""

from __future__ import annotations

from datetime import timedelta

from oplogue.clock import Clock
from oplogue.errors import LeadershipLostError
from oplogue.store.leadership import Term


class Office:
    """One term in office: how long it is trusted, and whether its planner makes progress. Used by two threads."""

    def __init__(self, term: Term, *, lease: timedelta, since: float, clock: Clock) -> None:
        self.term = term
        self._lease = lease.total_seconds()
        self._clock = clock
        self._renewed_at = since
        self._progress_at = clock.monotonic()
        self.over: str | None = None
        """Why it ended, once it has."""

    def beat(self) -> None:
        """The planner is alive."""
        self._progress_at = self._clock.monotonic()

    @property
    def trusted_for(self) -> float:
        """Seconds until the lease must be given up."""
        return self._renewed_at + self._lease * 5 / 6 - self._clock.monotonic()

    @property
    def to_be_renewed(self) -> bool:
        """Whether a third of the lease has passed, and the planner deserves another."""
        now = self._clock.monotonic()
        alive = now - self._progress_at < self._lease / 2
        return self.over is None and alive and now - self._renewed_at >= self._lease / 3

    def answered(self, kept: bool, asked_at: float) -> None:
        """A renewal that was sent at that moment came back: renewed, or a newer term exists."""
        if kept:
            self._renewed_at = asked_at
        else:
            self.over = "a newer term exists"

    def check(self) -> None:
        """Raise when this instance may no longer plan."""
        if self.over is None and self.trusted_for <= 0:
            self.over = "the lease could not be renewed in time"
        if self.over is not None:
            raise LeadershipLostError(self.over)
