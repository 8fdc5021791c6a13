"""The state of the cluster, as metrics report it: read from the database, and kept for a few seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from oplogue.clock import Clock
from oplogue.model.definition import Namespace
from oplogue.model.reconciliation import Reconciliation
from oplogue.runtime.bus import Bus
from oplogue.runtime.parts import report
from oplogue.store.backlog import Backlog, Depths
from oplogue.store.definitions import Definitions, StoredTask
from oplogue.store.faults import StoreError
from oplogue.store.instances import Instances, Load
from oplogue.store.leadership import Leadership, Progress
from oplogue.store.scans import Scans, by_source

_FRESH_FOR = 5.0


@dataclass(frozen=True, slots=True)
class State:
    """What the database says."""

    tasks: tuple[str, ...]
    depths: Depths
    progress: Progress
    loads: dict[str, Load]
    unreconciled: int
    reconciled_at: datetime | None
    """When a task's documents were last reconciled."""
    reconciliations: dict[Namespace, Reconciliation | None]
    """For each collection, what is being reconciled or waits for it."""


class Overview:
    """Asked often, reads seldom."""

    def __init__(
        self,
        *,
        definitions: Definitions,
        backlog: Backlog,
        leadership: Leadership,
        instances: Instances,
        scans: Scans,
        bus: Bus,
        clock: Clock,
    ) -> None:
        self._definitions = definitions
        self._backlog = backlog
        self._leadership = leadership
        self._instances = instances
        self._scans = scans
        self._bus = bus
        self._clock = clock
        self._state: State | None = None
        self._read_at: float | None = None
        self._lock = asyncio.Lock()

    async def read(self) -> State | None:
        """The state, a few seconds old at most; None where the database could not tell."""
        async with self._lock:
            now = self._clock.monotonic()
            if self._read_at is None or now - self._read_at >= _FRESH_FOR:
                self._read_at = now
                try:
                    self._state = await self._look()
                except StoreError as error:
                    self._state = None
                    report(self._bus, "metrics", error)
            return self._state

    async def _look(self) -> State:
        tasks, progress, loads = await asyncio.gather(
            self._definitions.all(), self._leadership.progress(), self._instances.loads()
        )
        reconciled = (task.reconciled_at for task in tasks)
        return State(
            tasks=tuple(task.name for task in tasks),
            depths=await self._backlog.all_depths(
                (task.planned.definition.source, task.name) for task in tasks
            ),
            progress=progress,
            loads=loads,
            unreconciled=sum(not task.reconciled for task in tasks),
            reconciled_at=max((at for at in reconciled if at is not None), default=None),
            reconciliations=await self._reconciliations(tasks),
        )

    async def _reconciliations(self, tasks: Sequence[StoredTask]) -> dict[Namespace, Reconciliation | None]:
        under_way = {one.source: one for one in await self._scans.progress(tasks)}
        return {source: under_way.get(source) for source in by_source(tasks)}
