"""Reconciliation: every document of a collection is planned once, range by range.

It runs as a part of the planner's ordered pipeline, between batches: live changes are planned meanwhile, and no
document is in a range and in a batch at once, so an older read never lands last. Each range is followed by a
rest as long as it took (``pace``), so that a production database breathes. After each range a checkpoint is
saved; a scan that was broken off is resumed by the next leader if it was for the same triggers, and starts again
if their set changed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from oplogue.clock import Clock
from oplogue.model.definition import Namespace
from oplogue.runtime.bus import Bus
from oplogue.runtime.office import Office
from oplogue.store.definitions import Definitions, StoredTask
from oplogue.store.scans import Checkpoint, Range, Scans

_RANGE = 1_000

PlanRange = Callable[[Sequence[StoredTask], Range], Awaitable[None]]


@dataclass(slots=True)
class _Scan:
    source: Namespace
    tasks: list[StoredTask]
    after: Any = None
    documents: int = 0
    begun: bool = False


class Reconciler:
    """Scans the collections of tasks that have not been reconciled, for one term in office."""

    def __init__(
        self,
        *,
        tasks: Iterable[StoredTask],
        plan: PlanRange,
        scans: Scans,
        definitions: Definitions,
        finished: Callable[[Namespace], None],
        office: Office,
        pace: float,
        bus: Bus,
        clock: Clock,
    ) -> None:
        by_source: dict[Namespace, list[StoredTask]] = {}
        for task in tasks:
            by_source.setdefault(task.planned.definition.source, []).append(task)
        self._waiting = [_Scan(source, group) for source, group in by_source.items()]
        self._plan = plan
        self._scans = scans
        self._definitions = definitions
        self._finished = finished
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
        if not scan.begun:
            await self._begin(scan)
        following = await self._scans.next_range(scan.source, scan.after, _RANGE)
        await self._plan(scan.tasks, following)
        self._office.beat()
        scan.documents += following.size
        if following.last is None:
            await self._end(scan)
        else:
            scan.after = following.last
            reached = Checkpoint(scan.after, scan.documents)
            await self._scans.save(scan.source, scan.tasks, reached, self._office.term.number)
        took = self._clock.monotonic() - started
        self._next_at = self._clock.monotonic() + took * (1 / self._pace - 1)

    async def _begin(self, scan: _Scan) -> None:
        reached = await self._scans.checkpoint(scan.source, scan.tasks)
        if reached is not None:
            scan.after, scan.documents = reached.last, reached.documents
        scan.begun = True
        names = [task.name for task in scan.tasks]
        self._bus.emit("reconciliation.started", source=str(scan.source), tasks=names)

    async def _end(self, scan: _Scan) -> None:
        await self._definitions.reconciled(scan.tasks)
        await self._scans.finish(scan.source)
        self._waiting.pop(0)
        self._finished(scan.source)
        names = [task.name for task in scan.tasks]
        self._bus.emit(
            "reconciliation.finished", source=str(scan.source), tasks=names, documents=scan.documents
        )
