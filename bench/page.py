"""The figures of the kept runs as tables of `docs/explanation/performance.md`: ``python -m bench.page``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parent.parent
KEPT = tuple(_ROOT / "bench" / "results" / f"{name}.json" for name in ("current", "large"))
PAGE = _ROOT / "docs" / "explanation" / "performance.md"
_END = "<!-- end of figures -->"


def figures(run: dict[str, Any]) -> str:
    """Targets first, then what every contestant measured."""
    machine, scale = run["machine"], run["scale"]
    loop = "uvloop" if machine["uvloop"] else "asyncio"
    head = (
        f"One run of {run['date']}: {machine['processors']} processors, Python {machine['python']}, {loop}, "
        f"scale {scale:g}. Medians."
    )
    return "\n".join([head, "", *_targets(run["benchmarks"]), "", *_medians(run["benchmarks"])])


def _targets(benchmarks: list[dict[str, Any]]) -> list[str]:
    lines = ["| | target | asked | measured | |", "| --- | --- | ---: | ---: | --- |"]
    for one in benchmarks:
        for target in one["targets"]:
            sign = {"<=": "≤", ">=": "≥"}[target["op"]]
            value = "–" if target["value"] is None else number(target["value"])
            verdict = {True: "met", False: "**missed**", None: "open"}[target["met"]]
            asked = f"{sign} {number(target['limit'])}"
            lines.append(
                f"| {one['id']} | {one['title']}: {target['text']} | {asked} | {value} | {verdict} |"
            )
    return lines


def _medians(benchmarks: list[dict[str, Any]]) -> list[str]:
    lines = ["| | contestant | figures |", "| --- | --- | --- |"]
    for one in benchmarks:
        for contestant in one["contestants"]:
            medians = contestant["medians"].items()
            shown = ", ".join(f"{number(value)} {name}" for name, value in medians if value is not None)
            lines.append(f"| {one['id']} | {contestant['name']} | {shown or contestant['note']} |")
    return lines


def number(value: float) -> str:
    """Three digits are more than any figure here is worth."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{float(f'{value:.3g}'):g}"


def replaced(page: str) -> str:
    """The page with the figures of the kept runs, each between its markers."""
    for results in KEPT:
        begin = f"<!-- figures of bench/results/{results.name} -->"
        before, marker, rest = page.partition(begin)
        if not marker:
            raise ValueError(f"{PAGE.name} has no place for {results.name}: {begin}")
        _, _, after = rest.partition(_END)
        run = json.loads(results.read_text(encoding="utf-8"))
        page = f"{before}{begin}\n{figures(run)}\n{_END}{after}"
    return page


def main() -> None:
    """Rewrite the page."""
    PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
