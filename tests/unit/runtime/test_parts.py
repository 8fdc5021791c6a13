"""Running and ending the parts of an instance."""

from __future__ import annotations

import asyncio

from oplogue.clock import Clock
from oplogue.runtime.bus import Bus
from oplogue.runtime.parts import end, keep_running


async def stubborn(times: int) -> None:
    """Swallows so many cancellations."""
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if times <= 0:
                raise
            times -= 1


async def test_a_part_that_fails_is_started_again_and_reported() -> None:
    bus, runs, errors = Bus(Clock(), "test"), [0], [""]
    bus.subscribe("part.failed", lambda event: errors.append(event.fields["error"]))

    async def part() -> None:
        runs[0] += 1
        if runs[0] == 1:
            raise ValueError("once")

    async with asyncio.timeout(5):
        await keep_running("the part", part, bus=bus, clock=Clock())
    assert runs == [2]
    assert "once" in errors[-1]


async def test_a_part_that_fails_again_and_again_pauses_no_longer_than_it_may() -> None:
    pauses: list[float] = []

    class Noting(Clock):
        async def sleep(self, seconds: float) -> None:
            pauses.append(seconds)
            await super().sleep(0)

        def random(self) -> float:
            return 0.5

    async def part() -> None:
        if len(pauses) < 6:
            raise ValueError("again")

    async with asyncio.timeout(5):
        await keep_running("it", part, bus=Bus(Clock(), "test"), clock=Noting(), longest_pause=0.5)
    assert pauses == [0.1, 0.2, 0.4, 0.5, 0.5, 0.5]


async def test_end_cancels_again_what_swallows_its_cancellation() -> None:
    tasks = [asyncio.create_task(stubborn(times)) for times in (0, 1, 2)]
    await asyncio.wait(tasks, timeout=0)
    async with asyncio.timeout(5):
        await end(*tasks, None)
    assert all(task.cancelled() for task in tasks)


async def test_end_ends_all_although_it_is_cancelled_itself() -> None:
    inner = asyncio.create_task(stubborn(3))

    async def outer() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await end(inner)

    task = asyncio.create_task(outer())
    await asyncio.wait({task, inner}, timeout=0)
    try:
        async with asyncio.timeout(5):
            await end(task)
        assert inner.done()
    finally:
        while not inner.done():
            inner.cancel()
            await asyncio.wait({inner}, timeout=0)


async def test_end_looks_at_the_exceptions_of_what_it_ends() -> None:
    async def fails() -> None:
        raise ValueError("nobody asked")

    task = asyncio.create_task(fails())
    await asyncio.wait({task})
    await end(task)
