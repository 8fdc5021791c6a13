"""Which files count as source, and when they have changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oplogue.cli.changes import SourceFiles
from oplogue.clock import Clock


class Passing(Clock):
    """A second passes with each question."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        """The next second."""
        self._now += 1
        return self._now


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project."""
    for path in (
        "shop/tasks.py",
        "shop/notes.txt",
        ".git/hook.py",
        ".venv/lib.py",
        "env/lib/site.py",
        "env/pyvenv.cfg",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("first")
    return tmp_path


def asked(files: SourceFiles, times: int = 30) -> list[bool]:
    """Ask so often: a look takes two questions' time, and is followed by ten times that."""
    return [files.have_changed() for _ in range(times)]


def rewrite(folder: Path) -> None:
    (folder / "shop/tasks.py").write_text("another")


def touch(folder: Path) -> None:
    os.utime(folder / "shop/tasks.py", ns=(1, 1))


def add(folder: Path) -> None:
    (folder / "shop/prices.py").write_text("new")


def add_in_a_new_folder(folder: Path) -> None:
    (folder / "more").mkdir()
    (folder / "more/prices.py").write_text("new")


def delete(folder: Path) -> None:
    (folder / "shop/tasks.py").unlink()


@pytest.mark.parametrize("change", [rewrite, touch, add, add_in_a_new_folder, delete])
def test_a_change_of_the_sources_is_told_once(folder: Path, change: Callable[[Path], None]) -> None:
    files = SourceFiles(folder, Passing())
    assert not any(asked(files))
    change(folder)
    assert asked(files, 60).count(True) == 1


@pytest.mark.parametrize("path", ["shop/notes.txt", ".git/hook.py", ".venv/lib.py", "env/lib/site.py"])
def test_what_is_no_source_may_change(folder: Path, path: str) -> None:
    files = SourceFiles(folder, Passing())
    (folder / path).write_text("another")
    assert not any(asked(files, 60))


def test_files_must_have_come_to_rest(folder: Path) -> None:
    files = SourceFiles(folder, Passing())
    for number in range(5):
        (folder / "shop/tasks.py").write_text("x" * (number + 10))
        assert not any(asked(files, 8))
    assert any(asked(files))


def test_the_files_are_looked_at_seldom_compared_with_how_long_a_look_takes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = SourceFiles(folder, Passing())
    walks: list[Path] = []
    walk = os.walk

    def counted(top: Path) -> Iterator[tuple[str, list[str], list[str]]]:
        walks.append(top)
        return walk(str(top))

    monkeypatch.setattr(os, "walk", counted)
    asked(files, 100)
    assert 3 <= len(walks) <= 10
