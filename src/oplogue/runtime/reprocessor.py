"""Reprocessing: in office, the records that a new handler version asks for are reset, a batch at a time.

It goes on only while a live instance has that version. Records that nobody else could take would run with older
code, which is not what was asked for; when the version is back, the reset goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from oplogue.clock import Clock
from oplogue.runtime.bus import Bus
from oplogue.runtime.office import Office
from oplogue.store.evolution import Evolution, Reprocessing
from oplogue.store.instances import Instances

_PATIENCE = 2.0
"""Seconds until the next look, where something must come to pass first."""


class Reprocessor:
    """The resets that are asked for, in one term in office."""

    def __init__(
        self,
        *,
        evolution: Evolution,
        instances: Instances,
        wake: Callable[[Iterable[str]], None],
        office: Office,
        bus: Bus,
        clock: Clock,
    ) -> None:
        self._evolution = evolution
        self._instances = instances
        self._wake = wake
        self._office = office
        self._bus = bus
        self._clock = clock

    async def run(self) -> None:
        """Until all are done. What is asked for later begins with the next definitions."""
        for asked in await self._evolution.pending():
            await self._reset(asked)

    async def _reset(self, asked: Reprocessing) -> None:
        left: Reprocessing | None = asked
        while left is not None:
            if self._office.trusted_for <= 0:
                return  # somebody else may be at it
            if not await self._is_carried(left):
                await self._clock.sleep(_PATIENCE)
                continue
            waits = left.swept
            left = await self._evolution.step(left)
            self._wake([asked.task])
            if waits and left is not None:
                await self._clock.sleep(_PATIENCE)
        self._bus.emit("evolution.reprocessed", task=asked.task, version=asked.version)

    async def _is_carried(self, what: Reprocessing) -> bool:
        versions = [
            instance.carries[what.task].version
            for instance in await self._instances.live()
            if what.task in instance.carries
        ]
        return max(versions, default=0) >= what.version
