"""P11: one process, then two, on handlers that burn 5 ms of processor time each."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack

from bench.lab import Lab, insert, until
from bench.model import AbsentError, Benchmark, Contestant, Sample, Target, VoidError
from bench.worker import worker

COUNT = 1_000


async def _one(lab: Lab) -> Sample:
    return await _with(lab, 1)


async def _two(lab: Lab) -> Sample:
    return await _with(lab, 2)


async def _with(lab: Lab, processes: int) -> Sample:
    if (os.cpu_count() or 1) < 2:
        raise AbsentError("there is one processor only")
    return await finished_by(lab, processes, lab.size(COUNT), slots=10, burn_ms=5)


async def finished_by(lab: Lab, processes: int, count: int, **options: float) -> Sample:
    """So many documents by so many workers: by the server's clock, from the first start to the last end of a run."""
    async with lab.database() as database, AsyncExitStack() as stack:
        uri = lab.uri_for(database.name)
        for _ in range(processes):
            await stack.enter_async_context(worker(uri, **options))
        await insert(database, count)
        records = database["orders_tasks"]

        async def done() -> bool:
            return await records.count_documents({"status": "completed"}) >= count

        await until(done, every=0.1)
        once = {"attempts": 1, "executionHistory": {"$size": 1}}
        if await records.count_documents(once) != count:
            raise VoidError("some document was handled more than once")
        span = {"$group": {"_id": None, "a": {"$min": "$startedAt"}, "b": {"$max": "$lastFinalizedAt"}}}
        row = (await (await records.aggregate([span])).to_list())[0]
        return {"per s": count / (row["b"] - row["a"]).total_seconds()}


BENCHMARK = Benchmark(
    "P11",
    "handlers that burn 5 ms",
    [Contestant("one process", _one), Contestant("two processes", _two)],
    [Target("two against one", ("two processes", "per s"), ">=", 1.8, ("one process", "per s"))],
)
