"""Running the parts of an instance: the one place where any exception is caught, reported and outlived."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from oplogue.clock import Clock
from oplogue.runtime.bus import Bus
from oplogue.store.faults import StoreError, describe

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
_CANCEL_AGAIN = 0.2


def keep_running(
    part: str,
    run: Callable[[], Awaitable[None]],
    *,
    bus: Bus,
    clock: Clock,
    longest_pause: float = _LONGEST_PAUSE,
) -> asyncio.Task[None]:
    """A task that runs a part until it returns; when it fails it is started again, slower each time.

    A part that others wait for within a lease pauses for a part of it at most.
    """

    async def outlive() -> None:
        pause = _FIRST_PAUSE
        while True:
            started = clock.monotonic()
            try:
                await run()
            except Exception as error:  # noqa: BLE001 - the one place that outlives anything
                check_cancelled()
                report(bus, part, error)
            else:
                return
            if clock.monotonic() - started > longest_pause:
                pause = _FIRST_PAUSE
            await clock.sleep(pause * (0.5 + clock.random()))
            pause = min(2 * pause, longest_pause)

    return asyncio.create_task(outlive(), name=f"oplogue-{part}")


def report(bus: Bus, part: str, error: Exception) -> None:
    """Say that a part failed; where it was not the database, also where in the code."""
    unexpected = None if isinstance(error, StoreError) else error
    bus.emit("part.failed", part=part, error=describe(error), exception=unexpected)


async def end(*tasks: asyncio.Future[Any] | None) -> None:
    """Cancel tasks, and wait until they have ended; their exceptions are looked at by nobody else.

    Cancelled again until they are done: before Python 3.12 ``asyncio.wait_for`` swallows a cancellation that
    arrives as its inner call ends, and the driver reads and writes through it.
    """
    interrupted = False
    pending = {task for task in tasks if task is not None and not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        try:
            await asyncio.wait(pending, timeout=_CANCEL_AGAIN)
        except asyncio.CancelledError:
            # Whoever ends us cancels again and again too; what we end must not live on for that.
            interrupted = True
        pending = {task for task in pending if not task.done()}
    for task in tasks:
        if task is not None and not task.cancelled():
            task.exception()
    if interrupted:
        raise asyncio.CancelledError


def check_cancelled() -> None:
    """Raise the cancellation that a call of the driver turned into an error of its own."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
