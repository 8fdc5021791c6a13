"""P2: from a write to its handler on an instance that is not the leader; the leader is another process."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from bench import floors
from bench.floors import spread, write_and_wait
from bench.lab import Lab, Ledger
from bench.model import Benchmark, Contestant, Sample, Target
from bench.worker import worker
from oplogue import Context

WRITES = 150


async def _watch(lab: Lab) -> Sample:
    return await floors.watch_loop(lab, lab.size(WRITES))


async def _oplogue(lab: Lab) -> Sample:
    async with (
        lab.database() as database,
        worker(lab.uri_for(database.name), slots=0),
        lab.app(database.name) as app,
    ):
        seen: dict[Any, asyncio.Future[float]] = {}
        ledger = Ledger()

        @app.reactive_task(
            task="t",
            collection="orders",
            filter={"status": "paid"},
            watch_projection={"status": 1},
            debounce=0,
        )
        async def handler(ctx: Context) -> None:
            now = time.perf_counter()
            ledger.note(ctx.doc_id)
            seen[ctx.doc_id].set_result(now)

        await app.start()
        latencies = await write_and_wait(database, lab.size(WRITES), seen)
        await lab.settled(database)
        ledger.check(seen)
        return spread(latencies)


BENCHMARK = Benchmark(
    "P2",
    "write → handler, another process leads",
    [Contestant("bare watch loop", _watch), Contestant("oplogue", _oplogue)],
    [
        Target(
            "p50 against the bare watch loop", ("oplogue", "p50 ms"), "<=", 8, ("bare watch loop", "p50 ms")
        ),
    ],
)
