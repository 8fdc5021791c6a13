"""Counters and histograms as plain numbers: cheap to feed, to add up and to subtract."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

Series = tuple[str, ...]
"""A metric's name and the values of its labels."""


class Histogram:
    """How many values fell into each bucket, and their sum.

    >>> sizes = Histogram((1, 10))
    >>> for size in (1, 5, 10, 11):
    ...     sizes.observe(size)
    >>> sizes.counts, sizes.sum
    ([1, 2, 1], 27.0)
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(
        self, bounds: Sequence[float], counts: Sequence[int] | None = None, total: float = 0.0
    ) -> None:
        self.bounds: Sequence[float] = bounds
        self.counts: list[int] = list(counts) if counts is not None else [0] * (len(bounds) + 1)
        """By bucket, not cumulative; the last has no upper bound."""
        self.sum: float = total

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """How many values were counted."""
        return sum(self.counts)

    def plus(self, other: Histogram, times: int = 1) -> Histogram:
        """Both together; with ``times=-1`` what came since the other."""
        counts = [mine + times * theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        return Histogram(self.bounds, counts, self.sum + times * other.sum)


@dataclass(slots=True)
class Figures:
    """What was counted, by series."""

    counters: dict[Series, float] = field(default_factory=dict[Series, float])
    histograms: dict[Series, Histogram] = field(default_factory=dict[Series, Histogram])

    def copy(self) -> Figures:
        """As it stands now."""
        return self.plus(Figures())

    def plus(self, other: Figures, times: int = 1) -> Figures:
        """Both together; with ``times=-1`` what was counted since the other. Series that stand at 0 are left out."""
        counters = dict(self.counters)
        for series, value in other.counters.items():
            counters[series] = counters.get(series, 0) + times * value
        histograms = dict(self.histograms)
        for series, theirs in other.histograms.items():
            mine = histograms.get(series, Histogram(theirs.bounds))
            histograms[series] = mine.plus(theirs, times)
        return Figures(
            {series: value for series, value in counters.items() if value},
            {series: one.plus(Histogram(one.bounds)) for series, one in histograms.items() if one.count},
        )
