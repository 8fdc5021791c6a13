"""Documents and records that the server takes no more writes for: they keep no others from being run."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from tests.support.running import Stage

from oplogue import Context, Fixed

Document = dict[str, Any]
Orders = AsyncCollection[Document]
LARGEST = 16 * 1024 * 1024


def define(stage: Stage, **options: Any) -> None:
    """A task that succeeds, on whole documents."""

    @stage.app.reactive_task(task="sync", collection="orders", debounce=0, **options)
    async def _sync(ctx: Context) -> None: ...


@pytest.mark.parametrize("less", [400, 800, 100_000], ids=str)
async def test_a_document_that_leaves_its_record_no_room_is_parked_and_holds_up_nobody(
    stage: Stage, orders: Orders, less: int
) -> None:
    define(stage)
    await stage.app.start()
    await orders.insert_one({"_id": 1, "filling": "x" * (LARGEST - less)})
    parked = await stage.next("planner.parked", doc_id=1)
    assert "too large" in parked.fields["error"]
    await orders.insert_one({"_id": 2})
    await stage.next("task.completed", doc_id=2)
    record = await stage.record(1)
    assert record.status == "failed"
    assert "could not be planned" in (record.last_error or "")
    await orders.update_one({"_id": 1}, {"$set": {"filling": "x"}})
    await stage.next("task.completed", doc_id=1)
    assert not stage.heard("task.started", doc_id=1, attempt=2)


async def test_a_record_that_just_fits_can_fail_again_and_again(stage: Stage, orders: Orders) -> None:
    @stage.app.reactive_task(
        collection="orders", debounce=0, execution_history_limit=20, retry_policy=Fixed(0, max_attempts=25)
    )
    async def sync(ctx: Context) -> None:
        raise ValueError("\N{CHESTNUT}" * 3000)

    await stage.app.start()
    room = 64 * 1024 + 20 * 8256
    await orders.insert_one({"_id": 1, "filling": "x" * (LARGEST - room - 100)})
    await stage.next("task.failed", doc_id=1)
    assert stage.heard("settle.failed") == stage.heard("planner.parked") == []


async def refuse(db: AsyncDatabase[Document], statuses: list[str]) -> None:
    """Let the server refuse these statuses for the record of one document."""
    allowed = {"$or": [{"sourceDocId": {"$ne": 1}}, {"status": {"$nin": statuses}}]}
    await db.command("collMod", "orders_tasks", validator=allowed)


async def test_a_record_that_can_not_be_claimed_keeps_no_other_from_being_claimed(
    stage: Stage, orders: Orders, db: AsyncDatabase[Document]
) -> None:
    define(stage)
    await stage.app.start()
    await refuse(db, ["processing"])
    await orders.insert_many([{"_id": number} for number in range(5)])
    await stage.counted(4, status="completed")
    assert (await stage.record(1)).status == "pending"
    assert all(event.fields["attempt"] == 1 for event in stage.heard("task.started"))


async def test_an_outcome_that_can_not_be_written_keeps_no_other_from_being_written(
    stage: Stage, orders: Orders, db: AsyncDatabase[Document]
) -> None:
    define(stage, retry_policy=Fixed(0, max_attempts=1))
    await stage.app.start()
    await refuse(db, ["completed", "failed"])
    await orders.insert_one({"_id": 1})
    await stage.next("settle.failed")
    await orders.insert_many([{"_id": number} for number in range(2, 6)])
    await stage.counted(4, status="completed")
    assert (await stage.record(1)).status == "processing"
    assert len(stage.heard("settle.failed")) == 1
