"""The census: in office, tasks are found that no live instance has any more, and reported once.

An instance may have a part of the tasks only, so what counts is that nobody has it; and instances come and go
together in a deployment, so it counts after a while. The records of such a task are kept.
"""

from __future__ import annotations

from datetime import timedelta

from oplogue.clock import Clock
from oplogue.runtime.bus import Bus
from oplogue.store.definitions import Definitions
from oplogue.store.instances import Instances


class Census:
    """Who has which task, in one term in office."""

    def __init__(
        self, *, definitions: Definitions, instances: Instances, lease: timedelta, bus: Bus, clock: Clock
    ) -> None:
        self._definitions = definitions
        self._instances = instances
        self._every = lease.total_seconds() / 2
        # An instance that was killed is taken for alive for two leases; its successor may take another to start.
        self._patience = 3 * lease.total_seconds()
        self._bus = bus
        self._clock = clock
        self._missed_since: dict[str, float] = {}

    async def run(self) -> None:
        """Look now and then."""
        while True:
            await self._look()
            await self._clock.sleep(self._every)

    async def _look(self) -> None:
        now = self._clock.monotonic()
        carried = {name for instance in await self._instances.live() for name in instance.carries}
        missed = {
            task.name
            for task in await self._definitions.all()
            if task.name not in carried and task.removed_at is None
        }
        self._missed_since = {name: self._missed_since.get(name, now) for name in missed}
        for name, since in self._missed_since.items():
            if now - since >= self._patience and await self._definitions.note_removed(name):
                self._bus.emit("task.removed", task=name)
