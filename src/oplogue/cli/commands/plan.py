"""``oplogue plan``: what would a deployment change?"""

from __future__ import annotations

from typing import Annotated

import typer

from oplogue.cli.operating import Json


def plan(
    target: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The App that is to be deployed.")],
    as_json: Json = False,
) -> int:
    """Say what deploying an app would change.

    Tasks, records to plan or run again, indexes; nothing is changed by asking. Counting asks the server to read
    every document that a new or changed filter matches. Exit code 0, whether anything would change or not; 2 where
    the app, or what the server says of its tasks, is not right.
    """
    from oplogue.cli.forecast import foretell
    from oplogue.cli.output import Output

    return foretell(target, Output(as_json=as_json))
