"""The program around the commands: options for all of them, and what errors look like."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from importlib import metadata
from typing import Annotated, Any, cast

import typer

from oplogue.cli.commands import COMMANDS, GROUPS
from oplogue.cli.failures import INTERRUPTED, OK, USAGE, code_of, told
from oplogue.errors import OplogueError

_UsageError: Any = typer.BadParameter.__base__  # typer 0.29 brings its own click: this is either's


def run(arguments: Sequence[str]) -> int:
    """Run the command that the arguments name; the exit code."""
    debug = "--debug" in arguments
    words = [word for word in arguments if word != "--debug"] or ["--help"]
    if len(words) == 1 and words[0] in GROUPS:
        words.append("--help")
    command = typer.main.get_command(program())
    try:
        code = command.main(words, prog_name="oplogue", standalone_mode=False)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the end of the line: whatever it is, the user is told
        if debug:
            traceback.print_exc()
        return _refuse(error, debug)
    return code if isinstance(code, int) else OK


def program() -> typer.Typer:
    """All commands, with their options and their help."""
    found = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    found.callback(invoke_without_command=True)(_options)
    for command in COMMANDS:
        found.command()(command)
    for name, (text, commands) in GROUPS.items():
        group = typer.Typer(rich_markup_mode=None)
        for word, command in commands.items():
            group.command(word)(command)
        found.add_typer(group, name=name, help=text)
    return found


def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
) -> int | None:
    """Reactive background tasks on MongoDB."""
    if version:
        print(f"oplogue {metadata.version('oplogue')}")
        raise typer.Exit(OK)
    return None


def _refuse(error: Exception, debug: bool) -> int:
    """Say in one line what is wrong, and how wrong it is."""
    if isinstance(error, _UsageError):
        context: Any = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "oplogue"
        message: str = cast(Any, error).format_message()
        return _say(f"{path}: {' '.join(message.split()).rstrip('.')} (see {path} --help)", USAGE)
    hint = "" if debug or isinstance(error, OplogueError) else " (--debug shows where)"
    return _say(f"oplogue: {told(error)}{hint}", code_of(error))


def _say(line: str, code: int) -> int:
    print(line, file=sys.stderr)
    return code
