"""A row's figures: printed as one line, and kept with the commit that they were measured on."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.oracle import Verdict

RESULTS = Path(__file__).parent.parent / "results"
LINES: list[str] = []
HEADER = (
    f"{'row':<4} {'fault':<44} {'times':>6} {'writes':>7} {'runs':>7} {'lost':>4} {'stuck':>5} {'eff':>4} "
    f"{'dup %':>6} {'p50 s':>7} {'p99 s':>7} {'max s':>7}  seed"
)


class Report:
    """One row of the matrix."""

    def __init__(self, row: str, title: str, *, seed: int, full: bool) -> None:
        self.row = row
        self.title = title
        self.seed = seed
        self.full = full
        self._kept: list[Path] = []

    def write(
        self,
        verdict: Verdict,
        *,
        times: int,
        recoveries: Sequence[float] = (),
        more: Mapping[str, Any] | None = None,
    ) -> None:
        """Keep and print the figures."""
        rate = 100 * verdict.duplicates / max(verdict.runs, 1)
        figures: dict[str, Any] = {
            "row": self.row,
            "fault": self.title,
            "full": self.full,
            "seed": self.seed,
            "commit": _commit(),
            "times": times,
            "writes": verdict.writes,
            "runs": verdict.runs,
            "lost": len(verdict.lost),
            "stuck": len(verdict.stuck),
            "effects_off": verdict.effects_off,
            "duplicate_rate": rate / 100,
            "recovery": {
                name: percentile(recoveries, part) for name, part in (("p50", 50), ("p99", 99), ("max", 100))
            },
            **(more or {}),
        }
        # A short run must not take the place of what the full one has found.
        folder = RESULTS if self.full else RESULTS / "short"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"row_{self.row}.json"
        path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
        self._kept.append(path)
        shown = [_seconds(percentile(recoveries, part)) for part in (50, 99, 100)]
        LINES.append(
            f"{self.row:<4} {self.title:<44} {times:>6} {verdict.writes:>7} {verdict.runs:>7} "
            f"{len(verdict.lost):>4} {len(verdict.stuck):>5} {verdict.effects_off:>4} {rate:>6.2f} "
            f"{shown[0]:>7} {shown[1]:>7} {shown[2]:>7}  {self.seed}"
        )

    def withdraw(self) -> None:
        """The row has failed after all: its figures are nobody's."""
        for path in self._kept:
            path.unlink(missing_ok=True)


def percentile(values: Sequence[float], part: float) -> float | None:
    """The value below which that part (of 100) lies."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part / 100))]


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _commit() -> str:
    try:
        said = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parent,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return said.stdout.strip()
