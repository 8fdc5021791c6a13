"""P5: planning alone: events that are there already are read and planned by an instance without slots."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from pymongo import ReplaceOne
from pymongo.asynchronous.database import AsyncDatabase

from bench import floors
from bench.lab import Document, Lab, insert, order, until
from bench.model import Benchmark, Contestant, Sample, Target, VoidError
from oplogue import App, Context
from oplogue.model.events import Event
from oplogue.runtime.planner import Planner
from oplogue.store.stream import Position

COUNT = 20_000
MATCHING = 500


async def _bare(lab: Lab) -> Sample:
    return await floors.bare_merge(lab, lab.size(COUNT))


async def _oplogue(lab: Lab) -> Sample:
    """New records; events that change nothing, after a change of leader and within a term; changed ones; leavers."""
    count = lab.size(COUNT)
    async with lab.database() as database:
        await _reconcile(lab, database)
        records = database["orders_tasks"]

        async def all_there() -> bool:
            return await records.estimated_document_count() == count

        async def all_left() -> bool:
            return await records.count_documents({"oplogue.left": True}) == count

        async def as_counted() -> bool:
            return True

        async def change(status: str) -> None:
            await database["orders"].update_many({}, {"$set": {"status": status}})

        new = await _planned(lab, database, count, lambda: insert(database, count), all_there)
        taken_over = await _planned(lab, database, count, lambda: _replace(database, count, 1), as_counted)
        unchanged = await _planned(
            lab, database, count, lambda: _replace(database, count, 2), as_counted, in_office=True
        )
        changed = await _planned(lab, database, count, lambda: change("done"), as_counted)
        leaving = await _planned(lab, database, count, lambda: change("open"), all_left)
        return {
            "new per s": new,
            "unchanged per s": unchanged,
            "unchanged, new leader per s": taken_over,
            "changed per s": changed,
            "leaving per s": leaving,
        }


async def _replace(database: AsyncDatabase[Document], count: int, total: int) -> None:
    """Replacements come as events whatever they change; no watched value is another afterwards."""
    for first in range(0, count, 1_000):
        numbers = range(first, min(first + 1_000, count))
        writes = [ReplaceOne({"_id": number}, {**order(number), "total": -total}) for number in numbers]
        await database["orders"].bulk_write(writes, ordered=False)


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
    *,
    in_office: bool = False,
) -> float:
    """Write while nobody plans, then plan it all; documents per second after the first batch.

    Nobody plans because no instance runs; or, ``in_office``, because the one that has planned it all before waits
    for the end of the writes. Events that the instance before had planned and not noted as planned come again: they
    are counted as work, so the records must show the end too.
    """
    batches: list[tuple[float, int]] = []

    async def all_planned() -> bool:
        return sum(planned for _, planned in batches) >= count and await shown()

    if not in_office:
        await write()
    async with lab.app(database.name, concurrency=0) as app:
        _register(app, "t", {"status": {"$in": ["paid", "done"]}})

        @app.on("planner.planned")
        def note(event: Event) -> None:
            batches.append((time.perf_counter(), event.fields["count"]))

        await app.start()
        if in_office:
            await _replace(database, count, 0)
            await until(all_planned, every=0.01)
            async with _planner_at_rest():
                batches.clear()
                await write()
        await until(all_planned, every=0.01)
    timed = sum(planned for _, planned in batches[1:])
    return timed / (batches[-1][0] - batches[0][0]) if timed else 0.0


@asynccontextmanager
async def _planner_at_rest() -> AsyncIterator[None]:
    """Inside, this process's leader stays in office and plans nothing: what is written gathers."""
    step, go_on = Planner.step, asyncio.Event()

    async def held(planner: Planner, patience: float) -> Position | None:
        await go_on.wait()
        return await step(planner, patience)

    Planner.step = held  # type: ignore[method-assign]
    try:
        await asyncio.sleep(1.5)  # until the step that is under way has ended
        yield
    finally:
        Planner.step = step  # type: ignore[method-assign]
        go_on.set()


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
