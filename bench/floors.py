"""The floors: the least that the server and the driver take for each step of the way, in a bare loop.

They do the work without leases, fences beyond a token, retries, events, histories of failures or leadership. What
Oplogue takes on top of them is what it costs.
"""

from __future__ import annotations

import asyncio
import random
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from bson import ObjectId
from pymongo import ASCENDING, IndexModel
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase

from bench.lab import Document, Lab, insert, order
from bench.model import Sample, percentile

DUE = {"nextRunAt": {"$type": "date"}}
_INDEXES = [
    IndexModel([("task", ASCENDING), ("nextRunAt", ASCENDING)], partialFilterExpression=DUE),
    IndexModel([("sourceDocId", ASCENDING), ("task", ASCENDING)], unique=True),
]


async def watch_loop(lab: Lab, writes: int) -> Sample:
    """Insert a document, and wait until a bare ``watch()`` has its event."""
    async with lab.database() as database:
        orders = database["orders"]
        await orders.insert_one(order(-1))
        seen: dict[Any, asyncio.Future[float]] = {}
        only_ids: list[dict[str, Any]] = [
            {"$match": {"ns.coll": "orders"}},
            {"$project": {"documentKey": 1}},
        ]
        async with await database.watch(only_ids, max_await_time_ms=1_000) as stream:

            async def follow() -> None:
                async for event in stream:
                    waiting = seen.pop(event["documentKey"]["_id"], None)
                    if waiting is not None:
                        waiting.set_result(time.perf_counter())

            following = asyncio.create_task(follow())
            await asyncio.sleep(0.3)
            latencies = await write_and_wait(database, writes, seen)
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
    return spread(latencies)


async def write_and_wait(
    database: AsyncDatabase[Document],
    writes: int,
    seen: dict[Any, asyncio.Future[float]],
    *,
    warm_up: int = 10,
) -> list[float]:
    """Insert one document after another, each when the last one was seen; milliseconds from write to seen."""
    orders, latencies = database["orders"], []
    for number in range(writes + warm_up):
        arrival = seen[number] = asyncio.get_running_loop().create_future()
        begun = time.perf_counter()
        await orders.insert_one(order(number))
        async with asyncio.timeout(30):
            latency = (await arrival - begun) * 1000
        if number >= warm_up:
            latencies.append(latency)
        await asyncio.sleep(0.01 + random.random() * 0.03)
    return latencies


def spread(latencies: list[float]) -> Sample:
    """A latency's figures."""
    return {
        "p50 ms": percentile(latencies, 0.5),
        "p95 ms": percentile(latencies, 0.95),
        "p99 ms": percentile(latencies, 0.99),
    }


async def insert_alone(lab: Lab, count: int) -> Sample:
    """Nothing but the inserts of a burst."""
    async with lab.database() as database:
        await database["orders"].insert_one(order(-1))
        begun = time.perf_counter()
        await insert(database, count)
        return {"per s": count / (time.perf_counter() - begun)}


async def records_of(database: AsyncDatabase[Document]) -> AsyncCollection[Document]:
    """The records' collection with the two indexes that any claim and any merge need."""
    records = database["orders_tasks"]
    await records.create_indexes(_INDEXES)
    return records


def merge_pipeline(ids: list[Any]) -> list[dict[str, Any]]:
    """A plan at its simplest: new, changed or unchanged."""
    changed = {"$ne": ["$lastObservedValues", "$$new.lastObservedValues"]}
    running = {"$in": ["$status", ["processing", "processing_dirty"]]}
    record = {
        "_id": 0,
        "sourceDocId": "$_id",
        "task": {"$literal": "t"},
        "lastObservedValues": {"status": "$status"},
        "status": {"$literal": "pending"},
        "attempts": {"$literal": 0},
        **dict.fromkeys(("createdAt", "updatedAt", "nextRunAt", "dueAt"), "$$NOW"),
    }
    decided = {
        "lastObservedValues": "$$new.lastObservedValues",
        "status": {"$cond": ["$_c", {"$cond": [running, "processing_dirty", "pending"]}, "$status"]},
        "nextRunAt": {"$cond": [{"$and": ["$_c", {"$not": [running]}]}, "$$new.nextRunAt", "$nextRunAt"]},
        "updatedAt": {"$cond": ["$_c", "$$new.updatedAt", "$updatedAt"]},
        "attempts": {"$cond": ["$_c", 0, "$attempts"]},
    }
    merge = {
        "into": "orders_tasks",
        "on": ["sourceDocId", "task"],
        "whenNotMatched": "insert",
        "whenMatched": [{"$set": {"_c": changed}}, {"$set": decided}, {"$unset": "_c"}],
    }
    return [
        {"$match": {"_id": {"$in": ids}, "status": {"$in": ["paid", "done"]}}},
        {"$project": record},
        {"$merge": merge},
    ]


async def merge(database: AsyncDatabase[Document], count: int, batch: int) -> float:
    """Plan all orders in batches; documents per second."""
    begun = time.perf_counter()
    for first in range(0, count, batch):
        pipeline = merge_pipeline(list(range(first, min(first + batch, count))))
        await (await database["orders"].aggregate(pipeline)).to_list()
    return count / (time.perf_counter() - begun)


async def bare_merge(lab: Lab, count: int, batch: int = 2_000) -> Sample:
    """Planning by nothing but `$merge`: new records, then the same again."""
    async with lab.database() as database:
        await records_of(database)
        await insert(database, count)
        new = await merge(database, count, batch)
        unchanged = await merge(database, count, batch)
        return {"new per s": new, "unchanged per s": unchanged}


async def bare_drain(lab: Lab, count: int, slots: int, *, documents: bool = False) -> Sample:
    """Grouped claims and settles in a bare loop, one coroutine per record, by classic updates."""
    async with lab.database() as database:
        records = await records_of(database)
        await insert(database, count)
        await merge(database, count, 2_000)
        drain = _Drain(database, records, count, slots, documents=documents)
        begun, stop = time.perf_counter(), lab.stopwatch()
        await drain.run()
        took, used = time.perf_counter() - begun, stop(count)
        del used["commands per task"]  # only an app's client counts
        return {"per s": count / took, **used}


class _Drain:
    def __init__(
        self,
        database: AsyncDatabase[Document],
        records: AsyncCollection[Document],
        count: int,
        slots: int,
        *,
        documents: bool,
    ) -> None:
        self._orders = database["orders"]
        self._records = records
        self._left = count
        self._slots = slots
        self._documents = documents
        self._running = 0
        self._free = asyncio.Event()
        self._over = asyncio.Event()
        self._ended: asyncio.Queue[Document] = asyncio.Queue()
        self._runs: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        parts = [asyncio.create_task(part()) for part in (self._claim, self._settle, self._settle)]
        await self._over.wait()
        for part in parts:
            part.cancel()
        await asyncio.gather(*parts, return_exceptions=True)

    async def _claim(self) -> None:
        while True:
            room = min(self._slots - self._running, 1_000)
            if room < self._slots // 4:
                self._free.clear()
                await self._free.wait()
                continue
            now = datetime.now(UTC)
            due = {"task": {"$in": ["t"]}, "nextRunAt": {"$lte": now, "$type": "date"}}
            found = await self._records.find(due, {"_id": 1}).sort("nextRunAt", 1).limit(room).to_list()
            if not found:
                return
            ids, token = [row["_id"] for row in found], ObjectId()
            taken = {
                "status": "processing",
                "nextRunAt": now + timedelta(60),
                "startedAt": now,
                "lock": token,
            }
            await self._records.update_many(
                {"_id": {"$in": ids}, "nextRunAt": {"$lte": now}}, {"$set": taken, "$inc": {"attempts": 1}}
            )
            fields = {"task": 1, "sourceDocId": 1, "attempts": 1, "lastObservedValues": 1, "lock": 1}
            claimed = await self._records.find({"_id": {"$in": ids}, "lock": token}, fields).to_list()
            if self._documents:
                keys = [record["sourceDocId"] for record in claimed]
                await self._orders.find({"_id": {"$in": keys}, "status": "paid"}).to_list()
            self._running += len(claimed)
            for record in claimed:
                run = asyncio.create_task(self._run(record))
                self._runs.add(run)
                run.add_done_callback(self._runs.discard)

    async def _run(self, record: Document) -> None:
        self._ended.put_nowait(record)

    async def _settle(self) -> None:
        while True:
            group = [await self._ended.get()]
            while not self._ended.empty() and len(group) < 1_000:
                group.append(self._ended.get_nowait())
            by_token: dict[Any, list[Any]] = {}
            for record in group:
                by_token.setdefault(record["lock"], []).append(record["_id"])
            for token, ids in by_token.items():
                await self._complete(token, ids)
            self._running -= len(group)
            self._left -= len(group)
            self._free.set()
            if self._left <= 0:
                self._over.set()

    async def _complete(self, token: Any, ids: list[Any]) -> None:
        entry = {"at": datetime.now(UTC), "status": "completed", "durationMs": 1}
        await self._records.update_many(
            {"_id": {"$in": ids}, "lock": token, "status": "processing"},
            {
                "$set": {"status": "completed", "nextRunAt": None, "lastError": None, "lastSuccess": entry},
                "$currentDate": {"completedAt": True, "lastFinalizedAt": True},
                "$unset": {"lock": 1},
                "$push": {"executionHistory": {"$each": [entry], "$slice": -5}},
            },
        )
