"""``oplogue worker``: run an app until it is told to stop."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oplogue.cli import options
from oplogue.cli.processes import run_processes
from oplogue.errors import ConfigurationError

if TYPE_CHECKING:
    from oplogue.app import App

_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


def worker(
    target: Annotated[
        str, typer.Argument(metavar="MODULE:APP", help="Where the App is: shop.tasks:app, say.")
    ],
    processes: Annotated[
        str, typer.Option("--processes", metavar="N", help="How many processes; one that dies starts again.")
    ] = "1",
) -> int:
    """Run the tasks of an app. SIGTERM and Ctrl-C stop it gracefully, a second one at once."""
    from oplogue.app import SUPERVISED

    count = options.processes(processes)
    app = find_app(target)
    if SUPERVISED not in os.environ:
        # Found here first, so that a mistake in the target is told once and nothing is started again and again.
        return run_processes(target, count)
    if not logging.getLogger().handlers:
        logging.basicConfig(format=_FORMAT, level=logging.INFO)
    app.run()
    return 0


def find_app(target: str) -> App:
    """The App that ``module:name`` stands for. Modules of the working directory are found too."""
    from oplogue.app import App

    path, colon, name = target.partition(":")
    if not (path and colon and name):
        raise _refused("not a module and a name in it", target)
    found: Any = _module(path, target)
    for part in name.split("."):
        if not hasattr(found, part):
            raise _refused(f"{path!r} has no {name!r}", target)
        found = getattr(found, part)
    if not isinstance(found, App):
        raise _refused(f"that is a {type(found).__name__}, not an App", target)
    return found


def _module(path: str, target: str) -> Any:
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{path}.".startswith(f"{error.name}."):
            raise  # the module is there: something that it imports is not
        raise _refused(
            f"there is no module {error.name!r} here or among the installed ones", target
        ) from error


def _refused(problem: str, target: str) -> ConfigurationError:
    return ConfigurationError(problem, option="MODULE:APP", value=target, expected="shop.tasks:app, say")
