"""The sums of all instances' figures: each addition counts once, whoever makes it and however often it is sent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.rig import BOUND, Rig

from oplogue.model import metrics
from oplogue.model.figures import Figures, Histogram
from oplogue.store.totals import Totals

RETRIED = (metrics.RETRIES.name, "sync")
RAN = (metrics.DURATION.name, "sync", "success")


def figures(retries: int = 1, *durations: float, task: str = "sync") -> Figures:
    runs = Histogram(metrics.DURATION.bounds)
    for duration in durations:
        runs.observe(duration)
    return Figures({(RETRIED[0], task): retries}, {(RAN[0], task, RAN[2]): runs} if durations else {})


def flat(of: Figures) -> Any:
    return of.counters, {series: (one.counts, one.sum) for series, one in of.histograms.items()}


def totals(rig: Rig) -> Totals:
    return Totals(rig.client, rig.globals, bound=BOUND)


async def test_additions_of_several_instances_are_one_sum(rig: Rig) -> None:
    one, two = totals(rig), totals(rig)
    assert flat(await one.read()) == ({}, {})
    await asyncio.gather(one.add(figures(1, 0.02, 7.0), 1), two.add(figures(2, 0.02, 9_999.0), 1))
    expected = flat(figures(3, 0.02, 7.0, 0.02, 9_999.0))
    assert flat(await one.read()) == expected
    assert flat(await two.add(figures(1), 2)) == flat(figures(4, 0.02, 7.0, 0.02, 9_999.0))


async def test_addition_that_is_sent_again_counts_once(rig: Rig) -> None:
    mine = totals(rig)
    for _ in range(3):
        assert flat(await mine.add(figures(5, 1.0), 1)) == flat(figures(5, 1.0))
    assert flat(await mine.add(figures(5), 2)) == flat(figures(10, 1.0))
    # Another instance's first is not this one's.
    assert flat(await totals(rig).add(figures(5), 1)) == flat(figures(15, 1.0))


@pytest.mark.parametrize("task", ["a.b", "$a", "100%", "%2e", "a|b", "a\0b", "ž", "0"])
async def test_names_of_tasks_come_back_as_they_are(rig: Rig, task: str) -> None:
    mine = totals(rig)
    await mine.add(figures(1, 0.5, task=task), 1)
    assert flat(await mine.read()) == flat(figures(1, 0.5, task=task))


async def test_document_does_not_grow_with_the_number_of_additions(rig: Rig) -> None:
    mine = totals(rig)
    await rig.db[rig.globals.collection].insert_one(
        {"_id": "figures", "series": {}, "added": [f"old-{number}" for number in range(600)]}
    )
    assert flat(await mine.add(figures(1), 1)) == flat(figures(1))
    stored = await rig.db[rig.globals.collection].find_one({"_id": "figures"})
    assert stored is not None
    assert len(stored["added"]) == 500


async def test_what_another_version_counted_is_read_as_far_as_it_is_known(rig: Rig) -> None:
    mine = totals(rig)
    await mine.add(figures(2, 0.02), 1)
    series = {
        "reactive_tasks_of_the_future_total": 7,
        "reactive_tasks_retries_total|a|b": 7,
        "reactive_tasks_retries_total|edited": "x",
        # A bound that is not ours: these fall below the next one of ours.
        "reactive_tasks_duration_seconds|sync|success": {"0%2e02": 3, "inf": 1, "sum": 4.0},
    }
    stored = rig.db[rig.globals.collection]
    await stored.update_one({"_id": "figures"}, [{"$set": {"series": {"$literal": series}}}])
    read = await mine.read()
    assert read.counters == {}
    runs = read.histograms[RAN]
    below = metrics.DURATION.bounds.index(0.025)
    assert (runs.counts[below], runs.counts[-1], runs.sum) == (3, 1, 4.0)
