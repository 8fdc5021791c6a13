"""P8: a burst beside millions of completed records, and beside none; scrapes of the metrics beside them."""

from __future__ import annotations

from bench import scenarios
from bench.lab import Lab
from bench.model import Benchmark, Contestant, Sample, Target

KEPT = 5_000_000
COUNT = 20_000


async def _empty(lab: Lab) -> Sample:
    return await scenarios.burst(lab, COUNT, 1_000, scrape=True)


async def _kept(lab: Lab) -> Sample:
    return await scenarios.burst(lab, COUNT, 1_000, kept=lab.size(KEPT), scrape=True)


BENCHMARK = Benchmark(
    "P8",
    "completed records kept",
    [Contestant("none kept", _empty), Contestant("millions kept", _kept, repetitions=1)],
    [
        Target(
            "burst against an empty collection",
            ("millions kept", "per s"),
            ">=",
            0.8,
            ("none kept", "per s"),
        ),
        Target("scrape of the metrics, ms", ("millions kept", "scrape ms"), "<=", 100),
    ],
    heavy=True,
)
