"""``oplogue dev``: an app with a MongoDB of its own, while it is written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def dev(
    target: Annotated[
        str, typer.Argument(metavar="MODULE:APP", help="Where the App is: shop.tasks:app, say.")
    ],
    data: Annotated[
        Path, typer.Option("--data", metavar="FOLDER", help="Where the MongoDB keeps its data.")
    ] = Path(".oplogue"),
) -> int:
    """Run an app on a MongoDB of its own, again after each change.

    The MongoDB is for this machine alone, and its data are kept for the next time. The App must take its server
    from the environment: App(), or App(database="shop"). Ctrl-C ends both; exit code 0 then.
    """
    from oplogue.cli.developing import develop

    return develop(target, data)
