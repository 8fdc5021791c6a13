"""Oplogue doing the work of the benchmarks, each run checked against its ledger."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Literal

from pymongo import WriteConcern
from pymongo.asynchronous.database import AsyncDatabase

from bench.floors import spread, write_and_wait
from bench.lab import Document, Lab, Ledger, insert, order, until
from bench.model import Sample
from oplogue import App, Context

_GAUGES_KEPT = 5.05
"""Seconds after which an instance reads the cluster's metrics again."""

Fetch = Literal["nothing", "injected", "get_document"]


def register(app: App, ledger: Ledger, *, fetch: Fetch = "nothing", await_seconds: float = 0) -> None:
    """The one task of most benchmarks: paid orders, no debounce."""
    options: dict[str, Any] = {"collection": "orders", "filter": {"status": "paid"}, "debounce": 0}
    options["watch_projection"] = {"status": 1}

    async def plain(ctx: Context) -> None:
        if await_seconds:
            await asyncio.sleep(await_seconds)
        ledger.note(ctx.doc_id)

    async def injected(document: dict[str, Any], ctx: Context) -> None:
        assert document["_id"] == ctx.doc_id
        ledger.note(ctx.doc_id)

    async def fetching(ctx: Context) -> None:
        document = await ctx.get_document()
        ledger.note(document["_id"])

    handlers: dict[Fetch, Callable[..., Awaitable[None]]] = {
        "nothing": plain,
        "injected": injected,
        "get_document": fetching,
    }
    app.reactive_task(task="t", **options)(handlers[fetch])


async def latency(lab: Lab, writes: int) -> Sample:
    """From before the write is sent to the start of the handler, one document at a time."""
    async with lab.database() as database, lab.app(database.name) as app:
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
        latencies = await write_and_wait(database, writes, seen)
        await lab.settled(database)
        ledger.check(seen)
        return spread(latencies)


async def burst(
    lab: Lab, count: int, slots: int, *, await_seconds: float = 0, kept: int = 0, scrape: bool = False
) -> Sample:
    """From the first insert until every outcome is written, the whole way live; then, if asked, a scrape."""
    async with lab.database() as database, lab.app(database.name, concurrency=slots) as app:
        ledger = Ledger()
        register(app, ledger, await_seconds=await_seconds)
        await app.start()
        if kept:
            await _keep_completed(database, kept)
        await _warm_up(lab, database, ledger)
        ledger.expect(count + 10)
        begun, stop = time.perf_counter(), lab.stopwatch()
        await insert(database, count)
        inserted = time.perf_counter() - begun
        async with asyncio.timeout(120):
            await ledger.full.wait()
        await lab.settled(database)
        took = time.perf_counter() - begun
        used = stop(count)
        ledger.check([*range(count), *range(-10, 0)])
        scraped = {"scrape ms": await _scraped(app)} if scrape else {}
        return {"per s": count / took, "insert s": inserted, **used, **scraped}


async def _scraped(app: App) -> float:
    """The median of answers to Prometheus, so far apart that each asks the database anew."""
    took: list[float] = []
    for _ in range(5):
        await asyncio.sleep(_GAUGES_KEPT)
        begun = time.perf_counter()
        assert await app.get_prometheus_metrics()
        took.append((time.perf_counter() - begun) * 1000)
    return sorted(took)[len(took) // 2]


async def shared_burst(lab: Lab, count: int, slots: int, tasks: int) -> Sample:
    """A burst of documents of which each matches one of so many tasks."""
    async with lab.database() as database, lab.app(database.name, concurrency=slots) as app:
        ledger = Ledger()
        for number in range(tasks):
            app.reactive_task(
                task=f"t{number}",
                collection="orders",
                filter={"kind": number},
                watch_projection={"kind": 1},
                debounce=0,
            )(_noting(ledger))
        reconciled = asyncio.Event()
        app.on("reconciliation.finished")(lambda _event: reconciled.set())
        await app.start()
        async with asyncio.timeout(60):
            await reconciled.wait()
        ledger.expect(count)
        begun, stop = time.perf_counter(), lab.stopwatch()
        orders = database["orders"]
        for first in range(0, count, 1_000):
            numbers = range(first, min(first + 1_000, count))
            await orders.insert_many(
                [{**order(number), "kind": number % tasks} for number in numbers], ordered=False
            )
        async with asyncio.timeout(300):
            await ledger.full.wait()
        await lab.settled(database)
        took = time.perf_counter() - begun
        used = stop(count)
        ledger.check(range(count))
        return {"per s": count / took, **used}


def _noting(ledger: Ledger) -> Callable[[Context], Awaitable[None]]:
    async def handler(ctx: Context) -> None:
        ledger.note(ctx.doc_id)

    return handler


async def _keep_completed(database: AsyncDatabase[Document], count: int) -> None:
    """Records of documents that are long done, as a busy year leaves them."""
    now = datetime.now(UTC)
    success = {"at": now, "durationMs": 3}
    done = {
        "task": "t",
        "status": "completed",
        "nextRunAt": None,
        "attempts": 1,
        "lastObservedValues": {"status": "paid"},
        **dict.fromkeys(
            ("dueAt", "createdAt", "updatedAt", "startedAt", "completedAt", "lastFinalizedAt"), now
        ),
        "lastSuccess": success,
        "executionHistory": [{**success, "status": "completed"}],
    }
    records = database["orders_tasks"].with_options(write_concern=WriteConcern(1))
    for first in range(0, count, 10_000):
        numbers = range(first, min(first + 10_000, count))
        await records.insert_many(
            [{**done, "sourceDocId": f"kept-{number}"} for number in numbers], ordered=False
        )


async def _warm_up(lab: Lab, database: AsyncDatabase[Document], ledger: Ledger) -> None:
    ledger.expect(10)
    await insert(database, 10, start=-10)
    async with asyncio.timeout(30):
        await ledger.full.wait()
    await lab.settled(database)
    ledger.full.clear()


@asynccontextmanager
async def backlog(
    lab: Lab, database: AsyncDatabase[Document], count: int, slots: int, ledger: Ledger, fetch: Fetch
) -> AsyncIterator[Callable[[], Awaitable[float]]]:
    """An app with so many records pending behind a closed gate; yields what opens it and returns when it was."""
    gate_open, opened = False, asyncio.get_running_loop().create_future()

    def gate(_task: str) -> bool:
        if gate_open and not opened.done():
            opened.set_result(time.perf_counter())
        return gate_open

    async with lab.app(database.name, concurrency=slots, task_filter=gate) as app:
        register(app, ledger, fetch=fetch)
        await app.start()
        await insert(database, count)
        records = database["orders_tasks"]

        async def planned() -> bool:
            return await records.estimated_document_count() >= count

        await until(planned, every=0.02, patience=max(120, count / 1_000))

        async def open_gate() -> float:
            nonlocal gate_open
            gate_open = True
            # Workers look at the gate when something stirs: one document more does.
            await insert(database, 1, start=count)
            return float(await opened)

        yield open_gate


async def drain(lab: Lab, count: int, slots: int, fetch: Fetch = "nothing") -> Sample:
    """From the moment when the workers may claim until every outcome of a backlog is written."""
    async with lab.database() as database:
        ledger = Ledger()
        async with backlog(lab, database, count, slots, ledger, fetch) as open_gate:
            ledger.expect(count + 1)
            stop = lab.stopwatch()
            begun = await open_gate()
            async with asyncio.timeout(max(120, count / 1_000)):
                await ledger.full.wait()
            await lab.settled(database)
            took = time.perf_counter() - begun
            used = stop(count)
        ledger.check(range(count + 1))
        return {"per s": count / took, **used}
