"""``oplogue reconcile``: what it asks, what it waits for, and what it says where nobody can do it."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from tests.integration.cli.conftest import Command
from tests.support.running import Stage
from tests.support.typed import Typed

from oplogue import Context

Document = dict[str, Any]
Orders = AsyncCollection[Document]


@pytest.fixture
async def shop(stage: Stage, db: AsyncDatabase[Document]) -> Stage:
    """Two collections whose records are lost."""

    @stage.app.reactive_task(task="ship", collection="orders", debounce=0)
    async def _ship(ctx: Context) -> None: ...

    @stage.app.reactive_task(task="audit", collection="orders", debounce=0)
    async def _audit(ctx: Context) -> None: ...

    @stage.app.reactive_task(task="greet", collection="customers", debounce=0)
    async def _greet(ctx: Context) -> None: ...

    await stage.app.start()
    for _ in ("orders", "customers"):
        await stage.next("reconciliation.finished")
    await db["orders"].insert_many([{"_id": number} for number in range(5)])
    await db["customers"].insert_many([{"_id": number} for number in range(3)])
    await stage.counted(13, status="completed")
    await db["orders_tasks"].delete_many({})
    await db["customers_tasks"].delete_many({})
    return stage


async def test_it_is_finished_when_the_command_ends(shop: Stage, oplogue: Command) -> None:
    said = await oplogue("reconcile", "--yes")
    assert (said.code, said.err) == (0, "")
    assert said.out == "reconciled 3 tasks, about 8 documents\n"
    assert await shop.app.count_reactive_tasks() == 13


async def test_only_the_tasks_that_are_named_are_reconciled(shop: Stage, oplogue: Command) -> None:
    said = await oplogue("reconcile", "ship", "greet", "--json")
    assert (said.code, said.err) == (0, "")
    assert {**said.document, "collections": len(said.document["collections"])} == {
        "documents": 8,
        "collections": 2,
        "dry_run": False,
        "state": "reconciled",
    }
    assert await shop.app.count_reactive_tasks("ship") == 5
    assert await shop.app.count_reactive_tasks("greet") == 3
    for event in shop.heard("reconciliation.finished")[2:]:
        assert "audit" not in event.fields["tasks"]


async def test_a_dry_run_says_how_many_documents_it_would_look_at(shop: Stage, oplogue: Command) -> None:
    said = await oplogue("reconcile", "--dry-run", "--json")
    document = said.document
    collections = sorted(document.pop("collections"), key=lambda one: one["collection"])
    assert document == {"documents": 8, "dry_run": True}
    assert [(one["documents"], one["tasks"]) for one in collections] == [
        (3, ["greet"]),
        (5, ["audit", "ship"]),
    ]
    said = await oplogue("reconcile", "greet", "--dry-run")
    assert said.out.splitlines()[-1].strip() == "would look at about 3 documents"
    assert await shop.app.count_reactive_tasks() == 0


async def test_it_need_not_be_waited_for(shop: Stage, oplogue: Command) -> None:
    said = await oplogue("reconcile", "--no-wait")
    assert said.out == "requested 3 tasks, about 8 documents\n"
    await shop.counted(13)


@pytest.mark.parametrize(("answer", "code", "left"), [("y", 0, 5), ("n", 1, 0), ("", 1, 0)])
async def test_before_a_terminal_it_asks(
    shop: Stage, oplogue: Command, monkeypatch: pytest.MonkeyPatch, answer: str, code: int, left: int
) -> None:
    monkeypatch.setattr(sys, "stdin", Typed(f"{answer}\n"))
    said = await oplogue("reconcile", "ship")
    assert said.code == code
    assert "Look at about 5 documents of 1 collection again? [y/N]" in said.err
    assert await shop.app.count_reactive_tasks("ship") == left


async def test_where_no_instance_is_alive_it_says_so_and_requests_nothing(
    shop: Stage, oplogue: Command, db: AsyncDatabase[Document]
) -> None:
    await shop.app.stop()
    said = await oplogue("reconcile", "--yes")
    assert (said.code, said.out, said.err.count("\n")) == (1, "", 1)
    assert "no instance is alive that could do it; start one: oplogue worker MODULE:APP" in said.err
    assert (
        await db["_oplogue_globals"].count_documents({"_id": {"$regex": "^task:"}, "reconciled": False}) == 0
    )


async def test_where_no_app_was_ever_started_it_says_so(oplogue: Command) -> None:
    said = await oplogue("reconcile", "--yes")
    assert (said.code, said.out, said.err.count("\n")) == (1, "", 1)
    assert "no instance has been started" in said.err


async def test_a_task_that_is_not_known_is_wrong_usage(shop: Stage, oplogue: Command) -> None:
    said = await oplogue("reconcile", "ship", "nobody")
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert "'nobody'; known: audit, greet, ship" in said.err


async def test_the_status_tells_how_far_it_has_come(
    shop: Stage, oplogue: Command, db: AsyncDatabase[Document]
) -> None:
    await shop.app.stop()
    # As a leader left it that died half-way.
    tasks = [row async for row in db["_oplogue_globals"].find({"collection": "customers"})]
    await db["_oplogue_globals"].update_one({"_id": tasks[0]["_id"]}, {"$set": {"reconciled": False}})
    said = await oplogue("status", "--json")
    (waiting,) = said.document["reconciliations"]
    assert (waiting["tasks"], waiting["estimate"], waiting["started_at"]) == (["greet"], 3, None)
    assert "customers  waits to be reconciled, about 3 documents" in (await oplogue("status")).out
