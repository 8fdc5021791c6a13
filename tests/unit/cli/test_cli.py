"""The command line: what it imports, what it refuses and how, and its exit codes."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from oplogue.cli import main
from oplogue.cli.failures import told
from oplogue.cli.targets import find_app
from oplogue.errors import ConfigurationError, EmbeddedServerError
from oplogue.store.faults import OperationFailure, StoreError

LATER = {"pymongo", "bson", "rich", "prometheus_client", "opentelemetry", "starlette", "uvicorn"}
HEAVY = LATER | {"typer", "click", "pydantic"}


def ended(*arguments: str) -> int:
    """The exit code of the command."""
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert isinstance(exit_.value.code, int)
    return exit_.value.code


def in_a_fresh_interpreter(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


def modules_after(code: str, beyond: str = "") -> set[str]:
    """The top-level packages that some code imports, beyond those of other code."""
    listed = (
        f"import sys\n{beyond}\nbefore = set(sys.modules)\n{code}\n"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    ended = in_a_fresh_interpreter(listed)
    assert ended.returncode == 0, ended.stderr
    return set(ended.stdout.split())


def test_importing_the_command_line_imports_nothing_that_a_command_needs() -> None:
    assert not modules_after("import oplogue.cli") & HEAVY


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["tasks", "list", "--help"],
        ["worker", "--help"],
        ["status", "--help"],
        ["dev", "--help"],
        ["wrong"],
    ],
    ids=" ".join,
)
def test_help_and_mistakes_are_told_without_the_driver(arguments: list[str]) -> None:
    code = f"from oplogue.cli import main\ntry: main({arguments})\nexcept SystemExit: pass\nprint()"
    assert not modules_after(code) & LATER


def test_help_needs_none_of_the_parts_of_the_demo() -> None:
    code = "from oplogue.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\nprint()"
    assert "pydantic" not in modules_after(code)
    listed = in_a_fresh_interpreter(f"{code}\nimport sys; print('oplogue.cli.stage' in sys.modules)")
    assert listed.stdout.split()[-1] == "False"


def test_a_missing_extra_is_named_in_one_line() -> None:
    code = "import sys; sys.modules['typer'] = None\nfrom oplogue.cli import main\nmain(['demo'])"
    without = in_a_fresh_interpreter(code)
    assert without.returncode == 2
    assert without.stderr == "oplogue: typer is missing; pip install 'oplogue[cli]'\n"


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("--version") == 0
    assert capsys.readouterr().out == f"oplogue {metadata.version('oplogue')}\n"


@pytest.mark.parametrize("arguments", [(), ("--help",)])
def test_help_names_the_commands(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(*arguments) == 0
    said = capsys.readouterr().out
    for command in ("demo", "worker", "tasks"):
        assert f"\n  {command} " in said


def test_what_help_says_of_each_command_fits_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    ended("--help")
    commands = capsys.readouterr().out.partition("\nCommands:\n")[2].splitlines()
    assert len(commands) > 5
    assert all(line.endswith(".") and not line.endswith("...") for line in commands), commands


def test_a_group_without_a_command_tells_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("tasks") == 0
    assert "\n  retry " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("demo", "--seconds", "soon"), ("--seconds", "'soon'", "seconds above 0")),
        (("demo", "--seconds", "0"), ("--seconds", "'0'", "seconds above 0")),
        (("demo", "--seconds", "inf"), ("--seconds", "'inf'", "seconds above 0")),
        (("demo", "--docs", "1.5"), ("--docs", "'1.5'", "a whole number from 1")),
        (("demo", "--docs", "-1"), ("--docs", "'-1'", "a whole number from 1")),
        (("demo", "--uri", "localhost"), ("--uri", "'localhost'", "mongodb://host:27017/database")),
        (("demo", "--secnds", "3"), ("--secnds", "--seconds", "oplogue demo --help")),
        (("demo", "3"), ("3", "oplogue demo --help")),
        (("dmo",), ("dmo", "demo", "oplogue --help")),
        (("--verbose",), ("--verbose", "oplogue --help")),
        (("worker",), ("MODULE:APP", "oplogue worker --help")),
        (("worker", "shop"), ("MODULE:APP", "'shop'", "shop.tasks:app")),
        (("worker", "oplogue.nothing:app"), ("MODULE:APP", "no module 'oplogue.nothing'")),
        (("worker", "shop", "--reload"), ("MODULE:APP", "'shop'", "shop.tasks:app")),
        (("worker", "shop:app", "--burst", "--reload"), ("--reload", "--burst")),
        (("worker", "nowhere:app"), ("MODULE:APP", "no module 'nowhere'")),
        (("worker", "oplogue:nothing"), ("MODULE:APP", "has no 'nothing'")),
        (("worker", "oplogue:__all__"), ("MODULE:APP", "list", "not an App")),
    ],
)
def test_wrong_usage_is_one_line_that_names_what_is_wrong_and_what_would_be_right(
    arguments: tuple[str, ...], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(*arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("oplogue")
    assert said.err.count("\n") == 1
    assert all(word in said.err for word in words), said.err


def test_debug_shows_where_an_error_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("demo", "--seconds", "soon", "--debug") == 2
    said = capsys.readouterr().err
    assert said.startswith("Traceback")
    assert "ConfigurationError" in said


def test_a_module_whose_own_import_fails_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_tasks.py").write_text("import nothing_of_that_name\n", encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(ModuleNotFoundError, match="nothing_of_that_name"):
        find_app("broken_tasks:app")


def test_an_app_is_found_in_a_module_and_below_its_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "from oplogue import App\nclass shop:\n    app = App('mongodb://localhost/shop')\n"
    (tmp_path / "some_tasks.py").write_text(code, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert find_app("some_tasks:shop.app").instance_id


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (EmbeddedServerError("no mongod:\n  tried one\n  tried two"), "no mongod: tried one tried two"),
        (ConfigurationError("bad", option="--docs", value="x"), "--docs='x': bad"),
        (OperationFailure("not allowed", code=13), "OperationFailure 13: not allowed"),
        (
            StoreError("db:1: refused (configured timeouts: connectTimeoutMS: 2000.0ms), Timeout: 10.0s, …"),
            "PyMongoError: db:1: refused",
        ),
        (ValueError("two\nlines"), "ValueError: two lines"),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_an_error_is_told_in_one_line(error: Exception, line: str) -> None:
    assert told(error) == line
