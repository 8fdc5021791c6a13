"""Words of the pages that the code must know."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from oplogue.model.events import EVENTS

DOCS = Path(__file__).parents[3] / "docs"
AREAS = {code.partition(".")[0] for code in EVENTS}


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: str(page.relative_to(DOCS)))
def test_events_that_a_page_names_exist(page: Path) -> None:
    words = re.findall(r"`(\w+)\.(\w+)`", page.read_text(encoding="utf-8"))
    named = {f"{area}.{name}" for area, name in words if area in AREAS}
    assert named <= EVENTS.keys()


def test_the_first_page_leads_to_every_other() -> None:
    text = (DOCS / "README.md").read_text(encoding="utf-8")
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - {"README.md"}
    missing = {page for page in pages if f"({page})" not in text and not page.startswith("decisions/")}
    assert not missing
