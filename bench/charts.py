"""The picture beside the table: a panel for each benchmark; curves where sizes grow, bars elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.model import Axis, Benchmark, Series

Result = tuple[Benchmark, Sequence[Series]]
_COLUMNS = 3
_OURS, _THEIRS = "#00684a", "#9aa5b1"


def draw(results: Sequence[Result], path: Path) -> bool:
    """Write the picture; False where matplotlib is not installed or there is nothing to draw."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    shown = [(one, series) for one, series in results if any(_headline(one, each) for each in series)]
    if not shown:
        return False
    rows = math.ceil(len(shown) / _COLUMNS)
    figure = Figure(figsize=(6 * _COLUMNS, 3.6 * rows), layout="constrained")
    grid: Any = figure.subplots(rows, _COLUMNS, squeeze=False)
    panels = list(grid.flat)
    for panel, (benchmark, series) in zip(panels, shown, strict=False):
        panel.set_title(f"{benchmark.id}  {benchmark.title}", loc="left", fontsize=10)
        if benchmark.axis is not None:
            _curve(panel, benchmark.axis, series)
        else:
            _bars(panel, benchmark, series)
    for panel in panels[len(shown) :]:
        panel.set_visible(False)
    figure.savefig(path, dpi=110)
    return True


def _headline(benchmark: Benchmark, series: Series) -> str | None:
    """The figure that a benchmark's first target is about, where this contestant has it."""
    wanted = benchmark.targets[0].figure[1] if benchmark.targets else None
    return wanted if wanted in series.figures() else None


def _curve(panel: Any, axis: Axis, series: Sequence[Series]) -> None:
    points = [(axis.sizes[one.name], one.median(axis.figure)) for one in series if one.samples]
    panel.plot([size for size, _ in points], [value for _, value in points], "o-", color=_OURS)
    panel.set_xscale("log")
    panel.set_xticks([size for size, _ in points], [f"{size:,}" for size, _ in points])
    panel.minorticks_off()
    panel.set_ylim(bottom=0)
    panel.set_xlabel(axis.label)
    panel.set_ylabel(axis.figure)
    panel.grid(alpha=0.3)


def _bars(panel: Any, benchmark: Benchmark, series: Sequence[Series]) -> None:
    shown = [(one, figure) for one in reversed(series) if (figure := _headline(benchmark, one))]
    medians = [one.median(figure) or 0.0 for one, figure in shown]
    below = [median - min(one.values(figure)) for (one, figure), median in zip(shown, medians, strict=True)]
    above = [max(one.values(figure)) - median for (one, figure), median in zip(shown, medians, strict=True)]
    colours = [_OURS if one.name.startswith("oplogue") else _THEIRS for one, _ in shown]
    panel.barh([one.name for one, _ in shown], medians, xerr=[below, above], color=colours)
    panel.set_xlabel(shown[0][1])
