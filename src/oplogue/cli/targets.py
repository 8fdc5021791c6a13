"""The App that ``module:name`` on the command line stands for."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from oplogue.cli.failures import told
from oplogue.errors import ConfigurationError, OplogueError

if TYPE_CHECKING:
    from oplogue.app import App


def find_app(target: str) -> App:
    """The App that ``module:name`` stands for. Modules of the working directory are found too."""
    from oplogue.app import App

    path, name = check_form(target)
    found: Any = _module(path, target)
    for part in name.split("."):
        if not hasattr(found, part):
            raise _refused(f"{path!r} has no {name!r}", target)
        found = getattr(found, part)
    if not isinstance(found, App):
        raise _refused(f"that is a {type(found).__name__}, not an App", target)
    return found


def check_form(target: str) -> tuple[str, str]:
    """The module and the name that a target is made of; ConfigurationError where it is not."""
    path, colon, name = target.partition(":")
    if not (path and colon and name):
        raise _refused("not a module and a name in it", target)
    return path, name


def check_target(target: str) -> None:
    """ConfigurationError for a target that can't be run, also where its own code fails as it is imported."""
    try:
        find_app(target)
    except OplogueError:
        raise
    except Exception as error:
        raise _refused(f"it can't be imported: {told(error)}", target) from error


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
