"""What the demo's app does, counted from its events."""

from __future__ import annotations

import logging
import math
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from oplogue.app import App
from oplogue.clock import Clock
from oplogue.model.events import EVENTS, Event, RunEvent

_ENDS = ("completed", "skipped", "retried", "failed", "deferred", "lease_lost")
_RECENT = 40
_WINDOW = 3.0


class Gauges:
    """Counts per task, what runs, and the latest events that a person would want to read."""

    def __init__(self, app: App, clock: Clock) -> None:
        self._clock = clock
        self._marks: deque[tuple[float, Counter[str]]] = deque()
        self.ended: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """For each task, how many runs ended how: by the second word of the event's code."""
        self.running: defaultdict[str, set[Any]] = defaultdict(set)
        self.moved: float = clock.monotonic()
        """When a run last ended well."""
        self.recent: deque[tuple[datetime, int, str]] = deque(maxlen=_RECENT)
        app.on("task.started")(self._started)
        for end in _ENDS:
            app.on(f"task.{end}")(self._ended)
        for code, kind in EVENTS.items():
            if kind.level > logging.DEBUG:
                app.on(code)(self._note)

    def done(self, task: str) -> int:
        """How many runs ended well. A skip is none: its handler did not come to its end."""
        return self.ended[task]["completed"]

    def done_in_all(self) -> int:
        """The same of all tasks."""
        return sum(counts["completed"] for counts in self.ended.values())

    def mark(self, tasks: Collection[str]) -> dict[str, float]:
        """Runs per second of each task in the last seconds; to be asked for again and again."""
        now = self._clock.monotonic()
        counts = Counter({task: self.done(task) for task in tasks})
        self._marks.append((now, counts))
        while len(self._marks) > 2 and now - self._marks[1][0] > _WINDOW:
            self._marks.popleft()
        then, before = self._marks[0]
        elapsed = max(now - then, 1e-3)
        return {task: (counts[task] - before[task]) / elapsed for task in tasks}

    def _started(self, event: RunEvent) -> None:
        self.running[event.task].add(event.doc_id)

    def _ended(self, event: RunEvent) -> None:
        end = event.code.partition(".")[2]
        self.ended[event.task][end] += 1
        self.running[event.task].discard(event.doc_id)
        if end == "completed":
            self.moved = self._clock.monotonic()

    def _note(self, event: Event) -> None:
        kind = EVENTS[event.code]
        message = kind.message.format_map(event.fields)
        self.recent.append((event.at, kind.level, message))


def percentile(values: Sequence[float], part: float) -> float | None:
    """The value below which that part of them lies; None of nothing.

    >>> percentile([5, 1, 3, 2, 4], 0.5), percentile([1, 2], 0.99), percentile([], 0.5)
    (3, 2, None)
    """
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(math.ceil(part * len(ordered)) - 1, 0)]
