"""A database that mongodash ran before, taken over in place: nothing that it completed runs again.

The package from npm runs a small service of ours, which is killed in the middle of its work. Then an app with the
same tasks starts on the same database.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pymongo import AsyncMongoClient
from pymongo.asynchronous.database import AsyncDatabase
from tests.support.running import Stage, within

from oplogue import App, Context, Fixed

Document = dict[str, Any]
Database = AsyncDatabase[Document]
Key = tuple[str, Any]

HERE = Path(__file__).parent / "mongodash"
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
PAID_AT = datetime(2024, 2, 29, 12, tzinfo=UTC)
ONCE, HOURLY = Fixed("1h", max_attempts=1), Fixed("1h", max_attempts=3)

SHIPPED: Key = ("sync-order", 1)
RETRIED: Key = ("sync-order", 2)
HUNG: Key = ("sync-order", 3)
DIRTY: Key = ("sync-order", 4)
DEFERRED: Key = ("sync-order", 5)
WAITING: Key = ("sync-order", 7)
NEW: Key = ("sync-order", 8)
CHANGED: Key = ("sync-order", 9)
LAST: Key = ("sync-order", 10)
REFUSED: Key = ("archive-order", 2)
MIRRORED: Key = ("mirror-customer", "a")
SPOILT: Key = ("mirror-customer", "b")
STUCK: tuple[Key, ...] = (("mirror-customer", "c"), ("mirror-customer", "d"))


@pytest.fixture(scope="session")
def node() -> str:
    """Node's path, with the package in place."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node and npm are not on PATH: the real mongodash can't run")
    if not (HERE / "node_modules" / "mongodash").is_dir():
        install = [npm, "install", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"]
        ended = subprocess.run(install, cwd=HERE, capture_output=True, text=True, timeout=100, check=False)
        if ended.returncode:
            pytest.skip("npm could not install mongodash: is there a registry in reach?")
    return node


class Service:
    """The service that ran before."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.runs: list[Key] = []

    async def started(self) -> None:
        """It has registered its tasks and begun."""
        assert await within(self._line(), 30) == "started"

    async def killed(self) -> None:
        """It ends at once, whatever it is doing; what it ran until then is known."""
        self._process.kill()
        while (line := await self._line()) is not None:
            self.runs.append((line["task"], line["id"]))
        assert await self._process.wait() == -9

    async def _line(self) -> Any:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        return json.loads(line) if line else None


@asynccontextmanager
async def service(node: str, uri: str) -> AsyncGenerator[Service]:
    """Started, and ended with the block."""
    process = await asyncio.create_subprocess_exec(
        node, str(HERE / "service.cjs"), uri, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield Service(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def order(id_: int, do: str = "ship", **more: Any) -> Document:
    """A paid order with everything that can be watched; one city is missing, one item has no price."""
    return {
        "_id": id_,
        "do": do,
        "status": "paid",
        "total": 10 * id_,
        "address": {"zip": "11000", "city": "Praha"} if id_ % 2 else {"zip": "60200"},
        "items": [{"price": 5, "name": "cup"}, {"name": "gift"}, {"price": [1, 2]}],
        "tags": ["new", None, {"deep": [1, [2]]}],
        "paidAt": PAID_AT,
        **more,
    }


def customer(id_: str, do: str = "ship") -> Document:
    """A document that is watched as a whole."""
    return {"_id": id_, "do": do, "name": {"last": "Nováková", "first": "Jana"}, "rates": [1.5, 2**40, None]}


async def worked_before(db: Database, node: str, uri: str) -> Service:
    """mongodash completes some, fails some, leaves some waiting, and is killed while four handlers run."""
    await db["orders"].insert_many(
        [order(1), order(2, "fail", archive=True), order(5, "defer"), order(6, status="new"), order(9)]
    )
    await db["customers"].insert_many([customer("a"), customer("b", "fail")])
    async with service(node, uri) as before:
        await before.started()
        settled = {SHIPPED: "completed", RETRIED: "pending", DEFERRED: "pending", CHANGED: "completed"}
        await come_to(
            db, {**settled, REFUSED: "failed", MIRRORED: "completed", SPOILT: "failed"}, finalized=True
        )
        await db["orders"].insert_many([order(3, "hang"), order(4, "hang")])
        await db["customers"].insert_many([customer("c", "hang"), customer("d", "hang")])
        running = {HUNG: "processing", DIRTY: "processing", **dict.fromkeys(STUCK, "processing")}
        await come_to(db, running)
        # Its four slots are taken.
        await db["orders"].insert_one(order(7))
        await db["orders"].update_one({"_id": 4}, {"$set": {"total": 41}})
        await come_to(db, {**running, DIRTY: "processing_dirty", WAITING: "pending"})
        await before.killed()
    await db["orders"].insert_one(order(8))
    await db["orders"].update_one({"_id": 9}, {"$set": {"total": 91}})
    return before


async def come_to(db: Database, expected: dict[Key, str], *, finalized: bool = False) -> None:
    """Ask until the records are in these states."""
    async with asyncio.timeout(30):
        while True:
            found = await records(db)
            there = {key: record["status"] for key, record in found.items() if key in expected}
            ran = all("startedAt" in record for key, record in found.items() if key in expected)
            if there == expected and (ran or not finalized):
                return


async def records(db: Database) -> dict[Key, Document]:
    """Every record as it is stored, but for what is ours alone."""
    found: dict[Key, Document] = {}
    for name in ("orders_tasks", "customers_tasks"):
        async for record in db[name].find():
            record.pop("oplogue", None)
            found[record["task"], record["sourceDocId"]] = record
    return found


class Successor:
    """The same tasks in an app: their runs, with the attempt that each was."""

    def __init__(self, uri: str) -> None:
        self.stage = Stage(App(uri, lease="2s", shutdown_timeout="5s"))
        self.runs: list[tuple[str, Any, int]] = []
        self.values: dict[Key, Document] = {}
        define = self.stage.app.reactive_task
        define(
            task="sync-order",
            collection="orders",
            debounce=0,
            retry_policy=HOURLY,
            filter={"status": "paid", "total": {"$gt": 0}},
            watch_projection={
                "total": 1,
                "address.city": 1,
                "address.zip": True,
                "items.price": 1,
                "tags": 1,
                "nothing": 1,
                "paid.year": {"$year": "$paidAt"},
                "many": {"$gt": [{"$size": "$items"}, 1]},
            },
        )(self._handle)
        define(
            task="archive-order",
            collection="orders",
            debounce=0,
            retry_policy=ONCE,
            filter={"$eq": ["$archive", True]},
            watch_projection={"_id": 1},
        )(self._handle)
        define(task="mirror-customer", collection="customers", debounce=0, retry_policy=ONCE)(self._handle)

    async def _handle(self, ctx: Context) -> None:
        document = await ctx.get_document()
        self.runs.append((ctx.task, ctx.doc_id, ctx.attempt))
        self.values[ctx.task, ctx.doc_id] = ctx.watched_values
        if document["do"] == "refuse":
            raise ValueError("told to")

    async def next_runs(self, *expected: Key) -> list[tuple[str, Any, int]]:
        """The runs since the last look: of these records, of no other, each once."""
        for task, doc_id in expected:
            await self.stage.next("task.completed", task=task, doc_id=doc_id)
        runs, self.runs = sorted(self.runs, key=str), []
        assert [run[:2] for run in runs] == sorted(expected, key=str)
        return runs


@pytest.mark.slow
async def test_a_database_that_mongodash_ran_is_taken_over_in_place(
    node: str, database_uri: str, db: Database
) -> None:
    before = await worked_before(db, node, database_uri)
    left = await records(db)
    assert before.runs.count(SHIPPED) == before.runs.count(MIRRORED) == before.runs.count(HUNG) == 1
    assert left[REFUSED]["attempts"] == left[RETRIED]["attempts"] == 1

    successor = Successor(database_uri)
    async with successor.stage.app as app:
        # What was waiting, came or changed meanwhile runs; nothing else does.
        for source in ("orders", "customers"):
            await successor.stage.next("reconciliation.finished", source=f"{db.name}.{source}")
        await db["orders"].insert_one(order(10))
        assert {attempt for *_, attempt in await successor.next_runs(WAITING, NEW, CHANGED, LAST)} == {1}
        found = await records(db)
        for key in (SHIPPED, RETRIED, DEFERRED, REFUSED, MIRRORED, SPOILT, HUNG, DIRTY, *STUCK):
            assert found[key] == left[key]
        assert found.keys() == left.keys() | {NEW, LAST}

        # Running ones are reclaimed when their locks have ended; a change began their attempts anew.
        await expire(db, {"status": {"$in": ["processing", "processing_dirty"]}})
        reclaimed = await successor.next_runs(HUNG, DIRTY, *STUCK)
        assert {run[:2]: run[2] for run in reclaimed} == {DIRTY: 1, **dict.fromkeys((HUNG, *STUCK), 2)}
        assert successor.values[DIRTY]["total"] == 41

        # Retries and deferrals go on where they were.
        await expire(db, {"status": "pending"})
        await app.resume_task("sync-order")
        assert await successor.next_runs(RETRIED, DEFERRED) == [(*RETRIED, 2), (*DEFERRED, 1)]

        # Failed ones stay so until they are retried, or their document changes.
        assert await app.retry_reactive_tasks("archive-order", status="failed") == 1
        assert await successor.next_runs(REFUSED) == [(*REFUSED, 1)]
        await db["customers"].update_one({"_id": "b"}, {"$set": {"do": "ship"}})
        assert await successor.next_runs(SPOILT) == [(*SPOILT, 1)]
        assert {record["status"] for record in (await records(db)).values()} == {"completed"}


@pytest.mark.slow
async def test_records_have_the_fields_and_values_that_mongodash_gives_them(
    node: str, database_uri: str, db: Database, client: AsyncMongoClient[Document]
) -> None:
    await worked_before(db, node, database_uri)
    theirs = await records(db)
    ours = client[f"{db.name}_ours"]
    uri = database_uri.replace(db.name, ours.name)
    successor = Successor(uri)
    try:
        await ours["orders"].insert_many([order(1), order(2, "refuse", archive=True)])
        await ours["customers"].insert_many([customer("a"), customer("b", "refuse")])
        async with successor.stage.app as app:
            for key in (SHIPPED, MIRRORED):
                await successor.stage.next("task.completed", task=key[0], doc_id=key[1])
            await successor.stage.next("task.retried", doc_id=2)
            for key in (REFUSED, SPOILT):
                await successor.stage.next("task.failed", task=key[0], doc_id=key[1])
            await app.pause_task("sync-order")
            await ours["orders"].insert_one(order(7))
            await successor.stage.counted(1, source_doc_filter={"_id": 7})
            found = await records(ours)
        for key in (SHIPPED, RETRIED, REFUSED, MIRRORED, WAITING):
            # An option of the task, which it leaves in new records and reads nowhere.
            assert theirs[key].pop("resetRetriesOnDataChange") is True
            assert shape(found[key]) == shape(theirs[key])
            # Also the order of the fields: documents in another order are other values.
            assert repr(found[key]["lastObservedValues"]) == repr(theirs[key]["lastObservedValues"]).replace(
                "'do': 'fail'", "'do': 'refuse'"
            )
    finally:
        await client.drop_database(ours.name)


@pytest.mark.slow
async def test_the_indexes_of_mongodash_are_kept_and_an_equal_one_serves(
    node: str, database_uri: str, db: Database
) -> None:
    async with service(node, database_uri) as before:
        await before.started()
        await before.killed()
    theirs = await db["orders_tasks"].index_information()
    assert {"polling_idx", "sourceDocId_1_task_1"} <= theirs.keys()
    async with Successor(database_uri).stage.app as app:
        found = await db["orders_tasks"].index_information()
        findings = {finding.check: finding.level for finding in await app.check_up()}
    assert theirs.items() <= found.items()
    assert [index["key"] for index in found.values() if index.get("unique")] == [
        [("sourceDocId", 1), ("task", 1)]
    ]
    assert findings["indexes"] == "ok"


async def expire(db: Database, which: Document) -> None:
    """Move what these records wait for into the past."""
    for name in ("orders_tasks", "customers_tasks"):
        await db[name].update_many(which, {"$set": {"nextRunAt": LONG_AGO}})


def shape(value: Any) -> Any:
    """Names and types of a document's fields, whatever is in them."""
    if isinstance(value, dict):
        members: Document = value  # pyright: ignore[reportUnknownVariableType] - a document's own
        return {name: shape(member) for name, member in members.items() if name != "lastObservedValues"}
    if isinstance(value, list):
        entries: list[Any] = value  # pyright: ignore[reportUnknownVariableType]
        return [shape(entry) for entry in entries]
    return type(value).__name__
