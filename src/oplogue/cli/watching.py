"""Looking again and again: a live picture before a terminal, one answer after the other elsewhere."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from rich.console import Console as Screen
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from oplogue.cli.failures import told
from oplogue.cli.output import Output
from oplogue.clock import Clock
from oplogue.runtime.parts import end
from oplogue.store.faults import StoreError

_EVERY = 1.0
_PATIENCE = 5.0
"""Seconds after which a look is given up: who watches wants to know that there is nothing to see."""
_SHARE = 4
"""A look that took long is followed by a rest this many times as long: who watches must not be a load."""

SeenT = TypeVar("SeenT")
Picture = Callable[[SeenT, int], RenderableType]
"""What is seen, for a screen of so many columns."""


async def watch(
    out: Output,
    look: Callable[[], Awaitable[SeenT]],
    picture: Picture[SeenT],
    document: Callable[[SeenT], Any],
    *,
    clock: Clock,
) -> None:
    """Show what is seen, until Ctrl-C. Failures of the database are shown beside what was seen last."""
    async with _interrupted() as left:
        if out.as_json or not out.screen.is_terminal:
            watching = _watch_lines(out, look, picture, document, clock)
        else:
            watching = _watch_live(out.screen, look, picture, clock)
        task, leaving = asyncio.create_task(watching), asyncio.create_task(left.wait())
        await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
        failed = task.exception() if task.done() and not task.cancelled() else None
        await end(task, leaving)
    if failed is not None:
        raise failed


async def _watch_live(
    screen: Screen,
    look: Callable[[], Awaitable[SeenT]],
    picture: Picture[SeenT],
    clock: Clock,
) -> None:
    shown: RenderableType = Text("looking …", "dim")
    hint = Text("Ctrl-C leaves", "dim")
    with Live(Group(shown, hint), console=screen, auto_refresh=False, vertical_overflow="ellipsis") as live:
        while True:
            began = clock.monotonic()
            try:
                async with asyncio.timeout(_PATIENCE):
                    shown = picture(await look(), screen.width)
                live.update(Group(shown, Text(), hint), refresh=True)
            except (StoreError, TimeoutError) as error:
                trouble = Text(_trouble(error), "red")
                live.update(Group(shown, Text(), trouble, hint), refresh=True)
            await _rest(began, clock)


async def _watch_lines(
    out: Output,
    look: Callable[[], Awaitable[SeenT]],
    picture: Picture[SeenT],
    document: Callable[[SeenT], Any],
    clock: Clock,
) -> None:
    while True:
        began = clock.monotonic()
        try:
            async with asyncio.timeout(_PATIENCE):
                seen = await look()
        except (StoreError, TimeoutError) as error:
            out.note(f"oplogue: {_trouble(error)}")
        else:
            if out.as_json:
                out.write(document(seen))
            else:
                out.screen.print(picture(seen, out.screen.width), "", highlight=False)
        await _rest(began, clock)


def _trouble(error: Exception) -> str:
    why = told(error) if isinstance(error, StoreError) else f"it was silent for {_PATIENCE:g} s"
    return f"the database does not answer: {why}"


async def _rest(began: float, clock: Clock) -> None:
    await clock.sleep(max(_EVERY, _SHARE * (clock.monotonic() - began)))


@asynccontextmanager
async def _interrupted() -> AsyncGenerator[asyncio.Event]:
    """Set by Ctrl-C and SIGTERM, which here are the regular way to leave."""
    left, loop = asyncio.Event(), asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)
    with suppress(
        NotImplementedError, ValueError
    ):  # Windows, or not the main thread: KeyboardInterrupt it is
        for number in numbers:
            loop.add_signal_handler(number, left.set)
    try:
        yield left
    finally:
        with suppress(NotImplementedError, ValueError):
            for number in numbers:
                loop.remove_signal_handler(number)
