"""P1: from a write to the start of its handler, on the instance that leads."""

from __future__ import annotations

from bench import floors, scenarios
from bench.lab import Lab
from bench.model import Benchmark, Contestant, Sample, Target
from bench.peer import mongodash

WRITES = 150


async def _watch(lab: Lab) -> Sample:
    return await floors.watch_loop(lab, lab.size(WRITES))


async def _oplogue(lab: Lab) -> Sample:
    return await scenarios.latency(lab, lab.size(WRITES))


async def _mongodash(lab: Lab) -> Sample:
    return await mongodash(lab, "latency", 50, 10)


BENCHMARK = Benchmark(
    "P1",
    "write → handler, same instance",
    [
        Contestant("bare watch loop", _watch),
        Contestant("oplogue", _oplogue),
        Contestant("mongodash", _mongodash, repetitions=1),
    ],
    [
        Target(
            "p50 against the bare watch loop", ("oplogue", "p50 ms"), "<=", 4, ("bare watch loop", "p50 ms")
        ),
        Target("p99, ms", ("oplogue", "p99 ms"), "<=", 10),
        Target("p50 against mongodash", ("oplogue", "p50 ms"), "<=", 1 / 12, ("mongodash", "p50 ms")),
    ],
)
