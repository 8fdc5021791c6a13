"""P7: updates that can't matter to any task don't leave the server."""

from __future__ import annotations

import asyncio

from bench.lab import Lab, Ledger, insert
from bench.model import Benchmark, Contestant, Sample, Target
from bench.scenarios import register

COUNT = 20_000
_WRITES = ("insert", "update", "delete", "aggregate", "findAndModify")


async def _oplogue(lab: Lab) -> Sample:
    count = lab.size(COUNT)
    async with lab.database() as database, lab.app(database.name) as app:
        ledger = Ledger()
        register(app, ledger)
        await app.start()
        ledger.expect(100)
        await insert(database, 100)
        async with asyncio.timeout(30):
            await ledger.full.wait()
        await lab.settled(database)
        before = await database["orders_tasks"].find().sort("_id").to_list()
        await asyncio.sleep(1)
        lab.commands.reset()
        for turn in range(count // 100):
            await database["orders"].update_many({}, {"$set": {"seen": turn}})
        # One that matters comes last: when it is handled, the stream has passed all others.
        ledger.expect(101)
        ledger.full.clear()
        await insert(database, 1, start=100)
        async with asyncio.timeout(30):
            await ledger.full.wait()
        ledger.check(range(101))
        after = await database["orders_tasks"].find({"sourceDocId": {"$lt": 100}}).sort("_id").to_list()
        changed = sum(1 for one, other in zip(before, after, strict=True) if one != other)
        return {
            "updates": count // 100 * 100,
            "events in Python": lab.commands.events_read - 1,
            "records changed": changed,
            "merges sent": lab.commands.sent["aggregate"],
        }


BENCHMARK = Benchmark(
    "P7",
    "irrelevant updates",
    [Contestant("oplogue", _oplogue, repetitions=1)],
    [
        Target("events that reached Python", ("oplogue", "events in Python"), "<=", 0),
        Target("records written", ("oplogue", "records changed"), "<=", 0),
    ],
)
