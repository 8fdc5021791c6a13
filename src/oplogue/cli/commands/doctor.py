"""``oplogue doctor``: is the deployment well, and how is it mended?"""

from __future__ import annotations

from typing import Annotated

import typer

from oplogue.cli.operating import Database, GlobalsCollection, Json, Uri


def doctor(
    target: Annotated[
        str | None,
        typer.Argument(metavar="[MODULE:APP]", help="An App, to check with its own settings and tasks."),
    ] = None,
    uri: Uri = None,
    database: Database = None,
    globals_collection: GlobalsCollection = "_oplogue_globals",
    as_json: Json = False,
) -> int:
    """Check the whole deployment, and say how to mend it.

    Server, privileges, indexes, clocks, oplog, concerns and tasks. Exit code 0 where there is no problem (warnings
    are none), 1 where there is one.
    """
    from oplogue.cli.examination import examine
    from oplogue.cli.output import Output

    return examine(target, uri, database, globals_collection, Output(as_json=as_json))
