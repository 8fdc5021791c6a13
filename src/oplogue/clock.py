"""The one place where time and randomness come in.

Due times, leases and debounces are the *server's*. What is left for this clock: waiting, measuring durations,
and dates of estimates. Tests hand in a clock of their own.
"""

from __future__ import annotations

import asyncio
import random
import time
from datetime import UTC, datetime


class Clock:
    """The process's clock.

    >>> clock = Clock()
    >>> clock.monotonic() <= clock.monotonic()
    True
    """

    def monotonic(self) -> float:
        """Seconds that only move forward; for measuring."""
        return time.monotonic()

    def now(self) -> datetime:
        """The machine's date, aware UTC. An estimate: nothing may depend on it for correctness."""
        return datetime.now(UTC)

    def random(self) -> float:
        """A number in [0, 1), for spreading out retries."""
        return random.random()

    async def sleep(self, seconds: float) -> None:
        """Wait. Zero lets other coroutines run."""
        await asyncio.sleep(seconds)

    async def wait(self, event: asyncio.Event, timeout: float | None) -> bool:
        """Wait for the event, at most so many seconds; whether it was set."""
        if event.is_set():
            return True
        try:
            async with asyncio.timeout(timeout):
                await event.wait()
        except TimeoutError:
            return event.is_set()
        return True

    def block(self, seconds: float) -> None:
        """Block this thread. Only for code that owns its thread."""
        time.sleep(seconds)
