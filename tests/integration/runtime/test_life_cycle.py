"""Starting, stopping, leading and following, as a user and an operator see it."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from typing import Any

import pytest
from pymongo import AsyncMongoClient, MongoClient
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from tests.integration.runtime.conftest import MakeStage
from tests.support.running import Gate, Stage, within

from oplogue import App, ConfigurationError, Context, NotStartedError

Document = dict[str, Any]
Orders = AsyncCollection[Document]


def define(stage: Stage, **options: Any) -> None:
    """A task that does nothing."""
    usual: dict[str, Any] = {"task": "sync", "collection": "orders", "debounce": 0}

    @stage.app.reactive_task(**{**usual, **options})
    async def _sync(ctx: Context) -> None: ...


async def test_start_and_stop_may_be_called_twice(stage: Stage, orders: Orders) -> None:
    define(stage)
    await stage.app.stop()
    await stage.app.start()
    await stage.app.start()
    await orders.insert_one({"_id": 1})
    await stage.next("task.completed", doc_id=1)
    await stage.app.stop()
    await stage.app.stop()
    assert len(stage.heard("instance.started")) == len(stage.heard("instance.stopped")) == 1


async def test_stops_at_the_same_time_wait_for_one_another(stage: Stage, orders: Orders) -> None:
    gate = Gate()

    @stage.app.reactive_task(collection="orders", debounce=0)
    async def _sync(ctx: Context) -> None:
        await gate()

    await stage.app.start()
    await orders.insert_one({"_id": 1})
    await gate.reached()
    stops = [asyncio.create_task(stage.app.stop()) for _ in range(2)]
    done, _ = await asyncio.wait(stops, timeout=0.2)
    assert not done
    gate.open()
    await within(asyncio.gather(*stops))
    assert len(stage.heard("task.completed")) == len(stage.heard("instance.stopped")) == 1
    assert not stage.heard("settle.failed")


async def test_a_stop_goes_on_when_who_waits_for_it_is_cancelled(stage: Stage, orders: Orders) -> None:
    gate = Gate()

    @stage.app.reactive_task(collection="orders", debounce=0)
    async def _sync(ctx: Context) -> None:
        await gate()

    await stage.app.start()
    await orders.insert_one({"_id": 1})
    await gate.reached()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(stage.app.stop(), 0.1)
    gate.open()
    await stage.next("instance.stopped")
    assert len(stage.heard("task.completed")) == 1


async def test_a_handler_that_still_runs_may_use_the_app_while_it_stops(stage: Stage, orders: Orders) -> None:
    gate = Gate()

    @stage.app.reactive_task(collection="orders", debounce=0)
    async def _sync(ctx: Context) -> None:
        await gate()
        async with stage.app.lock("account"):
            await stage.app.count_reactive_tasks()

    await stage.app.start()
    await orders.insert_one({"_id": 1})
    await gate.reached()
    stop = asyncio.create_task(stage.app.stop())
    await stage.next("leadership.lost")
    gate.open()
    await within(stop)
    assert len(stage.heard("task.completed")) == 1


async def test_a_handler_may_stop_its_own_app(make_stage: MakeStage, orders: Orders) -> None:
    stage = make_stage(shutdown_timeout="100ms")

    @stage.app.reactive_task(collection="orders", debounce=0)
    async def _sync(ctx: Context) -> None:
        await stage.app.stop()

    await stage.app.start()
    await orders.insert_one({"_id": 1})
    await stage.next("instance.stopped")
    # What waited for itself was cut short: given back, no attempt counted.
    assert (await orders.database["orders_tasks"].find_one({}))["attempts"] == 0  # type: ignore[index]


async def test_start_after_stop_works_and_sees_what_happened_meanwhile(stage: Stage, orders: Orders) -> None:
    define(stage)
    await stage.app.start()
    await stage.app.stop()
    await orders.insert_one({"_id": "while stopped"})
    await stage.app.start()
    await orders.insert_one({"_id": "after"})
    await stage.next("task.completed", doc_id="while stopped")
    await stage.next("task.completed", doc_id="after")


async def test_registering_after_start_is_refused(stage: Stage) -> None:
    await stage.app.start()
    with pytest.raises(ConfigurationError, match="task 'sync': the app has been started"):
        define(stage)


async def test_two_tasks_of_one_name_are_refused(stage: Stage) -> None:
    define(stage)
    with pytest.raises(ConfigurationError, match="a task of this name already"):
        define(stage)


async def test_an_app_without_tasks_starts_and_stops(stage: Stage) -> None:
    async with stage.app:
        assert stage.app.client is not None
    assert len(stage.heard("instance.stopped")) == 1


async def test_operations_and_the_client_need_a_started_app(stage: Stage) -> None:
    with pytest.raises(NotStartedError):
        await stage.app.count_reactive_tasks()
    with pytest.raises(NotStartedError):
        _ = stage.app.client
    async with stage.app:
        assert await stage.app.count_reactive_tasks() == 0
    with pytest.raises(NotStartedError):
        _ = stage.app.database


async def test_run_inside_a_running_loop_is_refused(stage: Stage) -> None:
    with pytest.raises(RuntimeError, match="start"):
        stage.app.run()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_run_blocks_until_a_signal_and_stops_gracefully(database_uri: str, number: signal.Signals) -> None:
    app = App(database_uri)
    heard: list[str] = []

    @app.on("instance.started")
    def _started(_event: object) -> None:
        heard.append("started")
        os.kill(os.getpid(), number)

    @app.on("instance.stopped")
    def _stopped(_event: object) -> None:
        heard.append("stopped")

    app.run()
    assert heard == ["started", "stopped"]


def test_an_app_without_a_database_name_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no database's name"):
        App("mongodb://localhost:27017")


@pytest.mark.parametrize("database", ["", "a b", "a.b", "admin", "x" * 64, 5])
def test_a_database_that_no_task_can_work_in_is_refused(database: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"database={database!r}: "):
        App("mongodb://localhost:27017", database=database)


async def test_a_client_without_a_database_name_is_refused() -> None:
    async with AsyncMongoClient[Document]("mongodb://localhost:1/", connect=False) as client:
        with pytest.raises(ConfigurationError, match="no database's name"):
            App(client=client)
    async with AsyncMongoClient[Document]("mongodb://localhost:1/shop", connect=False) as client:
        assert App(client=client).instance_id


def test_a_client_that_is_not_asynchronous_is_refused() -> None:
    with (
        MongoClient[Document]("mongodb://localhost:1/shop", connect=False) as client,
        pytest.raises(ConfigurationError, match=r"client=.*AsyncMongoClient"),
    ):
        App(client=client)  # type: ignore[arg-type]  # that is the mistake


def test_an_app_without_a_server_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPLOGUE_MONGODB_URI", raising=False)
    monkeypatch.delenv("MONGODB_URI", raising=False)
    with pytest.raises(ConfigurationError, match="OPLOGUE_MONGODB_URI"):
        App()


async def test_the_server_is_read_from_the_environment(
    database_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPLOGUE_MONGODB_URI", raising=False)
    monkeypatch.setenv("MONGODB_URI", database_uri)
    async with App() as app:
        assert app.database.name in database_uri
    monkeypatch.setenv("OPLOGUE_MONGODB_URI", database_uri)
    monkeypatch.setenv("MONGODB_URI", "mongodb://localhost:1/ignored")
    async with App() as app:
        assert app.database.name in database_uri


async def test_a_given_client_is_used_and_left_open(
    make_stage: MakeStage, client: AsyncMongoClient[Document], db: AsyncDatabase[Document]
) -> None:
    stage = make_stage(uri=None, client=client, database=db.name)
    define(stage)
    await stage.app.start()
    assert stage.app.client is client
    await db["orders"].insert_one({"_id": 1})
    await stage.next("task.completed")
    await stage.app.stop()
    assert await client.admin.command("ping")


async def test_a_given_client_with_a_uri_beside_it(
    make_stage: MakeStage, client: AsyncMongoClient[Document], orders: Orders
) -> None:
    stage = make_stage(client=client)
    define(stage)
    await stage.app.start()
    assert stage.app.client is client
    await orders.insert_one({"_id": 1})
    await stage.next("task.completed")


async def test_a_given_client_without_a_uri_is_warned_about_once(
    make_stage: MakeStage,
    client: AsyncMongoClient[Document],
    db: AsyncDatabase[Document],
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = make_stage(uri=None, client=client, database=db.name)
    define(stage)
    with caplog.at_level("WARNING", logger="oplogue"):
        await stage.app.start()
    warned = [getattr(line, "code", None) for line in caplog.records if line.levelname == "WARNING"]
    assert sorted(map(str, warned)) == ["instance.weak_client", "lease.renewed_in_loop"]


@pytest.mark.parametrize(
    "filter_",
    [{"$nonsense": 1}, {"total": {"$nonsense": 1}}, {"$where": "true"}, {"$text": {"$search": "x"}}],
    ids=["operator of the document", "operator of a field", "where", "text"],
)
async def test_a_filter_that_the_server_refuses_is_named(stage: Stage, filter_: Document) -> None:
    async def define_and_start() -> None:
        define(stage, filter=filter_)
        await stage.app.start()

    with pytest.raises(ConfigurationError, match=r"task 'sync': filter=") as caught:
        await define_and_start()
    assert "full error" not in str(caught.value)


async def test_watched_values_that_the_server_refuses_are_named(stage: Stage) -> None:
    define(stage, filter={"status": "paid"}, watch_projection={"a": {"$elemMatch": {"b": 1}}})
    with pytest.raises(ConfigurationError, match=r"task 'sync': watch_projection=.*\$elemMatch"):
        await stage.app.start()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("filter", {"status": {"paid", "sent"}}),
        ("filter", {"status": {"$in": [object()]}}),
        ("filter", {"total": {"$gt": 2**64}}),
        ("watch_projection", {"sum": {"$add": ["$total", object()]}}),
    ],
)
async def test_values_that_no_database_holds_are_refused_at_registration(
    stage: Stage, option: str, value: Document
) -> None:
    with pytest.raises(ConfigurationError, match=f"task 'sync': {option}=.*can't hold"):
        define(stage, **{option: value})


@pytest.mark.parametrize(
    "options",
    [{"viewOn": "orders", "pipeline": []}, {"timeseries": {"timeField": "at"}}],
    ids=["a view", "a time series"],
)
async def test_a_collection_that_tells_no_changes_is_refused_at_start(
    stage: Stage, client: AsyncMongoClient[Document], options: Document
) -> None:
    await client.get_default_database().command("create", "seen", **options)
    define(stage, collection="seen")
    with pytest.raises(ConfigurationError, match=r"task 'sync': collection='.*\.seen': .*tells no changes"):
        await stage.app.start()


@pytest.mark.parametrize("representation", ["standard", "pythonLegacy"])
async def test_a_uuid_in_a_filter_is_the_one_that_the_client_writes(
    make_stage: MakeStage, database_uri: str, representation: str
) -> None:
    account = uuid.uuid4()
    stage = make_stage(uri=f"{database_uri}&uuidRepresentation={representation}")
    define(stage, filter={"account": account})
    await stage.app.start()
    await stage.app.database["orders"].insert_one({"_id": 1, "account": account})
    await stage.next("task.completed", doc_id=1)


async def test_a_uuid_that_the_client_can_not_write_is_refused_at_start(stage: Stage) -> None:
    define(stage, filter={"account": uuid.uuid4()})
    with pytest.raises(ConfigurationError, match=r"task 'sync': filter=.*UuidRepresentation"):
        await stage.app.start()
    with pytest.raises(NotStartedError):
        _ = stage.app.client


@pytest.mark.parametrize(
    ("command", "passed_over"),
    [("aggregate", 0), ("aggregate", 2), ("createIndexes", 0)],
    ids=["the documents", "the change stream", "the indexes"],
)
async def test_a_privilege_that_is_missing_is_told_at_start(
    stage: Stage, client: AsyncMongoClient[Document], command: str, passed_over: int
) -> None:
    define(stage)
    forbid = {"failCommands": [command], "errorCode": 13, "appName": "oplogue"}
    await client.admin.command(
        {"configureFailPoint": "failCommand", "mode": {"skip": passed_over}, "data": forbid}
    )
    try:
        with pytest.raises(ConfigurationError, match="the server forbids it: OperationFailure 13"):
            await stage.app.start()
    finally:
        await client.admin.command({"configureFailPoint": "failCommand", "mode": "off"})


async def test_a_start_that_failed_leaves_nothing_behind(make_stage: MakeStage, orders: Orders) -> None:
    refused = make_stage()
    define(refused, filter={"total": {"$nonsense": 1}})
    with pytest.raises(ConfigurationError):
        await refused.app.start()
    with pytest.raises(NotStartedError):
        _ = refused.app.client
    good = make_stage()
    define(good)
    await good.app.start()
    await orders.insert_one({"_id": 1})
    await good.next("task.completed")


async def test_one_of_two_apps_leads_and_both_run(make_stage: MakeStage, orders: Orders) -> None:
    first, second = make_stage(instance_id="first"), make_stage(instance_id="second", concurrency=100)
    ran: set[str] = set()
    both = asyncio.Event()
    for stage in (first, second):

        @stage.app.reactive_task(task="sync", collection="orders", debounce=0)
        async def _sync(ctx: Context) -> None:
            ran.add(ctx.instance_id)
            if len(ran) == 2:
                both.set()
            await within(both.wait())

    await first.app.start()
    await second.app.start()
    await orders.insert_many([{"_id": number} for number in range(110)])
    await within(both.wait())
    assert [len(stage.heard("leadership.gained")) for stage in (first, second)] == [1, 0]


async def test_another_app_leads_at_once_when_the_leader_stops(make_stage: MakeStage, orders: Orders) -> None:
    first, second = make_stage(lease="60s", concurrency=0), make_stage(lease="60s")
    for stage in (first, second):
        define(stage)
        await stage.app.start()
    # Work that the second was told about: it listens.
    await orders.insert_one({"_id": "old"})
    await second.next("task.completed", doc_id="old")
    await first.app.stop()
    await second.next("leadership.gained", limit=3)
    await orders.insert_one({"_id": "new"})
    await second.next("task.completed", doc_id="new")


async def test_an_app_that_has_just_started_leads_at_once_when_the_leader_stops(
    make_stage: MakeStage, orders: Orders
) -> None:
    first, second = make_stage(lease="60s"), make_stage(lease="60s")
    for stage in (first, second):
        define(stage)
        await stage.app.start()
    await first.app.stop()
    await second.next("leadership.gained", limit=3)


async def test_another_app_leads_within_the_lease_when_the_leader_dies(
    make_stage: MakeStage, orders: Orders
) -> None:
    first, second = make_stage(lease="2s", concurrency=0), make_stage(lease="2s")
    define(first)
    await first.app.start()
    (part,) = (task for task in asyncio.all_tasks() if task.get_name() == "oplogue-leader")
    define(second)
    await second.app.start()
    part.cancel()
    await asyncio.gather(part, return_exceptions=True)
    await orders.insert_one({"_id": 1})
    await second.next("leadership.gained", limit=4)
    await second.next("task.completed", doc_id=1)


async def test_a_dropped_database_is_survived(make_stage: MakeStage, db: AsyncDatabase[Document]) -> None:
    stage = make_stage(lease="2s")
    define(stage)
    await stage.app.start()
    await db["orders"].insert_one({"_id": 1})
    await stage.next("task.completed", doc_id=1)
    await db.client.drop_database(db.name)
    await db["orders"].insert_one({"_id": 2})
    await stage.next("task.completed", doc_id=2)
    await db["orders"].insert_one({"_id": 1})
    await stage.next("task.completed", doc_id=1)


async def test_a_short_lease_does_not_shorten_the_patience_of_a_start(
    make_stage: MakeStage, client: AsyncMongoClient[Document], db: AsyncDatabase[Document]
) -> None:
    stage = make_stage(lease="1s")
    define(stage)
    # Longer than an operation under such a lease may take.
    slow = {"failCommands": ["update"], "blockConnection": True, "blockTimeMS": 800}
    await client.admin.command(
        {
            "configureFailPoint": "failCommand",
            "mode": {"times": 1},
            "data": {**slow, "namespace": f"{db.name}._oplogue_globals"},
        }
    )
    try:
        await stage.app.start()
        assert stage.app.health().ready
    finally:
        await client.admin.command({"configureFailPoint": "failCommand", "mode": "off"})
