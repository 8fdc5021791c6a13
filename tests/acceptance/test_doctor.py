"""``oplogue doctor`` as an operator calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from oplogue.cli import main


def ended(*arguments: str) -> int:
    """The exit code of the command."""
    with pytest.raises(SystemExit) as exit_:
        main(["doctor", *arguments])
    assert isinstance(exit_.value.code, int)
    return exit_.value.code


def test_warnings_are_no_problem_and_each_says_how_it_is_mended(
    database_uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended("--uri", database_uri) == 0
    said = capsys.readouterr().out.splitlines()
    assert "ok       version: MongoDB 6.0.5" in said
    place = said.index("warning  instances: no instance is alive: nothing is planned or run")
    assert said[place + 1] == "         → oplogue worker MODULE:APP"
    assert said[-1].endswith(" ok, 1 warning, 0 problems")


def test_a_problem_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("--uri", "mongodb://127.0.0.1:9/shop?serverSelectionTimeoutMS=100") == 1
    said = capsys.readouterr().out
    assert said.startswith("PROBLEM  server: no MongoDB answers")
    assert said.endswith("0 ok, 0 warnings, 1 problem\n")


def test_json_is_the_same_for_programs(database_uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("--uri", database_uri, "--json") == 0
    findings = json.loads(capsys.readouterr().out)
    assert {"check": "version", "level": "ok", "text": "MongoDB 6.0.5", "mend": None} in findings


def test_an_app_is_checked_with_its_own_server_and_tasks(
    tmp_path: Path,
    database_uri: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "doctored.py").write_text(
        f"from oplogue import App, Context\napp = App({database_uri!r})\n"
        "@app.reactive_task(collection='orders')\nasync def handle(ctx: Context) -> None: ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)  # pyright: ignore[reportUnknownMemberType]
    assert ended("doctored:app") == 0
    assert "no records yet of" in capsys.readouterr().out
    assert ended("doctored:app", "--uri", database_uri) == 2
    assert "either it or MODULE:APP" in capsys.readouterr().err


def test_without_any_address_it_says_where_to_give_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("OPLOGUE_MONGODB_URI", "MONGODB_URI"):
        monkeypatch.delenv(name, raising=False)
    assert ended() == 2
    assert "OPLOGUE_MONGODB_URI" in capsys.readouterr().err
