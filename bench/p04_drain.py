"""P4: a backlog of pending records, worked off by one process."""

from __future__ import annotations

from bench import floors, scenarios
from bench.lab import Lab
from bench.model import Benchmark, Contestant, Sample, Target
from bench.peer import mongodash

COUNT = 20_000


async def _bare(lab: Lab) -> Sample:
    return await floors.bare_drain(lab, lab.size(COUNT), 1_000)


async def _bare_documents(lab: Lab) -> Sample:
    return await floors.bare_drain(lab, lab.size(COUNT), 1_000, documents=True)


async def _thousand(lab: Lab) -> Sample:
    return await scenarios.drain(lab, lab.size(COUNT), 1_000)


async def _three_thousand(lab: Lab) -> Sample:
    return await scenarios.drain(lab, lab.size(COUNT), 3_000)


async def _injected(lab: Lab) -> Sample:
    return await scenarios.drain(lab, lab.size(COUNT), 1_000, "injected")


async def _get_document(lab: Lab) -> Sample:
    return await scenarios.drain(lab, lab.size(COUNT // 2), 1_000, "get_document")


async def _mongodash(lab: Lab) -> Sample:
    return await mongodash(lab, "backlog", 3_000, 50)


BENCHMARK = Benchmark(
    "P4",
    "backlog drain",
    [
        Contestant("bare claims, 1000 slots", _bare),
        Contestant("bare claims, documents", _bare_documents),
        Contestant("oplogue, 1000 slots", _thousand),
        Contestant("oplogue, 3000 slots", _three_thousand),
        Contestant("oplogue, injected", _injected),
        Contestant("oplogue, get_document", _get_document),
        Contestant("mongodash, 50 slots", _mongodash, repetitions=1),
    ],
    [
        Target("1,000 slots, per s", ("oplogue, 1000 slots", "per s"), ">=", 18_000),
        Target("3,000 slots, per s", ("oplogue, 3000 slots", "per s"), ">=", 25_000),
        Target("document injected, per s", ("oplogue, injected", "per s"), ">=", 15_000),
        Target("get_document(), per s", ("oplogue, get_document", "per s"), ">=", 5_000),
    ],
)
