"""G2: a live burst shared by more and more tasks of one collection; each document matches one of them."""

from __future__ import annotations

from bench import scenarios
from bench.growth import Growth, curve
from bench.lab import Lab
from bench.model import Sample

COUNT = 20_000


async def _burst(lab: Lab, tasks: int) -> Sample:
    return await scenarios.shared_burst(lab, lab.size(COUNT), 1_000, tasks)


BENCHMARK = curve(
    Growth("G2", "live burst shared by tasks", "tasks", (1, 10, 30, 100)),
    _burst,
    figure="per s",
    least=0.3,
    since=1,
)
