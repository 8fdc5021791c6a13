"""The console: what operators do without an instance of their own, and that live instances hear of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from pymongo import AsyncMongoClient
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from tests.integration.runtime.conftest import MakeStage
from tests.support.running import Stage

from oplogue import ConfigurationError, Context, UnknownTaskError
from oplogue.model.definition import Namespace
from oplogue.runtime.console import Console, open_console
from oplogue.runtime.desk import record_filter
from oplogue.store.signals import Signals, Topic

Document = dict[str, Any]
Orders = AsyncCollection[Document]

ALL = record_filter(None, None, None, None, None, None)


@pytest.fixture
async def console(database_uri: str) -> AsyncIterator[Console]:
    """A console on the test's database."""
    async with open_console(database_uri) as opened:
        yield opened


@pytest.fixture
async def said(client: AsyncMongoClient[Document], db: AsyncDatabase[Document]) -> AsyncIterator[Signals]:
    """What any instance hears, from now on."""
    bound = timedelta(seconds=5)
    signals = Signals(client, Namespace(db.name, "_oplogue_globals"), patience=bound, bound=bound)
    await signals.open()
    yield signals
    await signals.close()


@pytest.fixture
async def started(stage: Stage, orders: Orders) -> Stage:
    """A running app with one task, whose debounce is long."""

    @stage.app.reactive_task(task="sync", collection="orders", debounce="1h")
    async def _sync(ctx: Context) -> None: ...

    await stage.app.start()
    await orders.insert_one({"_id": 1})
    await stage.planned(1)
    return stage


async def test_it_retries_and_the_live_instance_runs(started: Stage, console: Console) -> None:
    assert [definition.task for definition in await console.desk.tasks()] == ["sync"]
    assert await console.desk.count(ALL) == 1
    assert await console.desk.retry(ALL) == 1
    await started.next("task.completed", doc_id=1)


async def test_it_reconciles_through_the_live_leader(started: Stage, console: Console) -> None:
    await started.next("reconciliation.finished")
    assert await console.desk.delete(ALL) == 1
    await console.desk.reconcile("sync")
    await started.next("reconciliation.finished")
    assert await console.desk.count(ALL) == 1


async def test_each_change_is_told_to_all_instances(started: Stage, console: Console, said: Signals) -> None:
    await console.desk.pause("sync", "1h")
    await console.desk.resume("sync")
    await console.desk.retry(ALL)
    await console.desk.reconcile(None)
    heard: list[tuple[Topic, tuple[str, ...]]] = []
    while len(heard) < 4:
        heard += [(signal.topic, signal.tasks) for signal in await said.next() if signal.by == "console"]
    topics = (Topic.CONTROLS, Topic.RESUMED, Topic.WORK, Topic.DEFINITIONS)
    assert heard == [(topic, ("sync",)) for topic in topics]


async def test_it_is_no_instance_and_never_leads(started: Stage, console: Console) -> None:
    assert [live.id for live in await console.instances.live()] == [started.app.instance_id]
    await started.app.stop()
    assert await console.instances.live() == []
    assert await console.leadership.leader() is None
    # What is asked of a cluster that sleeps is done when it wakes.
    assert await console.desk.retry(ALL) == 1
    await started.app.start()
    await started.next("task.completed", doc_id=1)


async def test_tasks_that_no_instance_knows_are_refused(console: Console) -> None:
    with pytest.raises(UnknownTaskError, match="no task named 'sync'"):
        await console.desk.pause("sync", None)


async def test_it_finds_what_an_app_with_other_globals_keeps(
    make_stage: MakeStage, database_uri: str, db: AsyncDatabase[Document]
) -> None:
    stage = make_stage(globals_collection="elsewhere")

    @stage.app.reactive_task(task="sync", collection="orders")
    async def _sync(ctx: Context) -> None: ...

    await stage.app.start()
    server = database_uri.replace(f"/{db.name}", "/")
    async with open_console(server, database=db.name, globals_collection="elsewhere") as console:
        assert [definition.task for definition in await console.desk.tasks()] == ["sync"]


async def test_a_uri_is_needed_and_a_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPLOGUE_MONGODB_URI", raising=False)
    monkeypatch.delenv("MONGODB_URI", raising=False)
    with pytest.raises(ConfigurationError, match="no server"):
        async with open_console():
            pass
    with pytest.raises(ConfigurationError, match="no database's name"):
        async with open_console("mongodb://localhost:1"):
            pass


async def test_the_uri_of_the_environment_is_taken(
    database_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPLOGUE_MONGODB_URI", database_uri)
    async with open_console() as console:
        assert await console.desk.tasks() == ()
