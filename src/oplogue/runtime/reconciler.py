"""Reconciliation: every document of a collection is planned once, range by range.

::

    begin: go on at the checkpoint of the same requests, or start
      │
      ▼
    range ──▶ plan it ──▶ checkpoint ──▶ rest ──▶ next range … last one ──▶ requests are met ──▶ cleanup

Invariants:

- It is a part of the planner's ordered pipeline, between batches: live changes are planned meanwhile, and no
  document is in a range and in a batch at once, so an older read never lands last.
- A checkpoint stands behind no document that is not planned: while the planner holds some back, none is saved.
- A checkpoint is for certain requests, by their numbers. One that comes while its collection is scanned starts the
  scan again: what is before the checkpoint may have changed unseen. A change of leader is no request: the next
  leader goes on, and repeats one range at most.
- Its writes carry the term: after a later leader's they change nothing.

A range takes about a tenth of a second, whatever documents and filters cost: it grows and shrinks with the time that
the last one took. Each is followed by a rest (``pace``), so that a production database breathes.

On failure: what passes is sent again while the office lasts; a range that runs out of time, or is refused, is
planned in parts by the planner; when the office is lost the scan stops where it is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from oplogue.clock import Clock
from oplogue.model.definition import Namespace
from oplogue.model.reconciliation import Reconciliation
from oplogue.runtime.bus import Bus
from oplogue.runtime.office import Office
from oplogue.runtime.parts import check_cancelled
from oplogue.store.definitions import Definitions, StoredTask
from oplogue.store.faults import persisting
from oplogue.store.ranges import Range
from oplogue.store.scans import Checkpoint, Scans, by_source

_FIRST_RANGE, _LONGEST_RANGE = 1_000, 4_000
_RANGE_TAKES = 0.1
_TOLD_EVERY = 5.0
_HELD_FOR = 0.5

PlanRange = Callable[[Sequence[StoredTask], Range], Awaitable[None]]
Answer = TypeVar("Answer")


@dataclass(slots=True)
class _Scan:
    source: Namespace
    tasks: list[StoredTask]
    reached: Checkpoint = field(default_factory=Checkpoint)
    size: int = _FIRST_RANGE
    estimate: int = 0
    begun_at: float | None = None
    begun_with: int = 0
    told_at: float = 0.0

    @property
    def names(self) -> list[str]:
        return [task.name for task in self.tasks]

    def passed(self, following: Range) -> None:
        """These documents are planned."""
        documents = self.reached.documents + following.size
        # The last range has no end; where it began is kept, or a new leader would start again.
        last = following.last or following.after
        self.reached = Checkpoint(last, documents, complete=following.last is None)

    def adapt(self, took: float) -> None:
        """The next range is as long as fits its time; it grows to the double at most."""
        fitting = int(self.size * min(_RANGE_TAKES / max(took, 0.001), 2))
        self.size = min(max(fitting, 1), _LONGEST_RANGE)

    def speed(self, now: float) -> float:
        """Documents per second since this leader began."""
        assert self.begun_at is not None  # asked after the first range
        return (self.reached.documents - self.begun_with) / max(now - self.begun_at, 0.001)


class Reconciler:
    """Scans the collections of tasks that have not been reconciled, for one term in office."""

    def __init__(
        self,
        *,
        tasks: Iterable[StoredTask],
        plan: PlanRange,
        holds: Callable[[Namespace], bool],
        scans: Scans,
        definitions: Definitions,
        finished: Callable[[Namespace], None],
        overtaken: Callable[[], None],
        office: Office,
        pace: float,
        bus: Bus,
        clock: Clock,
    ) -> None:
        self._waiting = [_Scan(source, group) for source, group in by_source(tasks).items()]
        self._plan = plan
        self._holds = holds
        self._scans = scans
        self._definitions = definitions
        self._finished = finished
        self._overtaken = overtaken
        self._office = office
        self._pace = pace
        self._bus = bus
        self._clock = clock
        self._next_at = 0.0

    def due_in(self) -> float | None:
        """Seconds until the next range; None when all is reconciled."""
        if not self._waiting:
            return None
        return max(self._next_at - self._clock.monotonic(), 0.0)

    async def step(self) -> None:
        """Plan one range."""
        scan, started = self._waiting[0], self._clock.monotonic()
        if scan.begun_at is None:
            await self._begin(scan)
        if not scan.reached.complete:
            await self._plan_next(scan)
        rest = (self._clock.monotonic() - started) * (1 / self._pace - 1)
        if scan.reached.complete:
            if self._holds(scan.source):
                rest = _HELD_FOR
            else:
                await self._end(scan)
        self._next_at = self._clock.monotonic() + rest

    async def _begin(self, scan: _Scan) -> None:
        scan.estimate = await self._send(lambda: self._scans.estimate(scan.source))
        scan.reached = await self._send(
            lambda: self._scans.begin(scan.source, scan.tasks, scan.estimate, self._office.term.number)
        )
        scan.begun_at, scan.begun_with = self._clock.monotonic(), scan.reached.documents
        self._bus.emit(
            "reconciliation.started",
            source=str(scan.source),
            tasks=scan.names,
            documents=scan.reached.documents,
        )

    async def _plan_next(self, scan: _Scan) -> None:
        started = self._clock.monotonic()
        following = await self._send(
            lambda: self._scans.ranges.following(scan.source, scan.reached.last, scan.size)
        )
        await self._plan(scan.tasks, following)
        self._office.beat()
        scan.passed(following)
        scan.adapt(self._clock.monotonic() - started)
        if not self._holds(scan.source):
            await self._save(scan)
        self._tell(scan)

    async def _save(self, scan: _Scan) -> None:
        speed = scan.speed(self._clock.monotonic())
        await self._send(lambda: self._scans.save(scan.source, scan.reached, speed, self._office.term.number))

    def _tell(self, scan: _Scan) -> None:
        now = self._clock.monotonic()
        if scan.reached.complete or (scan.told_at and now - scan.told_at < _TOLD_EVERY):
            return
        scan.told_at = now
        so_far = Reconciliation(
            source=scan.source,
            tasks=tuple(scan.names),
            documents=scan.reached.documents,
            estimate=max(scan.estimate, scan.reached.documents),
            per_second=scan.speed(now),
        )
        self._bus.emit(
            "reconciliation.progress",
            source=str(scan.source),
            tasks=scan.names,
            documents=so_far.documents,
            estimate=so_far.estimate,
            per_second=round(so_far.per_second, 1),
            seconds_left=None if so_far.remaining is None else round(so_far.remaining.total_seconds(), 1),
        )

    async def _end(self, scan: _Scan) -> None:
        # Fenced by the term before the requests are met: a former leader comes no further.
        await self._save(scan)
        met = await self._send(lambda: self._definitions.reconciled(scan.tasks))
        if len(met) < len(scan.tasks):
            self._overtaken()
        else:
            await self._send(lambda: self._scans.finish(scan.source, self._office.term.number))
        self._waiting.pop(0)
        if met:
            self._finished(scan.source)
            documents = scan.reached.documents
            self._bus.emit("reconciliation.finished", source=str(scan.source), tasks=met, documents=documents)

    async def _send(self, statement: Callable[[], Awaitable[Answer]]) -> Answer:
        """Send it again while its failures pass, and this instance is in office."""
        return await persisting(statement, self._clock, until=self._is_over)

    def _is_over(self) -> bool:
        check_cancelled()
        self._office.check()
        return False
