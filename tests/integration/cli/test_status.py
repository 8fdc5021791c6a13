"""``oplogue status``: how the cluster stands, and what looking costs the database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from tests.integration.cli.conftest import Command
from tests.integration.runtime.conftest import MakeStage
from tests.support.running import Gate, Stage

from oplogue import Context, Evolution, Fixed
from oplogue.runtime.console import open_console

Document = dict[str, Any]
Orders = AsyncCollection[Document]


@pytest.fixture
def gate() -> Gate:
    """Handlers of the task that ships wait before it."""
    return Gate()


@pytest.fixture
async def shop(make_stage: MakeStage, orders: Orders, gate: Gate) -> AsyncIterator[Stage]:
    """Three runs under way, one of them dirty; one order failed, three wait for long."""
    stage = make_stage(instance_id="shop-1", concurrency=5)

    @stage.app.reactive_task(task="ship", collection="orders", filter={"paid": True}, debounce=0)
    async def _ship(ctx: Context) -> None:
        await gate()

    @stage.app.reactive_task(
        task="audit",
        collection="orders",
        filter={"odd": True},
        debounce=0,
        retry_policy=Fixed(0, max_attempts=1),
        evolution=Evolution(handler_version=3, on_handler_version_change="reprocess_failed"),
    )
    async def _audit(ctx: Context) -> None:
        raise ValueError("odd")

    @stage.app.reactive_task(task="remind", collection="orders", filter={"paid": True}, debounce="1h")
    async def _remind(ctx: Context) -> None: ...

    await stage.app.start()
    await stage.next("reconciliation.finished")
    await orders.insert_many([{"_id": n, "paid": True} for n in range(3)])
    await gate.reached(3)
    await orders.insert_one({"_id": 3, "odd": True})
    await stage.counted(1, status="failed")
    await orders.update_one({"_id": 0}, {"$set": {"total": 7}})
    await stage.counted(1, status="processing_dirty")
    await stage.counted(3, task="remind", status="pending")
    yield stage
    gate.open()


async def document(oplogue: Command) -> Any:
    """What a program is told."""
    said = await oplogue("status", "--json")
    assert (said.code, said.err) == (0, "")
    return said.document


async def test_before_the_first_start_it_says_that_nobody_is_there(oplogue: Command) -> None:
    said = await oplogue("status")
    assert (said.code, said.err) == (0, "")
    assert "no instance is alive: nothing is planned or run" in said.out
    assert "nobody leads" in said.out
    found = await document(oplogue)
    assert (found["leader"], found["instances"], found["tasks"], found["lag_seconds"]) == (None, [], [], None)


async def test_to_look_at_a_database_leaves_nothing_there(
    oplogue: Command, db: AsyncDatabase[Document]
) -> None:
    assert (await oplogue("status")).code == 0
    assert await db.list_collection_names() == []


async def test_it_tells_who_leads_and_what_waits_runs_and_has_failed(shop: Stage, oplogue: Command) -> None:
    found = await document(oplogue)
    assert found["leader"]["id"] == "shop-1"
    assert found["leader"]["term"] == shop.heard("leadership.gained")[0].fields["term"]
    assert found["lag_seconds"] < 10
    assert found["reconciled_at"] is not None
    tasks = {task.pop("task"): task for task in found["tasks"]}
    counted = ("pending", "processing", "processing_dirty", "failed")
    assert {name: tuple(task[status] for status in counted) for name, task in tasks.items()} == {
        "audit": (0, 0, 0, 1),
        "remind": (3, 0, 0, 0),
        "ship": (0, 2, 1, 0),
    }
    assert -3600 < tasks["remind"]["waited_seconds"] < -3000
    assert tasks["ship"]["waited_seconds"] is None
    assert [task["gate"] for task in tasks.values()] == [3, 0, 0]
    assert all(task["reconciled"] and task["instances"] == 1 for task in tasks.values())


async def test_it_tells_how_busy_each_instance_is_now(shop: Stage, oplogue: Command) -> None:
    # Its heartbeat said otherwise: it is asked.
    async def three_slots() -> bool:
        (instance,) = (await document(oplogue))["instances"]
        assert instance["slots"] == 5
        return instance["in_use"] == 3

    await shop.eventually(three_slots)
    said = await oplogue("status")
    assert "1 instance, 3 of 5 slots in use" in said.out
    assert "shop-1 (leads)" in said.out


async def test_it_tells_what_holds_a_task_back(
    shop: Stage, oplogue: Command, db: AsyncDatabase[Document], database_uri: str
) -> None:
    await oplogue("tasks", "pause", "remind")
    async with open_console(database_uri) as console:
        await console.controls.throttle("ship", timedelta(hours=2))
    # Nobody has announced it for long: its instances are gone.
    row = await db["_oplogue_globals"].find_one({"_id": "task:audit"})
    assert row is not None
    await db["_oplogue_globals"].insert_one(
        row | {"_id": "task:old", "task": "old", "hash": "other", "reconciled": False}
    )
    said = (await oplogue("status")).out.splitlines()
    notes = {line.split()[0]: " ".join(line.split()[1:]) for line in said if "  " in line}
    assert notes["remind"] == "paused until it is resumed"
    assert notes["ship"].startswith("throttled, again in 1h 59m")
    assert notes["audit"] == "handler version 3 or higher only"
    assert notes["old"] == "no instance runs it; to be reconciled"


async def test_an_instance_with_other_code_than_in_force_is_named(
    shop: Stage, make_stage: MakeStage, oplogue: Command
) -> None:
    older = make_stage(instance_id="shop-0", concurrency=1)

    @older.app.reactive_task(task="audit", collection="orders", filter={"odd": True}, debounce=0)
    async def _audit(ctx: Context) -> None: ...

    await older.app.start()
    instances = {instance["id"]: instance for instance in (await document(oplogue))["instances"]}
    assert instances["shop-0"]["outdated"] == ["audit"]
    assert instances["shop-0"]["versions"] == {"audit": 1}
    assert instances["shop-1"]["outdated"] == []
    assert "other code than in force: audit (version 1)" in (await oplogue("status")).out


async def test_a_look_examines_no_completed_record(
    stage: Stage, orders: Orders, oplogue: Command, db: AsyncDatabase[Document]
) -> None:
    @stage.app.reactive_task(task="ship", collection="orders", debounce=0)
    async def _ship(ctx: Context) -> None: ...

    await stage.app.start()
    await orders.insert_many([{"_id": n} for n in range(300)])
    await stage.counted(300, status="completed")
    await db.command("profile", 2, filter={"ns": f"{db.name}.orders_tasks"})
    try:
        found = await document(oplogue)
    finally:
        await db.command("profile", 0)
    assert [task["pending"] for task in found["tasks"]] == [0]
    looked = [
        row
        async for row in db["system.profile"].find(
            {"appName": "oplogue", "command.aggregate": "orders_tasks", "command.pipeline.1.$count": "n"}
        )
    ]
    assert looked
    assert all(row["docsExamined"] == 0 and row["keysExamined"] < 50 for row in looked), looked
