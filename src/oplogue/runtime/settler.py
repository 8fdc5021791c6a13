"""Writes outcomes in groups, per source, until each is written or its lease is lost.

What ends while a group is written goes out with the next, so groups follow the load. A write that fails is sent
again, slower each time; what the server refuses is halved down to the one outcome that it refuses, and that run
has failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from oplogue.clock import Clock
from oplogue.model.definition import Namespace
from oplogue.model.outcomes import Raised
from oplogue.runtime.bus import Bus
from oplogue.runtime.context import Run
from oplogue.runtime.meter import Meter
from oplogue.runtime.parts import end, keep_running
from oplogue.runtime.work import Ended, Source
from oplogue.store.faults import StoreError, describe, is_forbidden, is_passing

_LARGEST_GROUP = 1_000
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0


class Settler:
    """What has ended and is not written yet."""

    def __init__(
        self,
        *,
        sources: Sequence[Source],
        settled: Callable[[Sequence[Ended]], None],
        meter: Meter,
        bus: Bus,
        clock: Clock,
    ) -> None:
        self._sources = tuple(sources)
        self._settled = settled
        self._meter = meter
        self._bus = bus
        self._clock = clock
        self._waiting: dict[Namespace, list[Ended]] = {source.namespace: [] for source in sources}
        self._arrived = {source.namespace: asyncio.Event() for source in sources}
        self._wrote = asyncio.Event()
        self._loops: list[asyncio.Task[None]] = []
        self.unsettled: int = 0
        self._rate = 0.0
        self._wrote_at = clock.monotonic()

    @property
    def rate(self) -> float:
        """How many runs end per second, smoothed; fewer and fewer while none ends."""
        quiet = self._clock.monotonic() - self._wrote_at
        return self._rate if quiet <= 1 else min(self._rate, 1 / quiet)

    def start(self) -> None:
        """Begin to write."""
        self._loops = [
            keep_running(
                f"outcomes of {source.namespace}",
                partial(self._loop, source),
                bus=self._bus,
                clock=self._clock,
            )
            for source in self._sources
        ]

    async def stop(self, within: float) -> None:
        """Write what is left, for so long, and end."""
        deadline = self._clock.monotonic() + within
        while self.unsettled and self._clock.monotonic() < deadline:
            self._wrote.clear()
            await self._clock.wait(self._wrote, deadline - self._clock.monotonic())
        await end(*self._loops)
        self._loops = []

    def add(self, ended: Ended) -> None:
        """Write this outcome, soon."""
        source = ended.run.definition.source
        self._waiting[source].append(ended)
        self.unsettled += 1
        self._arrived[source].set()

    async def _loop(self, source: Source) -> None:
        arrived, waiting = self._arrived[source.namespace], self._waiting[source.namespace]
        pause = _FIRST_PAUSE
        while True:
            await arrived.wait()
            arrived.clear()
            while waiting:
                group = waiting[:_LARGEST_GROUP]
                if await self._settle(source, group):
                    del waiting[: len(group)]
                    pause = _FIRST_PAUSE
                else:
                    await self._clock.sleep(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE)

    async def _settle(self, source: Source, group: list[Ended]) -> bool:
        """Write a group; False to try again. A record whose lease is lost meanwhile is left to its new owner."""
        began_at = self._clock.monotonic()
        try:
            await self._write(source, [ended for ended in group if not ended.run.lost])
        except StoreError as error:
            self._bus.emit("settle.failed", source=str(source.namespace), error=describe(error))
            return False
        self._meter.settled(self._clock.monotonic() - began_at)
        self.unsettled -= len(group)
        self._measure(len(group))
        self._wrote.set()
        self._settled(group)
        return True

    async def _write(self, source: Source, group: list[Ended]) -> None:
        if not group:
            return
        try:
            await source.settle(group)
        except StoreError as error:
            if is_passing(error):
                raise
            if len(group) > 1:
                middle = len(group) // 2
                await self._write(source, group[:middle])
                await self._write(source, group[middle:])
                return
            await self._write_refused(source, group[0].run, describe(error))

    async def _write_refused(self, source: Source, run: Run, why: str) -> None:
        """The run has failed by that. A record that takes not even this is left to its lease: others can be written."""
        try:
            await source.settle([Ended(run, Raised(0, f"its outcome could not be written: {why}"))])
        except StoreError as error:
            if is_passing(error) or is_forbidden(error):
                raise
            self._bus.emit("settle.failed", source=str(source.namespace), error=describe(error))

    def _measure(self, count: int) -> None:
        now = self._clock.monotonic()
        elapsed, self._wrote_at = max(now - self._wrote_at, 1e-3), now
        self._rate = count / elapsed if elapsed > 1 else 0.7 * self._rate + 0.3 * count / elapsed
