"""What the operating commands have in common: where the cluster is, how its answers are printed, and who is asked.

They need the database alone, so each is a coroutine on a `Console`. Its first two parameters, the console and the
output, are made here, from options that every such command has.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oplogue.cli import options
from oplogue.cli.output import Output
from oplogue.errors import ConfigurationError

if TYPE_CHECKING:
    from oplogue.runtime.console import Console

Uri = Annotated[
    str | None,
    typer.Option(
        "--uri",
        parser=options.uri,
        metavar="URI",
        help="The MongoDB that the app uses. Without it: OPLOGUE_MONGODB_URI, then MONGODB_URI.",
    ),
]
Database = Annotated[
    str | None,
    typer.Option("--database", metavar="NAME", help="The app's database, where the URI names none."),
]
GlobalsCollection = Annotated[
    str, typer.Option("--globals-collection", metavar="NAME", help="As the app was told.", show_default=True)
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")]
Json = Annotated[bool, typer.Option("--json", help="Print one document in extended JSON.")]


def common_options() -> frozenset[str]:
    """The options that every operating command has."""
    return frozenset({"--uri", "--database", "--globals-collection", "--json"})


def on_console(command: Callable[..., Awaitable[int]]) -> Callable[..., int]:
    """The command as the program takes it: with these options beside its own, and nothing to await."""

    @functools.wraps(command)
    def run(
        *,
        uri: str | None,
        database: str | None,
        globals_collection: str,
        as_json: bool,
        **own: Any,
    ) -> int:
        async def work(console: Console) -> int:
            return await command(console, Output(as_json=as_json), **own)

        return asyncio.run(_work(work, uri, database, globals_collection))

    _take_options(run, command)
    return run


def _take_options(run: Callable[..., int], command: Callable[..., Awaitable[int]]) -> None:
    """Parameters of the command but its first two, then those of all such commands."""
    _, _, *own = inspect.signature(command).parameters.values()
    # Not those of the first two: their types are imported when the command runs.
    scope = inspect.unwrap(command).__globals__
    own = [parameter.replace(annotation=eval(parameter.annotation, scope)) for parameter in own]
    common: list[tuple[str, Any, Any]] = [
        ("uri", Uri, None),
        ("database", Database, None),
        ("globals_collection", GlobalsCollection, "_oplogue_globals"),
        ("as_json", Json, False),
    ]
    parameters = [
        *own,
        *(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for name, annotation, default in common
        ),
    ]
    run.__signature__ = inspect.Signature(parameters, return_annotation=int)  # type: ignore[attr-defined]  # functions have one where it is set
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del run.__wrapped__  # type: ignore[attr-defined]  # set by wraps(): its annotations are not those of the program


async def _work(
    work: Callable[[Console], Awaitable[int]], uri: str | None, database: str | None, globals_collection: str
) -> int:
    from oplogue.runtime.console import open_console

    try:
        async with open_console(uri, database=database, globals_collection=globals_collection) as console:
            return await work(console)
    except ConfigurationError as error:
        raise _of_the_command_line(error) from None


def _of_the_command_line(error: ConfigurationError) -> ConfigurationError:
    """The same with the option's name as it is typed here."""
    if error.option is None or error.option.startswith("-"):
        return error
    option = f"--{error.option.replace('_', '-')}"
    return ConfigurationError(error.problem, option=option, value=error.value, expected=error.expected)
