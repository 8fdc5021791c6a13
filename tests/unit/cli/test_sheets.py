"""Lists of records on screens of any width."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from bson import ObjectId
from rich.console import Console

from oplogue.cli.sheets import page_list
from oplogue.model.record import Page, TaskRecord
from oplogue.model.states import Status

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
IDS = [ObjectId(f"{number:024x}") for number in range(3)]


def record(number: int, **fields: Any) -> TaskRecord:
    """A record that failed an hour ago."""
    dates = dict.fromkeys(("next_run_at", "due_at", "first_error_at", "created_at", "updated_at"))
    usual: dict[str, Any] = {
        "id": IDS[number],
        "collection": "orders",
        "task": "synchronize-orders-with-the-warehouse",
        "source_doc_id": f"order-{number}",
        "status": Status.FAILED,
        "attempts": 5,
        "last_observed_values": {},
        "last_error": "ConnectionError: the warehouse\nrefused it " + 20 * "x",
        "started_at": NOW - timedelta(hours=1),
        "completed_at": None,
        "last_finalized_at": NOW - timedelta(hours=1),
        "last_success": None,
        "execution_history": (),
        **dates,
    }
    return TaskRecord(**(usual | fields))


def shown(page: Page, width: int) -> list[str]:
    """The lines that a screen of that width has."""
    screen = Console(file=StringIO(), width=width)
    with screen.capture() as captured:
        screen.print(page_list(page, NOW, skip=0, width=width), highlight=False)
    return captured.get().splitlines()


@pytest.mark.parametrize("width", [60, 80, 120, 240])
def test_no_line_is_wider_than_the_screen_and_no_id_is_cut(width: int) -> None:
    page = Page((record(0), record(1, last_error=None, status=Status.COMPLETED), record(2)), 3)
    lines = shown(page, width)
    assert max(map(len, lines)) <= width
    for id_ in IDS:
        assert sum(line.startswith(str(id_)) for line in lines) == 1


def test_an_error_has_a_line_of_its_own_where_there_is_no_room_beside() -> None:
    page = Page((record(0),), 1)
    assert len(shown(page, 240)) == 3
    narrow = shown(page, 80)
    assert len(narrow) == 4
    assert narrow[1].split()[-3:] == ["failed", "1h", "ago"]
    assert narrow[2].startswith("  5 attempts: ConnectionError: the warehouse refused it xxx")


def test_a_long_task_and_a_long_document_give_way_before_the_state() -> None:
    long = record(0, source_doc_id="x" * 200)
    line = shown(Page((long,), 1), 80)[1]
    assert "failed 1h ago" in line
    assert line.count("…") == 2
    whole = shown(Page((long,), 1), 240)[1]
    assert long.task in whole


def test_a_page_says_which_of_how_many_it_shows() -> None:
    assert shown(Page((record(0),), 1), 80)[-1] == "1 record"
    assert shown(Page((record(0),), 1_234), 80)[-1] == "1–1 of 1,234 records"
    assert shown(Page((), 0), 80)[-1] == "0 records"
