"""The page of the command line says what the commands declare."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from oplogue.cli import failures, program
from oplogue.cli.operating import common_options

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
COMMON = "Takes the common options."


def _commands(command: Any, path: str = "oplogue") -> Iterator[tuple[str, Any]]:
    for name, below in command.commands.items():
        if hasattr(below, "commands"):
            yield from _commands(below, f"{path} {name}")
        else:
            yield f"{path} {name}", below


ROOT: Any = typer.main.get_command(program.program())
COMMANDS = dict(_commands(ROOT))


def _declared(command: Any, *, without: frozenset[str] = frozenset()) -> dict[str, str]:
    """What each option is for, by its names as the page writes them."""
    found: dict[str, str] = {}
    for parameter in command.params:
        names = sorted([*parameter.opts, *parameter.secondary_opts], key=lambda name: name.startswith("--"))
        if parameter.param_type_name == "argument":
            found[f"`{parameter.metavar}`"] = parameter.help
        elif not without.intersection(names):
            value = "" if parameter.is_flag else f" `{parameter.metavar}`"
            found[", ".join(f"`{name}`" for name in names) + value] = parameter.help
    return found


def _table(text: str) -> dict[str, str]:
    rows = re.findall(r"^\| (`.*?) \| (.*) \|$", text, re.MULTILINE)
    return {names: said.replace("\\|", "|") for names, said in rows}


def _section(heading: str) -> str:
    _, found, after = PAGE.partition(f"\n{heading}\n")
    assert found, heading
    return re.split(r"^##+ ", after, maxsplit=1, flags=re.MULTILINE)[0]


def test_every_command_is_documented_and_no_other() -> None:
    assert re.findall(r"^### `(oplogue .*)`$", PAGE, re.MULTILINE) == list(COMMANDS)


def test_every_option_is_documented_as_its_help_says() -> None:
    for path, command in COMMANDS.items():
        section = _section(f"### `{path}`")
        names = {name for parameter in command.params for name in parameter.opts}
        common = common_options() <= names
        assert (COMMON in section) is common, path
        assert _table(section) == _declared(command, without=common_options() if common else frozenset()), (
            path
        )


def test_the_common_options_are_documented() -> None:
    of_one = _declared(COMMANDS["oplogue tasks resume"])
    declared = {names: said for names, said in of_one.items() if names != "`NAME`"}
    assert _table(_section("## Common options")) == declared
    assert _table(_section("## Options of all commands")) == _declared(ROOT)


def test_the_exit_codes_are_those_of_the_code() -> None:
    codes = [int(code) for code in re.findall(r"^\| (\d+) \|", _section("## Exit codes"), re.MULTILINE)]
    assert codes == [failures.OK, failures.WRONG, failures.USAGE, failures.INTERRUPTED]
