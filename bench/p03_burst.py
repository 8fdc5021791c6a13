"""P3: a burst of documents inserted while everything runs, until every outcome is written."""

from __future__ import annotations

from bench import floors, scenarios
from bench.lab import Lab
from bench.model import Benchmark, Contestant, Sample, Target
from bench.peer import mongodash

COUNT = 20_000


async def _insert(lab: Lab) -> Sample:
    return await floors.insert_alone(lab, lab.size(COUNT))


async def _merge(lab: Lab) -> Sample:
    return await floors.bare_merge(lab, lab.size(COUNT))


async def _bare_drain(lab: Lab) -> Sample:
    return await floors.bare_drain(lab, lab.size(COUNT), 1_000)


async def _wide(lab: Lab) -> Sample:
    return await scenarios.burst(lab, lab.size(COUNT), 1_000)


async def _default(lab: Lab) -> Sample:
    return await scenarios.burst(lab, lab.size(COUNT), 10, await_seconds=0.001)


async def _mongodash(lab: Lab) -> Sample:
    return await mongodash(lab, "burst", 3_000, 50)


BENCHMARK = Benchmark(
    "P3",
    "live burst, until settled",
    [
        Contestant("insert alone", _insert),
        Contestant("bare $merge", _merge),
        Contestant("bare claims, 1000 slots", _bare_drain),
        Contestant("oplogue, 1000 slots", _wide),
        Contestant("oplogue, 10 slots, 1 ms", _default),
        Contestant("mongodash, 50 slots", _mongodash, repetitions=1),
    ],
    [
        Target("1,000 slots, per s", ("oplogue, 1000 slots", "per s"), ">=", 15_000),
        Target(
            "against mongodash", ("oplogue, 1000 slots", "per s"), ">=", 12, ("mongodash, 50 slots", "per s")
        ),
        Target("10 slots and 1 ms, per s", ("oplogue, 10 slots, 1 ms", "per s"), ">=", 6_000),
    ],
)
