"""The janitor: deletes orphaned records at the interval or the cron, and where documents were just deleted.

Every instance has one; whose turn it is, the schedule in the database says: the time of the last cleanup is kept
there, so that a restart neither skips nor repeats one, and it is moved by a conditional update, so that one
instance alone takes the turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from oplogue.clock import Clock
from oplogue.model.cron import CronSchedule
from oplogue.model.definition import Namespace, TaskDefinition
from oplogue.runtime.bus import Bus
from oplogue.runtime.parts import end, keep_running
from oplogue.store.cleanup import Cleanup
from oplogue.store.definitions import Definitions

_LONGEST_SLEEP = 3600.0
_SHORTEST_SLEEP = 1.0
_MOST_DELETED = 1_000


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
        self._has_deleted = asyncio.Event()
        self._parts: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin."""
        self._parts = [
            keep_running("cleanup", self._by_schedule, bus=self._bus, clock=self._clock),
            keep_running("cleanup of deleted documents", self._by_event, bus=self._bus, clock=self._clock),
        ]

    async def stop(self) -> None:
        """End."""
        await end(*self._parts)
        self._parts = []

    def deleted(self, source: Namespace, doc_ids: Iterable[Any]) -> None:
        """These documents were deleted: their records may be orphans now."""
        self._deleted.setdefault(source, []).extend(doc_ids)
        self._has_deleted.set()

    async def run(self, source: Namespace | None = None) -> int:
        """Clean up now, all or one collection; how many records were deleted."""
        total = 0
        for stored in await self._definitions.all():
            definition = stored.planned.definition
            if source is None or definition.source == source:
                total += await self._sweep(definition)
        if source is None:
            self._bus.emit("cleanup.finished", count=total)
        return total

    async def _sweep(self, definition: TaskDefinition, doc_ids: list[Any] | None = None) -> int:
        count = await self._cleanup.sweep(definition, doc_ids=doc_ids)
        if count:
            self._bus.emit("cleanup.deleted", task=definition.task, count=count)
        return count

    async def _by_schedule(self) -> None:
        while True:
            turn = await self._cleanup.turn()
            wait = (self._due_after(turn.last) - turn.now).total_seconds()
            if wait > 0:
                await self._clock.sleep(min(max(wait, _SHORTEST_SLEEP), _LONGEST_SLEEP))
            elif await self._cleanup.take(turn, self._instance_id):
                await self.run()

    def _due_after(self, last: datetime) -> datetime:
        if isinstance(self._interval, CronSchedule):
            return self._interval.next_after(last)
        return last + self._interval

    async def _by_event(self) -> None:
        while True:
            await self._has_deleted.wait()
            self._has_deleted.clear()
            deleted, self._deleted = self._deleted, {}
            definitions = [stored.planned.definition for stored in await self._definitions.all()]
            for definition in definitions:
                doc_ids = deleted.get(definition.source, [])
                for start in range(0, len(doc_ids), _MOST_DELETED):
                    await self._sweep(definition, doc_ids[start : start + _MOST_DELETED])
