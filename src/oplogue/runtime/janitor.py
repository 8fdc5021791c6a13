"""The janitor: deletes orphaned records at the interval or the cron, where documents were just deleted, and in
collections that were just reconciled.

Every instance has one; whose turn it is, the schedule in the database says. It is kept there, so that a restart
neither skips nor repeats a cleanup, and moved by conditional updates, so that one instance alone takes the turn. A
sweep goes page by page and holds its turn meanwhile; when it is broken off the turn is still due.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from oplogue.clock import Clock
from oplogue.model.cron import CronSchedule
from oplogue.model.definition import Namespace, TaskDefinition
from oplogue.runtime.bus import Bus
from oplogue.runtime.parts import end, keep_running
from oplogue.store.cleanup import Cleanup, Turn
from oplogue.store.definitions import Definitions
from oplogue.store.ranges import Edge

_LONGEST_SLEEP = 3600.0
_SHORTEST_SLEEP = 1.0
_WHILE_TAKEN = 60.0
_HELD_EVERY = 20.0
_MOST_DELETED = 1_000
_MOST_WAITING = 20_000


class Janitor:
    """Cleans up."""

    def __init__(
        self,
        *,
        cleanup: Cleanup,
        definitions: Definitions,
        interval: timedelta | CronSchedule,
        instance_id: str,
        bus: Bus,
        clock: Clock,
    ) -> None:
        self._cleanup = cleanup
        self._definitions = definitions
        self._interval = interval
        self._instance_id = instance_id
        self._bus = bus
        self._clock = clock
        self._deleted: dict[Namespace, list[Any]] = {}
        self._unseen: set[Namespace] = set()
        self._has_work = asyncio.Event()
        self._parts: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin."""
        self._parts = [
            keep_running("cleanup", self._by_schedule, bus=self._bus, clock=self._clock),
            keep_running("cleanup by events", self._by_event, bus=self._bus, clock=self._clock),
        ]

    async def stop(self) -> None:
        """End."""
        await end(*self._parts)
        self._parts = []

    def reconciled(self, source: Namespace) -> None:
        """Its documents were looked at, all of them: those that went unseen are found by their records."""
        self._unseen.add(source)
        self._has_work.set()

    def deleted(self, source: Namespace, doc_ids: Iterable[Any]) -> None:
        """These documents were deleted: their records may be orphans now."""
        known = self._deleted.setdefault(source, [])
        known.extend(doc_ids)
        if len(known) > _MOST_WAITING:
            # To look at all records is no dearer, and what waits must have a bound.
            known.clear()
            self._unseen.add(source)
        self._has_work.set()

    async def run(self, source: Namespace | None = None) -> int:
        """Clean up now, all or one collection; how many records were deleted."""
        total = 0
        async for count in self._sweep(source):
            total += count
        if source is None:
            self._bus.emit("cleanup.finished", count=total)
        return total

    async def _sweep(self, source: Namespace | None = None) -> AsyncIterator[int]:
        """Page by page: how many records of each were deleted."""
        for tasks in (await self._by_source(source)).values():
            last: Edge | None = None
            while True:
                page = await self._cleanup.sweep(tasks, last)
                yield self._tell(page.deleted)
                last = page.last
                if last is None:
                    break

    async def _by_source(self, source: Namespace | None = None) -> dict[Namespace, list[TaskDefinition]]:
        found: dict[Namespace, list[TaskDefinition]] = {}
        for stored in await self._definitions.all():
            definition = stored.planned.definition
            if source is None or definition.source == source:
                found.setdefault(definition.source, []).append(definition)
        return found

    def _tell(self, deleted: Mapping[str, int]) -> int:
        for task, count in deleted.items():
            self._bus.emit("cleanup.deleted", task=task, count=count)
        return sum(deleted.values())

    async def _by_schedule(self) -> None:
        while True:
            turn = await self._cleanup.turn()
            wait = (self._due_after(turn.last) - turn.now).total_seconds()
            if wait <= 0:
                if await self._cleanup.take(turn, self._instance_id):
                    await self._take(turn)
                    continue
                wait = _WHILE_TAKEN
            await self._clock.sleep(min(max(wait, _SHORTEST_SLEEP), _LONGEST_SLEEP))

    async def _take(self, turn: Turn) -> None:
        """Sweep everything, and hold the turn meanwhile."""
        total = 0
        held_at = self._clock.monotonic()
        try:
            async for count in self._sweep():
                total += count
                if self._clock.monotonic() - held_at > _HELD_EVERY:
                    if not await self._cleanup.hold(turn, self._instance_id):
                        return  # another instance sweeps
                    held_at = self._clock.monotonic()
        except BaseException:
            # Also when this instance stops: it is somebody else's turn now.
            await self._cleanup.let_go(turn, self._instance_id)
            raise
        await self._cleanup.done(turn, self._instance_id)
        self._bus.emit("cleanup.finished", count=total)

    def _due_after(self, last: datetime) -> datetime:
        if isinstance(self._interval, CronSchedule):
            return self._interval.next_after(last)
        return last + self._interval

    async def _by_event(self) -> None:
        while True:
            await self._has_work.wait()
            self._has_work.clear()
            deleted, self._deleted = self._deleted, {}
            unseen, self._unseen = self._unseen, set()
            by_source = await self._by_source()
            for source, doc_ids in deleted.items():
                tasks = by_source.get(source, [])
                for start in range(0, len(doc_ids) if tasks else 0, _MOST_DELETED):
                    chunk = doc_ids[start : start + _MOST_DELETED]
                    self._tell(await self._cleanup.sweep_documents(tasks, chunk))
            for source in unseen:
                await self.run(source)
