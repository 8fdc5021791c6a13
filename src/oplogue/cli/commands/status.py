"""``oplogue status``: how the cluster stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from oplogue.cli.failures import OK
from oplogue.cli.operating import on_console
from oplogue.cli.output import Output

if TYPE_CHECKING:
    from oplogue.model.situation import Situation
    from oplogue.runtime.console import Console

_ANSWER_WITHIN = 0.1
"""Seconds that the instances have to say how busy they are."""


@on_console
async def status(
    console: Console,
    out: Output,
    *,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Look again every second, until Ctrl-C; exit code 0 then.")
    ] = False,
) -> int:
    """Show who is alive, what waits, runs and has failed.

    With --json and --watch each look is a line of its own.
    """
    from oplogue.cli.situation import situation_document, situation_picture
    from oplogue.cli.watching import watch as keep_watching
    from oplogue.clock import Clock

    clock = Clock()

    async def look() -> Situation:
        await console.ask_for_loads()
        await clock.sleep(_ANSWER_WITHIN)
        return await console.lookout.look()

    if watch:
        await keep_watching(out, look, situation_picture, situation_document, clock=clock)
        return OK
    seen = await look()
    out.show(lambda screen: situation_picture(seen, screen.width), situation_document(seen))
    return OK
