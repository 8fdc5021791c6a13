"""Counters and histograms: buckets, sums and differences."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oplogue.model.figures import Figures, Histogram
from oplogue.model.metrics import METRICS, Kind

BOUNDS = (0.5, 1.0, 2.0)
values = st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0]), max_size=8)
counters = st.dictionaries(st.sampled_from([("a",), ("a", "t"), ("b",)]), st.integers(1, 9))


def histogram(observed: list[float]) -> Histogram:
    made = Histogram(BOUNDS)
    for value in observed:
        made.observe(value)
    return made


def figures(counted: dict[tuple[str, ...], int], observed: list[float]) -> Figures:
    return Figures(dict(counted), {("h",): histogram(observed)} if observed else {})


def flat(of: Figures) -> object:
    return of.counters, {series: (one.counts, one.sum) for series, one in of.histograms.items()}


@pytest.mark.parametrize(("value", "bucket"), [(0.0, 0), (0.5, 0), (0.6, 1), (1.0, 1), (2.0, 2), (2.1, 3)])
def test_a_value_falls_into_the_first_bucket_whose_bound_it_does_not_exceed(
    value: float, bucket: int
) -> None:
    made = histogram([value])
    assert (made.counts.index(1), made.sum, made.count) == (bucket, value, 1)


@given(counters, values, counters, values)
def test_what_was_added_can_be_taken_away(
    one: dict[tuple[str, ...], int], first: list[float], two: dict[tuple[str, ...], int], second: list[float]
) -> None:
    before, more = figures(one, first), figures(two, second)
    both = before.plus(more)
    assert sum(both.counters.values()) == sum([*one.values(), *two.values()])
    assert both.histograms.get(("h",), histogram([])).count == len(first) + len(second)
    assert flat(both.plus(before, -1)) == flat(more)


def test_a_copy_does_not_change_with_what_is_counted_later() -> None:
    counted = figures({("a",): 1}, [1.0])
    copy = counted.copy()
    counted.counters["a",] = 2
    counted.histograms["h",].observe(1.0)
    assert flat(copy) == flat(figures({("a",): 1}, [1.0]))


def test_metrics_are_named_as_prometheus_wants_them() -> None:
    for name, metric in METRICS.items():
        assert name == metric.name
        assert name.startswith("reactive_tasks_")
        assert name.endswith("_total") == (metric.kind is Kind.COUNTER)
        assert bool(metric.bounds) == (metric.kind is Kind.HISTOGRAM)
        assert list(metric.bounds) == sorted(set(metric.bounds))
        assert metric.help.endswith(".")
