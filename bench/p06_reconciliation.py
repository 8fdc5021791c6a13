"""P6: every document of a collection is planned once, range by range, without the rests that the default takes."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any
from unittest import mock

from bench.lab import Lab, insert, resident
from bench.model import Benchmark, Contestant, Sample, Target, VoidError
from oplogue import Context
from oplogue.model.events import Event
from oplogue.runtime.settings import PACE_VARIABLE

COUNT = 1_000_000


async def _oplogue(lab: Lab) -> Sample:
    """New records; then unchanged ones, because the task's filter was edited to one that matches the same."""
    count = lab.size(COUNT)
    async with lab.database() as database:
        await insert(database, count, batch=5_000)
        new, grown = await _reconciled(lab, database.name, count, {"status": "paid"})
        if await database["orders_tasks"].count_documents({}) != count:
            raise VoidError("not every document has a record")
        same = {"status": {"$in": ["paid", "done"]}}
        unchanged, _ = await _reconciled(lab, database.name, count, same)
        return {"new per s": new, "unchanged per s": unchanged, "grown MB": grown}


async def _reconciled(lab: Lab, database: str, count: int, condition: dict[str, Any]) -> tuple[float, float]:
    moments: dict[str, float] = {}
    over = asyncio.Event()
    with mock.patch.dict(os.environ, {PACE_VARIABLE: "1"}):
        async with lab.app(database, concurrency=0) as app:

            async def handler(_ctx: Context) -> None:
                raise AssertionError("an instance without slots runs nothing")

            app.reactive_task(
                task="t", collection="orders", filter=condition, watch_projection={"status": 1}, debounce=0
            )(handler)

            @app.on("reconciliation.started")
            def begin(_event: Event) -> None:
                moments["begin"], moments["before"] = time.perf_counter(), resident()

            @app.on("reconciliation.finished")
            def end(_event: Event) -> None:
                moments["end"] = time.perf_counter()
                over.set()

            await app.start()
            async with asyncio.timeout(900):
                await over.wait()
            return count / (moments["end"] - moments["begin"]), resident() - moments["before"]


BENCHMARK = Benchmark(
    "P6",
    "reconciliation, unpaced",
    [Contestant("oplogue", _oplogue, repetitions=1)],
    [
        Target("new, per s", ("oplogue", "new per s"), ">=", 20_000),
        Target("unchanged, per s", ("oplogue", "unchanged per s"), ">=", 30_000),
        Target("growth, MB", ("oplogue", "grown MB"), "<=", 30),
    ],
    heavy=True,
)
