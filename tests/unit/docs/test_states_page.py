"""The page of states says what the code's table says."""

from __future__ import annotations

from pathlib import Path

from oplogue.model.states import EDGES, Status

PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "states.md"


def _rows(heading: str) -> list[list[str]]:
    _, _, after = PAGE.read_text().partition(heading)
    table = [line for line in after.partition("\n## ")[0].splitlines() if line.startswith("|")]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in table[2:]]


def test_page_of_states_lists_every_transition_of_the_code_in_order() -> None:
    of_code = [[edge.cause, edge.before or "–", edge.after] for edge in EDGES]

    assert _rows("## Every transition") == of_code


def test_page_of_states_explains_every_status() -> None:
    assert [row[0] for row in _rows("# States of a task record")] == list(Status)
