"""The table on the terminal: medians, their spread, ratios to the first contestant, targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.model import Benchmark, Series, Verdict


def print_head(machine: Mapping[str, Any], scale: float) -> None:
    """Where this was measured."""
    loop = "uvloop" if machine["uvloop"] else "asyncio"
    print(f"{machine['processors']} processors, Python {machine['python']}, {loop}, scale {scale:g}")
    print("Figures move from run to run: compare ratios within one run.")


def print_benchmark(
    benchmark: Benchmark, series: Sequence[Series], verdicts: Sequence[Verdict], seconds: float
) -> None:
    """One benchmark's part of the table."""
    print(f"\n{benchmark.id}  {benchmark.title}  ({seconds:.0f} s)")
    first = series[0]
    for one in series:
        if one.note:
            print(f"  {one.name:<26} {one.note}")
        for number, figure in enumerate(one.figures()):
            name = "" if number else one.name
            print(f"  {name:<26} {figure:<20} {_row(one, figure, first)}")
    for verdict in verdicts:
        mark = {True: "met", False: "missed", None: "open"}[verdict.met]
        value = "" if verdict.value is None else _number(verdict.value)
        print(f"  {'→ ' + verdict.text:<47} {value:>10}   {mark}", flush=True)


def _row(one: Series, figure: str, first: Series) -> str:
    median, values = one.median(figure), one.values(figure)
    if median is None:
        return ""
    base = first.median(figure) if one is not first else None
    ratio = f"{median / base:6.2f} ×" if base else ""
    return f"{_number(median):>10}   {_number(min(values)):>8} … {_number(max(values)):<8} {ratio}"


def _number(value: float) -> str:
    if abs(value) >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
