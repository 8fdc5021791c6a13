"""Documents that many handlers ask for at the same moment."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from bson.datetime_ms import DatetimeMS
from pymongo import AsyncMongoClient
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent
from tests.integration.runtime.conftest import MakeStage
from tests.support.running import Gate, Stage

from oplogue import Context, TaskConditionFailedError

Document = dict[str, Any]
Orders = AsyncCollection[Document]
MANY = 20


class Reads(CommandListener):
    """Counts what is read of the orders, once it is told to."""

    def __init__(self) -> None:
        self.counting = False
        self.sent: Counter[str] = Counter()

    def started(self, event: CommandStartedEvent) -> None:
        if self.counting and event.command.get(event.command_name) == "orders":
            self.sent[event.command_name] += 1

    def succeeded(self, event: CommandSucceededEvent) -> None:
        pass

    def failed(self, event: CommandFailedEvent) -> None:
        pass


@pytest.fixture
async def waiting(make_stage: MakeStage) -> tuple[Stage, Gate, dict[Any, Any]]:
    """An app whose handlers stand at a gate before they fetch their document, and what they got."""
    stage, gate, got = make_stage(concurrency=MANY), Gate(), dict[Any, Any]()

    @stage.app.reactive_task(
        task="t", collection="orders", filter={"status": {"$ne": "gone"}}, watch_projection=["a"], debounce=0
    )
    async def _sync(ctx: Context) -> None:
        await gate()
        try:
            got[ctx.doc_id] = await ctx.get_document()
        except Exception as error:
            got[ctx.doc_id] = type(error)
            raise

    await stage.app.start()
    return stage, gate, got


def documents() -> list[Document]:
    """As many as there are slots."""
    return [{"_id": number, "status": "paid", "a": {"n": number}} for number in range(MANY)]


async def test_documents_asked_for_at_the_same_moment_are_read_in_one_query(
    make_stage: MakeStage, orders: Orders, database_uri: str
) -> None:
    reads, gate, got = Reads(), Gate(), list[Document]()
    client: AsyncMongoClient[Document] = AsyncMongoClient(database_uri, event_listeners=[reads])
    try:
        stage = make_stage(client=client, concurrency=MANY)

        @stage.app.reactive_task(task="t", collection="orders", watch_projection=["a"], debounce=0)
        async def _sync(ctx: Context) -> None:
            await gate()
            got.append(await ctx.get_document())

        await stage.app.start()
        # It reads the orders too.
        await stage.next("reconciliation.finished")
        await orders.insert_many(documents())
        await gate.reached(MANY)
        reads.counting = True
        gate.open()
        await stage.counted(MANY, status="completed")
        await stage.app.stop()
    finally:
        await client.close()
    assert sorted(got, key=lambda document: document["_id"]) == documents()
    assert reads.sent == {"aggregate": 1}


async def test_each_handler_gets_its_own_document_or_is_skipped(
    waiting: tuple[Stage, Gate, dict[Any, Any]], orders: Orders
) -> None:
    stage, gate, got = waiting
    await orders.insert_many(documents())
    await gate.reached(MANY)
    await orders.update_one({"_id": 3}, {"$set": {"status": "gone"}})
    await orders.delete_one({"_id": 4})
    await orders.update_one({"_id": 5}, {"$set": {"note": "not watched"}})
    gate.open()
    await stage.until(lambda: len(stage.heard("task.skipped")) == 2)
    await stage.until(lambda: len(got) == MANY)
    assert {number for number in range(MANY) if got[number] is TaskConditionFailedError} == {3, 4}
    assert got[5]["note"] == "not watched"
    assert all(got[number] == documents()[number] for number in range(6, MANY))


async def test_document_that_cannot_be_read_fails_its_own_run_alone(
    waiting: tuple[Stage, Gate, dict[Any, Any]], orders: Orders
) -> None:
    stage, gate, got = waiting
    beyond = DatetimeMS(2**50)
    await orders.insert_many([{**one, "at": beyond} if one["_id"] == 3 else one for one in documents()])
    await gate.reached(MANY)
    gate.open()
    failed = await stage.next("task.retried")
    assert "InvalidBSON" in str(failed.fields["error"])
    await stage.until(lambda: len(stage.heard("task.completed")) == MANY - 1)
    assert failed.fields["doc_id"] == 3
    assert all(got[number] == documents()[number] for number in range(MANY) if number != 3)
