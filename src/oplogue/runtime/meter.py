"""What this instance did, in figures. Fed on the hot path: a dictionary look-up and an addition each.

Runs, claims and settles are counted where they happen; what is rare is counted from its event.
"""

from __future__ import annotations

from collections.abc import Mapping

from oplogue.model import metrics
from oplogue.model.events import Event
from oplogue.model.figures import Figures, Histogram, Series
from oplogue.model.metrics import Metric
from oplogue.model.states import Reason, Transition
from oplogue.runtime.bus import Bus

RUN_STATUSES = ("success", "failed")
"""How a run may have ended, as metrics tell it."""

_STATUSES: Mapping[Reason, str] = {
    Reason.COMPLETED: "success",
    Reason.SKIPPED: "success",
    Reason.MOVED: "success",
    Reason.RETRIED: "failed",
    Reason.FAILED: "failed",
}
_COUNTED: Mapping[Reason, Metric] = {
    Reason.SKIPPED: metrics.SKIPS,
    Reason.MOVED: metrics.SKIPS,
    Reason.RETRIED: metrics.RETRIES,
    Reason.FAILED: metrics.DEAD_LETTERS,
    Reason.DEFERRED: metrics.DEFERRALS,
}
_EVENTS: Mapping[str, tuple[Metric, str | None]] = {
    "task.lease_lost": (metrics.LOST_LEASES, None),
    "task.dead_letter": (metrics.DEAD_LETTERS, "count"),
    "leadership.gained": (metrics.LEADER_ELECTIONS, None),
    "planner.planned": (metrics.PLANNED, "count"),
    "planner.parked": (metrics.PARKED, None),
    "planner.batch_failed": (metrics.FAILED_BATCHES, None),
    "planner.stream_error": (metrics.STREAM_ERRORS, None),
    "planner.history_lost": (metrics.HISTORY_LOSSES, None),
    "reconciliation.finished": (metrics.RECONCILIATIONS, None),
    "part.failed": (metrics.PART_FAILURES, None),
}
"""What an event counts as, and which of its fields says how many it stands for."""
_FAILED_OPERATIONS: Mapping[str, str] = {
    "claim.failed": "claim",
    "settle.failed": "settle",
    "lease.renewal_failed": "renewal",
}
OPERATIONS = tuple(_FAILED_OPERATIONS.values())
"""What may fail and is tried again."""
PARTS = (
    "census",
    "claims",
    "cleanup",
    "cleanup by events",
    "definitions",
    "leader",
    "lease renewal",
    "metrics",
    "presence",
    "pulse",
    "quiet",
    "reclaims",
    "reprocessing",
    "resignation",
    "throttle",
)
"""Parts that are there in every instance; a collection's outcomes are one more each."""
_FIELDS: Mapping[str, str] = {"task_name": "task", "part": "part"}
"""Labels, and the fields of events that they come from."""


class Meter:
    """Counts, for one app, from its making on: a stop and a start reset nothing."""

    def __init__(self, bus: Bus) -> None:
        self._figures = Figures()
        self._runs: dict[tuple[str, str], Histogram] = {}
        self._claims = self._histogram(metrics.CLAIM_DURATION)
        self._claimed = self._histogram(metrics.CLAIMED_RECORDS)
        self._settles = self._histogram(metrics.SETTLE_DURATION)
        for code in (*_EVENTS, *_FAILED_OPERATIONS):
            bus.subscribe(code, self._count_event)

    def read(self) -> Figures:
        """What has been counted so far."""
        return self._figures.copy()

    def run_ended(self, task: str, transition: Transition) -> None:
        """A run was settled."""
        counted = _COUNTED.get(transition.reason)
        if counted is not None:
            self._add((counted.name, task))
        status = _STATUSES.get(transition.reason)
        if status is not None:
            runs = self._runs.get((task, status))
            if runs is None:
                runs = self._runs[task, status] = self._histogram(metrics.DURATION, task, status)
            runs.observe(transition.duration_ms / 1000)

    def claimed(self, count: int, seconds: float) -> None:
        """A claim came home with so many records."""
        self._claims.observe(seconds)
        self._claimed.observe(count)

    def settled(self, seconds: float) -> None:
        """A group of outcomes was written."""
        self._settles.observe(seconds)

    def woken(self) -> None:
        """The claims were told that there is something to claim."""
        self._add((metrics.WAKE_UPS.name,))

    def _count_event(self, event: Event) -> None:
        operation = _FAILED_OPERATIONS.get(event.code)
        if operation is not None:
            self._add((metrics.FAILED_OPERATIONS.name, operation))
            return
        metric, amount = _EVENTS[event.code]
        labels = (str(event.fields[_FIELDS[label]]) for label in metric.labels)
        self._add((metric.name, *labels), 1 if amount is None else event.fields[amount])

    def _add(self, series: Series, amount: float = 1) -> None:
        counters = self._figures.counters
        counters[series] = counters.get(series, 0) + amount

    def _histogram(self, metric: Metric, *labels: str) -> Histogram:
        found = self._figures.histograms[metric.name, *labels] = Histogram(metric.bounds)
        return found
