"""Puts the figures of the fault matrix's last full run on the page of guarantees: ``make guarantees``.

``make faults ARGS=--full`` leaves a result for each row; rows may be run one by one. What is kept of them is
``docs/explanation/guarantees.json``; the table of the page is made of that, between two markers.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results"
KEPT = ROOT / "docs" / "explanation" / "guarantees.json"
PAGE = KEPT.with_suffix(".md")
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"
_FIELDS = (
    *("row", "fault", "times", "writes", "runs", "lost", "stuck", "effects_off", "duplicate_rate"),
    *("recovery", "seed", "commit"),
)
_HEADINGS = (
    *("row", "fault", "times", "writes", "runs", "lost", "stuck", "effects off", "duplicates"),
    *("recovery p50", "p99", "max", "seed", "commit"),
)

Figures = Mapping[str, Any]


def kept() -> list[dict[str, Any]]:
    """The figures that the page shows."""
    return list(json.loads(KEPT.read_text(encoding="utf-8"))) if KEPT.exists() else []


def updated(before: Sequence[Figures], results: Sequence[Figures]) -> list[dict[str, Any]]:
    """Results take the place of what was there of their rows; short runs count for nothing."""
    rows = {figures["row"]: dict(figures) for figures in before}
    rows |= {one["row"]: {field: one[field] for field in _FIELDS} for one in results if one["full"]}
    return sorted(rows.values(), key=_place)


def table(rows: Sequence[Figures]) -> str:
    """The figures as a table of the page."""
    lines = [_line(_HEADINGS), _line(["---"] * len(_HEADINGS)), *(_line(_cells(row)) for row in rows)]
    return "\n".join(lines)


def shown(page: str) -> str:
    """The table that is on the page."""
    return page.partition(BEGIN)[2].partition(END)[0].strip()


def _cells(row: Figures) -> list[str]:
    counts = [f"{row[name]:,}" for name in ("times", "writes", "runs", "lost", "stuck", "effects_off")]
    recovery = [_seconds(row["recovery"][name]) for name in ("p50", "p99", "max")]
    rate = f"{row['duplicate_rate']:.2%}"
    return [row["row"], row["fault"], *counts, rate, *recovery, str(row["seed"]), f"`{row['commit']}`"]


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} s"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _place(row: Figures) -> tuple[int, str]:
    number = re.match(r"\d+", row["row"])
    assert number is not None
    return int(number[0]), row["row"]


def main() -> None:
    """Keep what is new, and write the table."""
    results = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("row_*.json"))]
    rows = updated(kept(), results)
    KEPT.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, tail = rest.partition(END)
    PAGE.write_text(f"{head}{BEGIN}\n{table(rows)}\n{END}{tail}", encoding="utf-8")
    sys.stdout.write(f"{PAGE.relative_to(ROOT)}: {len(rows)} rows, {len(results)} of them of this run\n")


if __name__ == "__main__":
    main()
