"""Curves: one scenario at growing sizes. Each size is a contestant; a chart draws the medians over the sizes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from bench.lab import Lab
from bench.model import Axis, Benchmark, Contestant, Sample, Target

Measure = Callable[[Lab, int], Awaitable[Sample]]


@dataclass(frozen=True)
class Growth:
    """What grows, and through which sizes."""

    id: str
    title: str
    what: str
    sizes: tuple[int, ...]


def curve(growth: Growth, measure: Measure, *, figure: str, least: float, since: int) -> Benchmark:
    """A benchmark of these sizes: at the last the figure is at least so many times that at the size ``since``."""
    names = {size: f"{size:,} {growth.what}" for size in growth.sizes}
    last = growth.sizes[-1]
    return Benchmark(
        growth.id,
        growth.title,
        [Contestant(name, partial(_at, measure, size), repetitions=1) for size, name in names.items()],
        [
            Target(
                f"{names[last]} against {since:,}",
                (names[last], figure),
                ">=",
                least,
                (names[since], figure),
            )
        ],
        heavy=True,
        axis=Axis(growth.what, figure, dict(zip(names.values(), growth.sizes, strict=True))),
    )


async def _at(measure: Measure, size: int, lab: Lab) -> Sample:
    return await measure(lab, size)
