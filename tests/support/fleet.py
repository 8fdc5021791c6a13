"""Worker processes on one module, and a ledger that their handlers keep outside of the library."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pymongo import MongoClient
from tests.support.processes import await_words, free_port
from tests.support.scraped import Scraped

Document = dict[str, Any]

ORDERS = 30
SHOP = """
import os
from pymongo import AsyncMongoClient, MongoClient
from oplogue import App, Context, Fixed, Monitoring, TaskConditionFailedError

URI = os.environ["SHOP_URI"]
# Each runs one task, so that each has a part in every sum.
PART = {"one": "bill", "two": "ship", "two-1": "ship", "three": "archive", "two-2": "archive"}

def is_mine(task):
    return PART[app.instance_id] == task

app = App(URI, instance_id=os.environ["SHOP_INSTANCE"], lease="10s", concurrency=4, task_filter=is_mine,
          monitoring=Monitoring(scrape_mode=os.environ["SHOP_MODE"], push_interval="100ms"))
ledger, blocking_ledger = (client(URI).get_default_database()["ledger"] for client in (AsyncMongoClient, MongoClient))
twice = Fixed(0, max_attempts=2)

def entry(ctx, outcome):
    return {"task": ctx.task, "doc": ctx.doc_id, "attempt": ctx.attempt, "outcome": outcome, "by": ctx.instance_id}

@app.reactive_task(collection="orders", watch_projection={"_id": 1}, debounce=0, retry_policy=twice)
async def bill(ctx: Context) -> None:
    "Every second order fails at first."
    fails = ctx.doc_id % 2 and ctx.attempt == 1
    await ledger.insert_one(entry(ctx, "failed" if fails else "success"))
    if fails:
        raise ConnectionError("try again")

@app.reactive_task(collection="orders", watch_projection={"_id": 1}, debounce=0, retry_policy=twice)
def ship(ctx: Context) -> None:
    "Every third order fails for good, until it is mended."
    order = ctx.get_document()
    fails = ctx.doc_id % 3 == 0 and not order.get("mended")
    blocking_ledger.insert_one(entry(ctx, "failed" if fails else "success"))
    if fails:
        raise ValueError("no such address")

@app.reactive_task(collection="orders", watch_projection={"_id": 1}, debounce=0, filter={"draft": True})
async def archive(ctx: Context) -> None:
    "Every fifth order puts itself off once, and is needless then: a skip."
    if not await ledger.count_documents({"task": "archive", "doc": ctx.doc_id}):
        await ledger.insert_one(entry(ctx, "deferred"))
        ctx.defer_current(0)
        return
    await ledger.insert_one(entry(ctx, "skipped"))
    raise TaskConditionFailedError(ctx.task, ctx.doc_id, "it was archived before")
"""


@dataclass(frozen=True, slots=True)
class Worker:
    """One ``oplogue worker``, and where it is asked over HTTP."""

    name: str
    process: subprocess.Popen[str]
    address: str

    def scrape(self) -> Scraped:
        """Its metrics."""
        with urllib.request.urlopen(f"http://{self.address}/metrics", timeout=20) as answer:
            return Scraped(answer.read().decode())


@contextmanager
def fleet(folder: Path, uri: str, mode: str, processes: Mapping[str, int]) -> Generator[tuple[Worker, ...]]:
    """Workers of so many processes, by their names; started at once, and stopped at once."""
    (folder / "shop.py").write_text(SHOP)
    workers = tuple(_started(folder, uri, mode, name, count) for name, count in processes.items())
    try:
        for worker in workers:
            await_words(worker.process.stderr, r"instance \S+ started", processes[worker.name])
        yield workers
    finally:
        for worker in workers:
            worker.process.send_signal(signal.SIGTERM)
        for worker in workers:
            assert worker.process.wait(60) == 0


def _started(folder: Path, uri: str, mode: str, name: str, processes: int) -> Worker:
    address = f"127.0.0.1:{free_port()}"
    command = ["worker", "shop:app", "--health", address, "--processes", str(processes)]
    process = subprocess.Popen(
        [sys.executable, "-m", "oplogue.cli", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "SHOP_URI": uri, "SHOP_MODE": mode, "SHOP_INSTANCE": name},
    )
    return Worker(name, process, address)


class Ledger:
    """What the handlers wrote down themselves."""

    def __init__(self, client: MongoClient[Document]) -> None:
        self.database = client.get_default_database()
        self._expected = 0

    def write_orders(self, first: int = 0) -> None:
        """Write orders, and wait until all that must be done about them is done."""
        numbers = range(first, first + ORDERS)
        drafts = [number for number in numbers if number % 5 == 0]
        runs = ORDERS + sum(number % 2 for number in numbers)
        runs += ORDERS + sum(number % 3 == 0 for number in numbers) + 2 * len(drafts)
        with self.database["ledger"].watch([{"$match": {"operationType": "insert"}}]) as written:
            self.database["orders"].insert_many(
                [{"_id": number, "draft": number in drafts} for number in numbers]
            )
            for _ in range(runs):
                next(written)
        while self.database["orders_tasks"].count_documents({"nextRunAt": {"$ne": None}}):
            pass

    def counts(self, **which: Any) -> Counter[tuple[str, str]]:
        """How many entries there are, by task and outcome."""
        entries = self.database["ledger"].find(which)
        return Counter((entry["task"], entry["outcome"]) for entry in entries)

    def expected(self, **which: Any) -> Counter[tuple[str, str, str]]:
        """What metrics are to say, by name and the values of their labels."""
        told: Counter[tuple[str, str, str]] = Counter()
        for (task, outcome), count in self.counts(**which).items():
            if outcome == "deferred":
                told["deferrals_total", task, ""] += count
            else:
                status = "failed" if outcome == "failed" else "success"
                told["duration_seconds_count", task, status] += count
            if outcome == "skipped":
                told["skips_total", task, ""] += count
        for attempt, name in ((1, "retries_total"), (2, "dead_letters_total")):
            for (task, outcome), count in self.counts(**which, attempt=attempt).items():
                if outcome == "failed":
                    told[name, task, ""] += count
        return told


def told_by(*scrapes: Scraped) -> Counter[tuple[str, str, str]]:
    """The same, as scrapes say it together; what is zero is left out."""
    told: Counter[tuple[str, str, str]] = Counter()
    names = (
        "duration_seconds_count",
        "retries_total",
        "dead_letters_total",
        "deferrals_total",
        "skips_total",
    )
    for scraped in scrapes:
        for name, labels, value in scraped.samples:
            short = name.removeprefix("reactive_tasks_")
            if short in names and value:
                told[short, labels["task_name"], labels.get("status", "")] += int(value)
    return told
