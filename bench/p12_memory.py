"""P12: the memory of a worker process, idle and after many tasks."""

from __future__ import annotations

from bench.lab import UNFINISHED, Lab, insert, resident, until
from bench.model import Benchmark, Contestant, Sample, Target
from bench.worker import worker

COUNT = 1_000_000
_BATCH = 20_000


async def _oplogue(lab: Lab) -> Sample:
    count = lab.size(COUNT)
    async with lab.database() as database, worker(lab.uri_for(database.name), slots=100) as process:
        records = database["orders_tasks"]

        async def through(number: int) -> float:
            async def done() -> bool:
                planned = await records.estimated_document_count()
                return planned >= number and await records.find_one(UNFINISHED, {"_id": 1}) is None

            await until(done, every=0.2)
            return resident(process.pid)

        idle = resident(process.pid)
        figures: list[float] = []
        for start in range(0, count, _BATCH):
            size = min(_BATCH, count - start)
            await insert(database, size, start=start)
            figures.append(await through(start + size))
        # Growth from the first tenth on: what a burst needs for itself is not a leak.
        return {
            "idle MB": idle,
            "peak MB": max(figures),
            "growth MB": figures[-1] - figures[len(figures) // 10],
        }


BENCHMARK = Benchmark(
    "P12",
    "memory of a worker",
    [Contestant("oplogue", _oplogue, repetitions=1)],
    [
        Target("idle, MB", ("oplogue", "idle MB"), "<=", 60),
        Target("growth over all tasks, MB", ("oplogue", "growth MB"), "<=", 10),
    ],
    heavy=True,
)
