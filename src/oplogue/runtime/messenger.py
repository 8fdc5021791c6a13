"""Signals between instances: one cursor that waits for what others say, one sender that says what is new here.

What is said while a send is under way goes out with the next one, so a flood of plans becomes a few signals.
Correctness never depends on a signal: without the privilege to make the capped collection, or while it is broken,
the looks of the net below serve.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from oplogue.clock import Clock
from oplogue.runtime.bus import Bus
from oplogue.runtime.parts import check_cancelled, end, keep_running
from oplogue.store.faults import StoreError, describe, is_forbidden
from oplogue.store.signals import Signal, Signals, Topic

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0


class Messenger:
    """Says and hears."""

    def __init__(
        self,
        *,
        signals: Signals,
        instance_id: str,
        heard: Callable[[Signal], None],
        missed: Callable[[], None],
        bus: Bus,
        clock: Clock,
    ) -> None:
        self._signals = signals
        self._instance_id = instance_id
        self._heard = heard
        self._missed = missed
        self._listening = asyncio.Event()
        self._bus = bus
        self._clock = clock
        self._to_say: dict[Topic, set[str]] = {}
        self._something_to_say = asyncio.Event()
        self._loops: list[asyncio.Task[None]] = []

    async def start(self, within: float) -> None:
        """Begin to listen; returns when signals are heard, or that has taken too long."""
        parts = {"signals heard": self._listen, "signals said": self._speak}
        self._loops = [
            keep_running(name, run, bus=self._bus, clock=self._clock) for name, run in parts.items()
        ]
        await self._clock.wait(self._listening, within)

    async def stop(self) -> None:
        """Say what is left, and end."""
        await end(*self._loops)
        self._loops = []
        await self._say_all()
        await self._signals.close()

    def say(self, topic: Topic, tasks: Iterable[str] = ()) -> None:
        """Tell the other instances, soon."""
        self._to_say.setdefault(topic, set()).update(tasks)
        self._something_to_say.set()

    async def _speak(self) -> None:
        while True:
            await self._something_to_say.wait()
            self._something_to_say.clear()
            await self._say_all()

    async def _say_all(self) -> None:
        saying, self._to_say = self._to_say, {}
        for topic, tasks in saying.items():
            try:
                await self._signals.send(Signal(topic, self._instance_id, tuple(sorted(tasks))))
            except StoreError as error:
                check_cancelled()
                self._bus.emit("signal.failed", error=describe(error))

    async def _listen(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                await self._signals.open()
                # Nobody knows what was said before, or while the cursor was broken.
                self._missed()
                self._listening.set()
                while True:
                    for signal in await self._signals.next():
                        if signal.by != self._instance_id:
                            self._heard(signal)
                    pause = _FIRST_PAUSE
            except (StoreError, TimeoutError) as error:
                check_cancelled()
                self._bus.emit("signal.failed", error=describe(error))
                if is_forbidden(error):
                    pause = _LONGEST_PAUSE
            await self._clock.sleep(pause * (0.5 + self._clock.random()))
            pause = min(2 * pause, _LONGEST_PAUSE)
