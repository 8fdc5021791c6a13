"""G1: how a drain goes on as the backlog grows, from a thousand records to a million."""

from __future__ import annotations

from bench import scenarios
from bench.growth import Growth, curve
from bench.lab import Lab
from bench.model import Sample


async def _drain(lab: Lab, records: int) -> Sample:
    return await scenarios.drain(lab, lab.size(records), 1_000)


BENCHMARK = curve(
    Growth("G1", "backlog drain, 1,000 slots", "records", (1_000, 10_000, 100_000, 1_000_000)),
    _drain,
    figure="per s",
    least=0.8,
    since=10_000,
)
