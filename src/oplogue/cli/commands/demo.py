"""``oplogue demo``: the options; what they set in motion is in `oplogue.cli.stage`."""

from __future__ import annotations

from typing import Annotated

import typer

from oplogue.cli import options


def demo(
    seconds: Annotated[
        float | None,
        typer.Option(parser=options.seconds, metavar="N", help="Write for N seconds, check, and leave."),
    ] = None,
    docs: Annotated[
        int | None,
        typer.Option(
            parser=options.docs,
            metavar="N",
            help="Write N orders, check, and leave: as fast as they go, or within --seconds.",
        ),
    ] = None,
    uri: Annotated[
        str | None,
        typer.Option(
            parser=options.uri,
            metavar="URI",
            help="A replica set to use instead of an embedded MongoDB. The demo works in a database of its own "
            "there, oplogue_demo_…, and drops it at its end.",
        ),
    ] = None,
) -> int:
    """An example shop on a MongoDB of its own: watch tasks flow. Ctrl-C leaves.

    With --seconds or --docs the exit code is 0 only if every order was handled, as the database says in the
    end; 1 if something is missing; 130 if it was interrupted. Without them Ctrl-C is its regular end: 0.
    """
    from oplogue.cli.stage import Script, play

    return play(Script(seconds=seconds, docs=docs, uri=uri))
