"""``oplogue worker``: run an app until it is told to stop."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from oplogue.cli import options
from oplogue.errors import ConfigurationError


def worker(
    target: Annotated[
        str, typer.Argument(metavar="MODULE:APP", help="Where the App is: shop.tasks:app, say.")
    ],
    processes: Annotated[
        str, typer.Option("--processes", metavar="N", help="How many processes; one that dies starts again.")
    ] = "1",
    health: Annotated[
        str | None,
        typer.Option(
            "--health", metavar="HOST:PORT", help="Answer over HTTP there: /live, /ready and /metrics."
        ),
    ] = None,
    burst: Annotated[
        bool,
        typer.Option(
            "--burst", help="End when all is planned and nothing is due; a long backoff is not waited for."
        ),
    ] = False,
    reload: Annotated[
        bool, typer.Option("--reload", help="Start again when a Python file below this folder changes.")
    ] = False,
) -> int:
    """Run the tasks of an app. SIGTERM and Ctrl-C stop it gracefully, a second one at once."""
    from oplogue.cli.attached import attached
    from oplogue.cli.link import LINE
    from oplogue.cli.supervising import Orders, supervise

    if LINE in os.environ:
        return attached(target, burst=burst)
    if burst and reload:
        raise ConfigurationError(
            "a worker that ends by itself is not started again",
            option="--reload",
            expected="either it or --burst",
        )
    where = None if health is None else options.address(health, option="--health")
    return supervise(target, Orders(options.processes(processes), where, burst=burst, reload=reload))
