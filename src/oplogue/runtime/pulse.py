"""Whether the event loop turns: a beat that other threads can read."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from oplogue.clock import Clock
from oplogue.runtime.bus import Bus
from oplogue.runtime.parts import end, keep_running

_BEATS = 6
_SLOWEST = 5.0


class Pulse:
    """Beats a few times in a lease, as long as the event loop lets it."""

    def __init__(self, *, lease: timedelta, bus: Bus, clock: Clock) -> None:
        self._pause = min(lease.total_seconds() / _BEATS, _SLOWEST)
        self._bus = bus
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self.beat_at: float | None = None
        """When it last beat; None while it doesn't run."""

    def start(self) -> None:
        """Begin."""
        self.beat_at = self._clock.monotonic()
        self._task = keep_running("pulse", self._loop, bus=self._bus, clock=self._clock)

    async def stop(self) -> None:
        """End."""
        await end(self._task)
        self._task = self.beat_at = None

    async def _loop(self) -> None:
        while True:
            self.beat_at = self._clock.monotonic()
            await self._clock.sleep(self._pause)
