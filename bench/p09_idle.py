"""P9: what an instance costs that has nothing to do."""

from __future__ import annotations

import asyncio
import time

from bench.lab import WAITING, Lab, Ledger, insert
from bench.model import Benchmark, Contestant, Sample, Target
from bench.scenarios import register

SECONDS = 30.0


async def _oplogue(lab: Lab) -> Sample:
    async with lab.database() as database, lab.app(database.name) as app:
        ledger = Ledger()
        register(app, ledger)
        await app.start()
        ledger.expect(10)
        await insert(database, 10)
        async with asyncio.timeout(30):
            await ledger.full.wait()
        await asyncio.sleep(12)  # until looks have slowed down
        lab.commands.reset()
        begun, burnt = time.perf_counter(), time.process_time()
        await asyncio.sleep(SECONDS * min(lab.scale, 1))
        took = time.perf_counter() - begun
        waiting = sum(lab.commands.sent[name] for name in WAITING)
        return {
            "commands per s": lab.commands.total() / took,
            "waiting per s": waiting / took,
            "cpu %": (time.process_time() - burnt) / took * 100,
        }


BENCHMARK = Benchmark(
    "P9",
    "idle instance",
    [Contestant("oplogue", _oplogue, repetitions=1)],
    [
        Target("commands per s", ("oplogue", "commands per s"), "<=", 1),
        Target("share of a core, %", ("oplogue", "cpu %"), "<=", 1),
    ],
)
