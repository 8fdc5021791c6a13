"""P5: planning alone: events that are there already are read and planned by an instance without slots."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from pymongo.asynchronous.database import AsyncDatabase

from bench import floors
from bench.lab import Document, Lab, insert, until
from bench.model import Benchmark, Contestant, Sample, Target, VoidError
from oplogue import App, Context
from oplogue.model.events import Event

COUNT = 20_000
MATCHING = 500


async def _bare(lab: Lab) -> Sample:
    return await floors.bare_merge(lab, lab.size(COUNT))


async def _oplogue(lab: Lab) -> Sample:
    """New records; then events that change nothing; then documents that leave their filter."""
    count = lab.size(COUNT)
    async with lab.database() as database:
        await _reconcile(lab, database)
        orders, records = database["orders"], database["orders_tasks"]

        async def all_there() -> bool:
            return await records.estimated_document_count() == count

        async def all_left() -> bool:
            return await records.count_documents({"oplogue.left": True}) == count

        async def as_counted() -> bool:
            return True

        new = await _planned(lab, database, count, lambda: insert(database, count), all_there)

        async def touch() -> None:
            await orders.update_many({}, {"$set": {"status": "done"}})

        async def leave() -> None:
            await orders.update_many({}, {"$set": {"status": "open"}})

        unchanged = await _planned(lab, database, count, touch, as_counted)
        leaving = await _planned(lab, database, count, leave, all_left)
        return {"new per s": new, "unchanged per s": unchanged, "leaving per s": leaving}


async def _reconcile(lab: Lab, database: AsyncDatabase[Document]) -> None:
    """Let an instance find the collection empty, so that only events are planned later."""
    done = asyncio.Event()
    async with lab.app(database.name, concurrency=0) as app:
        _register(app, "t", {"status": {"$in": ["paid", "done"]}})
        app.on("reconciliation.finished")(lambda _event: done.set())
        await app.start()
        async with asyncio.timeout(30):
            await done.wait()


async def _planned(
    lab: Lab,
    database: AsyncDatabase[Document],
    count: int,
    write: Callable[[], Awaitable[None]],
    shown: Callable[[], Awaitable[bool]],
) -> float:
    """Write while no instance runs, then plan it all; documents per second after the first batch.

    Events that the instance before had planned and not noted as planned come again: they are counted as work, so
    the records must show the end too.
    """
    await write()
    batches: list[tuple[float, int]] = []
    async with lab.app(database.name, concurrency=0) as app:
        _register(app, "t", {"status": {"$in": ["paid", "done"]}})

        @app.on("planner.planned")
        def note(event: Event) -> None:
            batches.append((time.perf_counter(), event.fields["count"]))

        await app.start()

        async def all_planned() -> bool:
            return sum(planned for _, planned in batches) >= count and await shown()

        await until(all_planned, every=0.01)
    timed = sum(planned for _, planned in batches[1:])
    return timed / (batches[-1][0] - batches[0][0]) if timed else 0.0


def _register(app: App, name: str, condition: dict[str, Any]) -> None:
    async def handler(_ctx: Context) -> None:
        raise AssertionError("an instance without slots runs nothing")

    app.reactive_task(
        task=name, collection="orders", filter=condition, watch_projection={"status": 1}, debounce=0
    )(handler)


async def _one_task(lab: Lab) -> Sample:
    return await _many(lab, 1)


async def _hundred_tasks(lab: Lab) -> Sample:
    return await _many(lab, 100)


async def _many(lab: Lab, tasks: int) -> Sample:
    """How long a live batch of documents takes, each of which matches one of so many tasks."""
    async with lab.database() as database, lab.app(database.name, concurrency=0) as app:
        for number in range(tasks):
            _register(app, f"t{number}", {"kind": number})
        planned, reconciled = 0, asyncio.Event()
        app.on("reconciliation.finished")(lambda _event: reconciled.set())

        @app.on("planner.planned")
        def note(event: Event) -> None:
            nonlocal planned
            planned += event.fields["count"]

        async def turn_planned() -> bool:
            return planned >= MATCHING * (turn + 1)

        await app.start()
        async with asyncio.timeout(30):
            await reconciled.wait()
        took: list[float] = []
        for turn in range(5):
            begun = time.perf_counter()
            numbers = range(turn * MATCHING, (turn + 1) * MATCHING)
            documents = [{"_id": number, "kind": number % tasks, "status": "paid"} for number in numbers]
            await database["orders"].insert_many(documents, ordered=False)
            await until(turn_planned, every=0.001)
            took.append((time.perf_counter() - begun) * 1000)
        if await database["orders_tasks"].count_documents({}) != 5 * MATCHING:
            raise VoidError("not every document has one record")
        return {"batch of 500 ms": sorted(took)[len(took) // 2]}


BENCHMARK = Benchmark(
    "P5",
    "planning",
    [
        Contestant("bare $merge", _bare),
        Contestant("oplogue", _oplogue),
        Contestant("oplogue, 1 task", _one_task),
        Contestant("oplogue, 100 tasks", _hundred_tasks),
    ],
    [
        Target("new against bare", ("oplogue", "new per s"), ">=", 0.75, ("bare $merge", "new per s")),
        Target(
            "unchanged against bare",
            ("oplogue", "unchanged per s"),
            ">=",
            0.75,
            ("bare $merge", "unchanged per s"),
        ),
        Target(
            "100 tasks against one",
            ("oplogue, 100 tasks", "batch of 500 ms"),
            "<=",
            20,
            ("oplogue, 1 task", "batch of 500 ms"),
        ),
    ],
)
