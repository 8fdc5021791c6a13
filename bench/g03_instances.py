"""G3: more and more instances, a process each, on handlers that wait for 20 ms: slots are what is missing."""

from __future__ import annotations

from bench.growth import Growth, curve
from bench.lab import Lab
from bench.model import Sample
from bench.p11_processes import finished_by

COUNT = 6_000


async def _with(lab: Lab, instances: int) -> Sample:
    return await finished_by(lab, instances, lab.size(COUNT), slots=10, await_ms=20)


BENCHMARK = curve(
    Growth("G3", "handlers that wait 20 ms, 10 slots an instance", "instances", (1, 2, 4, 8)),
    _with,
    figure="per s",
    least=3.0,
    since=1,
)
