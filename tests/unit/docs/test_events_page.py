"""The page of events says what the code declares."""

from __future__ import annotations

import logging
import re
from itertools import chain
from pathlib import Path

from oplogue import events
from oplogue.model.events import EVENTS

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "events.md").read_text(encoding="utf-8")


def _rows(first: str) -> list[list[str]]:
    """The rows of all tables whose first column has that heading."""
    tables = re.findall(rf"^\| {first} \|.*\n\| ---.*\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return [_cells(line) for line in "".join(tables).splitlines()]


def _cells(line: str) -> list[str]:
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def test_every_event_is_documented_with_its_level_and_its_class() -> None:
    of_code = {
        f"`{code}`": (f"`{logging.getLevelName(kind.level)}`", f"`{kind.payload.__name__}`")
        for code, kind in EVENTS.items()
    }
    of_page = {code: (level, carries) for code, level, when, carries in _rows("code") if when}
    assert of_page == of_code
    assert len(_rows("code")) == len(EVENTS)


def test_every_class_is_documented_with_its_fields_and_their_types() -> None:
    of_code = {
        f"`{cls.__name__}`": (
            f"`{cls.__mro__[1].__name__}`" if cls is not events.Event else "–",
            ", ".join(f"`{name}: {hint}`" for name, hint in cls.__annotations__.items()),
        )
        for cls in (getattr(events, name) for name in events.__all__)
    }
    assert {name: (base, fields) for name, base, fields in _rows("class")} == of_code


def test_every_field_is_explained() -> None:
    explained = set(chain.from_iterable(re.findall(r"`(\w+)`", names) for names, _ in _rows("field")))
    declared = {name for cls in events.__all__ for name in getattr(events, cls).__annotations__}
    assert explained == declared - {"code"}
