"""What a benchmark is: contestants that are measured in turns, and targets that compare their medians."""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from bench.lab import Lab

Sample = Mapping[str, float]
"""Figures of one repetition, by name with the unit at its end: ``{"p50 ms": 2.1}``."""


class VoidError(Exception):
    """The ledger does not add up: some document was handled twice, or never."""


class AbsentError(Exception):
    """This contestant can't take part here: no node, not enough processors."""


@dataclass(frozen=True)
class Contestant:
    """One way to do the same work."""

    name: str
    measure: Callable[[Lab], Awaitable[Sample]]
    repetitions: int | None = None
    """Where it differs from the run's: a slow peer needs no more than one."""


@dataclass(frozen=True)
class Target:
    """A figure of one contestant against a limit, or against a figure of another one."""

    text: str
    figure: tuple[str, str]
    op: Literal["<=", ">="]
    limit: float
    against: tuple[str, str] | None = None


@dataclass(frozen=True)
class Axis:
    """What a benchmark's contestants are sizes of, for its chart."""

    label: str
    figure: str
    sizes: Mapping[str, int]
    """The size that each contestant stands for."""


@dataclass(frozen=True)
class Benchmark:
    """One row of the table of targets."""

    id: str
    title: str
    contestants: Sequence[Contestant]
    targets: Sequence[Target] = ()
    heavy: bool = False
    """Takes minutes: only with ``--full``, or when it is asked for by name."""
    axis: Axis | None = None
    """Where the contestants are one scenario at growing sizes."""


@dataclass
class Series:
    """All repetitions of one contestant."""

    name: str
    samples: list[dict[str, float]] = field(default_factory=list)
    note: str = ""

    def figures(self) -> list[str]:
        """Their names, in the order of the first sample."""
        return list(self.samples[0]) if self.samples else []

    def values(self, figure: str) -> list[float]:
        """One figure of every repetition."""
        return [sample[figure] for sample in self.samples if figure in sample]

    def median(self, figure: str) -> float | None:
        """The figure to quote."""
        values = self.values(figure)
        return statistics.median(values) if values else None

    def as_json(self) -> dict[str, Any]:
        """For the results file."""
        medians = {figure: self.median(figure) for figure in self.figures()}
        return {"name": self.name, "note": self.note, "medians": medians, "samples": self.samples}


@dataclass(frozen=True)
class Verdict:
    """A target, measured."""

    text: str
    value: float | None
    met: bool | None


def judge(target: Target, series: Mapping[str, Series]) -> Verdict:
    """Compare medians; a contestant that was absent or void leaves the target open."""
    value = _median(series, target.figure)
    if target.against is not None:
        base = _median(series, target.against)
        value = None if value is None or not base else value / base
    if value is None:
        return Verdict(target.text, None, None)
    met = value <= target.limit if target.op == "<=" else value >= target.limit
    return Verdict(target.text, value, met)


def _median(series: Mapping[str, Series], figure: tuple[str, str]) -> float | None:
    found = series.get(figure[0])
    return None if found is None else found.median(figure[1])


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which that share of them lies."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]
