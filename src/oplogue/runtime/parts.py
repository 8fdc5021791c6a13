"""Running the parts of an instance: the one place where any exception is caught, reported and outlived."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from oplogue.clock import Clock
from oplogue.runtime.bus import Bus
from oplogue.store.faults import describe

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
_LOGGER = logging.getLogger("oplogue.part")


def keep_running(
    part: str, run: Callable[[], Awaitable[None]], *, bus: Bus, clock: Clock
) -> asyncio.Task[None]:
    """A task that runs a part until it returns; when it fails it is started again, slower each time."""

    async def outlive() -> None:
        pause = _FIRST_PAUSE
        while True:
            started = clock.monotonic()
            try:
                await run()
            except Exception as error:
                bus.emit("part.failed", part=part, error=describe(error))
                _LOGGER.debug("%s failed", part, exc_info=True)
            else:
                return
            if clock.monotonic() - started > _LONGEST_PAUSE:
                pause = _FIRST_PAUSE
            await clock.sleep(pause * (0.5 + clock.random()))
            pause = min(2 * pause, _LONGEST_PAUSE)

    return asyncio.create_task(outlive(), name=f"oplogue-{part}")


async def stop_running(*tasks: asyncio.Task[None] | None) -> None:
    """Cancel parts, and wait until they have ended."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
