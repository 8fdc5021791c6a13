"""What a deployment would change, found without changing anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pymongo import AsyncMongoClient
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.monitoring import CommandListener, CommandStartedEvent
from tests.integration.runtime.conftest import MakeStage
from tests.support.running import Stage

from oplogue import App, ConfigurationError, Context, Evolution, Fixed
from oplogue.cli import main
from oplogue.model.deployment import Deployment, TaskChange

Document = dict[str, Any]
Orders = AsyncCollection[Document]

READS = {
    "aggregate",
    "buildInfo",
    "endSessions",
    "find",
    "getMore",
    "hello",
    "listCollections",
    "listIndexes",
}
WRITING_STAGES = {"$merge", "$out"}


async def handle(ctx: Context) -> None:
    """Fails for what is odd."""
    if ctx.watched_values.get("odd"):
        raise ValueError("odd")


def define(app: App, task: str = "sync", version: int = 1, policy: Any = "none", **options: Any) -> None:
    """The task as a version of the code has it."""
    evolution = Evolution(handler_version=version, on_handler_version_change=policy)
    usual: dict[str, Any] = {
        "collection": "orders",
        "filter": {"total": {"$gt": 10}},
        "watch_projection": ["total", "odd"],
        "debounce": 0,
        "retry_policy": Fixed(0, max_attempts=1),
        "evolution": evolution,
    }
    app.reactive_task(task=task, **{**usual, **options})(handle)


@pytest.fixture
async def deployed(make_stage: MakeStage, orders: Orders) -> Stage:
    """A first version runs: two records completed, one failed; one order is too small for it."""
    stage = make_stage(instance_id="first")
    define(stage.app)
    define(stage.app, "bill")
    await orders.insert_many(
        [{"_id": n, "total": n} for n in (5, 50, 60)] + [{"_id": 70, "total": 70, "odd": True}]
    )
    await stage.app.start()
    await stage.counted(4, status="completed")
    await stage.counted(2, status="failed")
    await stage.next("reconciliation.finished")
    return stage


def change(deployment: Deployment, task: str = "sync") -> TaskChange:
    """What would happen to that task."""
    (found,) = [change for change in deployment.tasks if change.task == task]
    return found


async def test_the_same_code_changes_nothing(deployed: Stage, database_uri: str) -> None:
    app = App(database_uri)
    define(app)
    define(app, "bill", filter={"total": {"$gt": 10}}, watch_projection=["odd", "total"])
    deployment = await app.plan_deployment()
    assert deployment.changes_nothing
    assert [task.kind for task in deployment.tasks] == ["unchanged", "unchanged"]


async def test_a_new_task_is_counted_and_its_indexes_are_named(database_uri: str, orders: Orders) -> None:
    await orders.insert_many([{"_id": n, "total": 20} for n in range(7)])
    app = App(database_uri)
    define(app)
    deployment = await app.plan_deployment()
    added = change(deployment)
    assert (added.kind, added.edits, added.carried_by) == ("added", (), ())
    assert added.reconciliation is not None
    assert (added.reconciliation.without_record, added.reconciliation.changed) == (7, 0)
    assert {index.name for index in deployment.indexes} >= {"oplogue_record", "oplogue_due"}
    assert not deployment.changes_nothing


async def test_an_edited_filter_is_shown_and_what_it_fills_in_is_what_the_deployment_runs(
    deployed: Stage, make_stage: MakeStage, orders: Orders
) -> None:
    second = make_stage()
    define(second.app, filter={"total": {"$gt": 1}}, debounce="2s")
    define(second.app, "bill", watch_projection=["total"])
    deployment = await second.app.plan_deployment()
    edited = change(deployment)
    assert [(edit.option, edit.before, edit.after) for edit in edited.edits] == [
        ("filter", '{"total": {"$gt": 10}}', '{"total": {"$gt": 1}}'),
        ("debounce", "0s", "2s"),
    ]
    assert edited.carried_by == ("first",)
    assert edited.reconciliation is not None
    assert (edited.reconciliation.without_record, edited.reconciliation.changed) == (1, 0)
    # Of one watched field less, only the record that had it has other values.
    bill = change(deployment, "bill").reconciliation
    assert bill is not None
    assert (bill.without_record, bill.changed) == (0, 1)
    await deployed.app.stop()
    await second.app.start()
    await second.next("reconciliation.finished")
    await second.until(lambda: len(second.heard("task.started")) == 2)
    assert {(run.fields["task"], run.fields["doc_id"]) for run in second.heard("task.started")} == {
        ("sync", 5),
        ("bill", 70),
    }


@pytest.mark.parametrize(("policy", "count"), [("reprocess_failed", 1), ("reprocess_all", 3), ("none", None)])
async def test_a_higher_version_says_how_many_records_run_again(
    deployed: Stage, database_uri: str, policy: str, count: int | None
) -> None:
    app = App(database_uri)
    define(app, version=2, policy=policy)
    edited = change(await app.plan_deployment())
    assert edited.kind == "edited"
    assert edited.reconciliation is None
    assert edited.reprocesses == count
    assert (edited.note or "").startswith("instances below version 2 start no more runs") is (
        count is not None
    )


async def test_a_lower_version_is_told(deployed: Stage, make_stage: MakeStage, database_uri: str) -> None:
    second = make_stage()
    define(second.app, version=2)
    await second.app.start()
    app = App(database_uri)
    define(app, version=1, policy="reprocess_all")
    edited = change(await app.plan_deployment())
    assert edited.reprocesses is None
    assert edited.note == "the handler version goes down from 2: nothing is reprocessed"


async def test_a_task_of_other_code_is_removed_here_and_who_has_it_is_named(
    deployed: Stage, database_uri: str
) -> None:
    app = App(database_uri)
    define(app)
    removed = change(await app.plan_deployment(), "bill")
    assert (removed.kind, removed.records, removed.carried_by) == ("removed", 3, ("first",))
    await deployed.app.stop()
    assert change(await app.plan_deployment(), "bill").carried_by == ()


async def test_what_the_server_refuses_is_refused_with_the_task(database_uri: str) -> None:
    app = App(database_uri)
    define(app, filter={"$expr": {"$nothing": 1}})
    with pytest.raises(ConfigurationError, match="sync"):
        await app.plan_deployment()


class Commands(CommandListener):
    """What is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Document]] = []

    def started(self, event: CommandStartedEvent) -> None:
        self.sent.append((event.command_name, dict(event.command)))

    def succeeded(self, event: object) -> None: ...

    def failed(self, event: object) -> None: ...


async def test_nothing_is_written(deployed: Stage, database_uri: str, db: AsyncDatabase[Document]) -> None:
    commands = Commands()
    async with AsyncMongoClient[Document](database_uri, event_listeners=[commands]) as client:
        app = App(client=client, database=db.name)
        define(app, filter={"total": {"$gt": 1}}, version=2, policy="reprocess_all")
        define(app, "new", collection="customers")
        deployment = await app.plan_deployment()
    assert {task.kind for task in deployment.tasks} == {"edited", "added", "removed"}
    assert {name for name, _ in commands.sent} <= READS
    stages = {
        stage
        for _, command in commands.sent
        for entry in command.get("pipeline", [])
        for stage in dict(entry)
    }
    assert "$lookup" in stages
    assert not stages & WRITING_STAGES
    assert "customers_tasks" not in await db.list_collection_names()


# -- the command


@pytest.fixture
def module(tmp_path: Path, database_uri: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """An app to be deployed, as the command line names it."""
    (tmp_path / "deployable.py").write_text(
        f"from oplogue import App, Context\napp = App({database_uri!r})\n"
        "@app.reactive_task(collection='orders', filter={'total': {'$gt': 10}})\n"
        "async def ship(ctx: Context) -> None: ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)  # pyright: ignore[reportUnknownMemberType]
    return "deployable:app"


def ended(*arguments: str) -> int:
    """The exit code of the command."""
    with pytest.raises(SystemExit) as exit_:
        main(["plan", *arguments])
    assert isinstance(exit_.value.code, int)
    return exit_.value.code


def test_the_command_prints_what_would_change(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(module) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("+ ship on test_")
    assert (
        said[1].strip()
        == "reconciliation: 0 documents without a record, 0 documents with other watched values"
    )
    assert said[-1].startswith("tasks: 1 added, 0 edited, 0 removed, 0 unchanged; indexes to build: ")


def test_json_is_the_same_for_programs(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(module, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["changes_nothing"] is False
    assert document["tasks"][0]["kind"] == "added"
    assert document["indexes"][0].keys() == {"source", "name"}


@pytest.mark.parametrize("target", ["nowhere:app", "json:dumps", "plain"])
def test_a_module_that_is_not_there_is_wrong_usage(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(target) == 2
    assert "MODULE:APP" in capsys.readouterr().err
