"""The page of guarantees: its tests are there, and its figures are those that are kept."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from tests.faults import publish

PAGE = publish.PAGE.read_text(encoding="utf-8")
MARKED = re.compile(r'@pytest\.mark\.row\("(\w+)", "(.+?)"\)')


def _rows_of_tests() -> dict[str, str]:
    sources = (publish.ROOT / "tests" / "faults").glob("test_row_*.py")
    return dict(found for path in sources for found in MARKED.findall(path.read_text(encoding="utf-8")))


def test_the_table_shows_the_figures_that_are_kept() -> None:
    assert publish.shown(PAGE) == publish.table(publish.kept())
    assert publish.kept()


def test_every_row_with_figures_is_that_of_a_test() -> None:
    tests = _rows_of_tests()
    assert {row["row"].partition("_")[0]: row["fault"] for row in publish.kept()}.items() <= tests.items()


@pytest.mark.parametrize("row", publish.kept(), ids=lambda row: str(row["row"]))
def test_nothing_was_lost_or_stuck_and_no_effect_is_off(row: dict[str, Any]) -> None:
    assert (row["lost"], row["stuck"], row["effects_off"]) == (0, 0, 0)


def test_every_promise_names_tests_that_are_there() -> None:
    promises = [line for line in PAGE.splitlines() if line.startswith("| **")]
    assert len(promises) >= 9
    for promise in promises:
        paths = re.findall(r"\]\(([^)]+)\)", promise)
        assert paths, promise
        missing = [path for path in paths if not (publish.PAGE.parent / path).exists()]
        assert not missing


def test_every_row_of_the_matrix_stands_for_a_promise() -> None:
    linked = set(re.findall(r"tests/faults/(test_row_\w+\.py)", PAGE))
    there = {path.name for path in (publish.ROOT / "tests" / "faults").glob("test_row_*.py")}
    assert linked == there


def test_a_new_result_takes_the_place_of_the_old_and_a_short_run_does_not() -> None:
    old = publish.kept()[0]
    full = {**old, "full": True, "seed": -1, "more": "of its own"}
    short = {**old, "full": False, "seed": -2}
    (changed,) = [row for row in publish.updated(publish.kept(), [full, short]) if row["row"] == old["row"]]
    assert changed == {**old, "seed": -1}
    assert len(publish.updated(publish.kept(), [full])) == len(publish.kept())


def test_figures_are_kept_as_they_would_be_written() -> None:
    assert publish.KEPT.read_text(encoding="utf-8") == json.dumps(publish.kept(), indent=1) + "\n"
