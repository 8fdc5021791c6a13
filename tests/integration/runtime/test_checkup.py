"""A check-up finds what is really wrong with real servers. What facts mean is tested without one."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pymongo import AsyncMongoClient, MongoClient
from pymongo.asynchronous.database import AsyncDatabase
from tests.integration.runtime.conftest import MakeStage
from tests.support.running import Stage

from oplogue import App, Context, Finding, Fixed
from oplogue.embedded import EmbeddedMember, EmbeddedServer, find_mongod, start_embedded
from oplogue.embedded.member import Recipe
from oplogue.events import WeakClient

Document = dict[str, Any]


def amiss(findings: tuple[Finding, ...]) -> dict[str, Finding]:
    """What is not well, by check; but for the oplog, which holds what all tests before have written."""
    return {
        finding.check: finding for finding in findings if finding.level != "ok" and finding.check != "oplog"
    }


@pytest.fixture
async def running(stage: Stage) -> Stage:
    """An app that runs one task, which fails for document 13."""

    @stage.app.reactive_task(
        task="sync", collection="orders", debounce=0, retry_policy=Fixed(0, max_attempts=1)
    )
    async def sync(ctx: Context) -> None:
        if ctx.doc_id == 13:
            raise ValueError("unlucky")

    await stage.app.start()
    return stage


async def test_an_app_that_runs_is_well_and_one_that_has_not_been_started_may_be_asked(
    running: Stage, database_uri: str
) -> None:
    assert not amiss(await running.app.check_up())
    assert not amiss(await App(database_uri).check_up())


async def test_a_dropped_index_is_found_and_the_command_that_it_names_mends_it(
    running: Stage, db: AsyncDatabase[Document]
) -> None:
    await db["orders_tasks"].drop_index("oplogue_due")
    found = amiss(await running.app.check_up())["indexes"]
    assert found.level == "problem"
    assert "lack oplogue_due" in found.text
    # As the finding has it, with the server's own parser in place of a shell's.
    assert f"db.getSiblingDB('{db.name}').getCollection('orders_tasks').createIndex(" in (found.mend or "")
    key, options = _arguments(found.mend or "")
    await db.command("createIndexes", "orders_tasks", indexes=[{"key": key, **options}])
    assert not amiss(await running.app.check_up())


def _arguments(mend: str) -> list[Document]:
    inside = mend.partition("createIndex(")[2].removesuffix(")")
    arguments: list[Document] = json.loads(f"[{inside}]")
    return arguments


async def test_an_equal_index_under_another_name_is_as_good(
    running: Stage, db: AsyncDatabase[Document]
) -> None:
    records = db["orders_tasks"]
    await records.drop_index("oplogue_record")
    await records.create_index([("sourceDocId", 1), ("task", 1)], unique=True, name="theirs")
    assert not amiss(await running.app.check_up())
    await records.drop_index("theirs")
    await records.create_index([("sourceDocId", 1), ("task", 1)], name="not unique")
    assert "indexes" in amiss(await running.app.check_up())


async def test_signals_that_were_dropped_or_are_not_capped_are_found(
    running: Stage, db: AsyncDatabase[Document]
) -> None:
    await running.app.stop()
    await db["_oplogue_globals_signals"].drop()
    await db["_oplogue_globals_signals"].insert_one({})
    found = amiss(await running.app.check_up())["signals"]
    assert "is not capped" in found.text
    await db.command("convertToCapped", "_oplogue_globals_signals", size=65536)
    assert "signals" not in amiss(await running.app.check_up())


async def test_tasks_that_failed_are_paused_or_abandoned_are_found(
    running: Stage, make_stage: MakeStage, db: AsyncDatabase[Document]
) -> None:
    await db["orders"].insert_one({"_id": 13})
    await running.next("task.failed")
    await running.counted(1, status="failed")
    assert amiss(await running.app.check_up())["tasks"].text == "sync: 1 records failed for good"
    await running.app.delete_reactive_tasks()
    await running.app.pause_task("sync")
    assert amiss(await running.app.check_up())["tasks"].text == "sync: paused without an end"
    await running.app.resume_task("sync")
    await running.app.stop()
    assert amiss(await running.app.check_up())["instances"].text.startswith("no instance is alive")
    other = make_stage()
    await other.app.start()
    assert amiss(await running.app.check_up())["tasks"].text == "sync: no live instance runs it"


async def test_instances_without_a_leader_are_a_problem(running: Stage, db: AsyncDatabase[Document]) -> None:
    leader = await db["_oplogue_globals"].find_one({"_id": "leader"})
    assert leader is not None
    await db["_oplogue_globals"].update_one({"_id": "leader"}, {"$set": {"expiresAt": leader["since"]}})
    assert amiss(await running.app.check_up())["leader"].level == "problem"


async def test_the_weak_write_concern_of_a_cluster_and_of_a_client_are_found(
    database_uri: str, client: AsyncMongoClient[Document]
) -> None:
    async def by_default(w: Any) -> None:
        await client.admin.command("setDefaultRWConcern", defaultWriteConcern={"w": w})

    await by_default(1)
    try:
        found = amiss(await App(f"{database_uri}&w=1&heartbeatFrequencyMS=60000").check_up())
    finally:
        await by_default("majority")
    assert "w: 1" in found["write concern"].text
    assert found["client"].text == "w=1 is weak"
    assert not {"write concern", "client"} & amiss(await App(database_uri).check_up()).keys()


async def test_an_oplog_that_holds_seconds_is_a_problem() -> None:
    with start_embedded(extra_args=("--oplogSize", "1", "--setParameter", "syncdelay=1")) as server:
        async with AsyncMongoClient[Document](server.uri) as client:
            await client["shop"]["orders"].insert_many([{"filling": "x" * 100_000} for _ in range(20)])
        found = {finding.check: finding for finding in await App(server.uri_for("shop")).check_up()}
    assert found["oplog"].level == "problem"


async def test_a_server_that_is_no_replica_set_is_a_problem_and_nothing_else_is_asked(tmp_path: Path) -> None:
    class Alone(Recipe):
        def command(self) -> list[str]:
            words = super().command()
            place = words.index("--replSet")
            return words[:place] + words[place + 2 :]

    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    member = EmbeddedMember(Alone(find_mongod(), port, tmp_path / "alone", tmp_path / "alone", ()))
    member.launch()
    try:
        await asyncio.to_thread(member.await_port, 30)
        found = amiss(await App(f"mongodb://127.0.0.1:{port}/shop").check_up())
    finally:
        member.ask_to_end()
        member.await_end()
    assert list(found) == ["replica set"]
    assert "mongod --replSet rs0" in (found["replica set"].mend or "")


@pytest.mark.replica3
async def test_the_clock_of_every_member_is_asked(replica_set_of_three: EmbeddedServer) -> None:
    findings = await App(replica_set_of_three.uri_for("shop")).check_up()
    (found,) = [one for one in findings if one.check == "members' clocks"]
    assert (found.level, found.text) == ("ok", "the clocks of 3 members differ by 0.0 s")


async def test_a_server_that_does_not_answer_is_one_problem() -> None:
    (found,) = await App("mongodb://127.0.0.1:9/shop?serverSelectionTimeoutMS=100").check_up()
    assert (found.check, found.level) == ("server", "problem")
    assert found.text.startswith("no MongoDB answers: ServerSelectionTimeoutError")


@dataclass(frozen=True)
class Guarded:
    """A server with access control."""

    port: int

    def uri(self, user: str) -> str:
        return f"mongodb://{user}:secret@127.0.0.1:{self.port}/shop?authSource=admin&replicaSet=oplogue"


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    """A server with three users: one may all that is needed, one may read, one may nothing."""
    key = tmp_path / "key"
    key.write_text("c2VjcmV0" * 8)
    key.chmod(0o600)
    with start_embedded(data=tmp_path) as server, MongoClient[Document](server.uri) as client:
        port = server.ports[0]
        roles = {"writer": [{"role": "readWrite", "db": "shop"}], "reader": [{"role": "read", "db": "shop"}]}
        for user in ("writer", "reader", "nobody"):
            client.admin.command("createUser", user, pwd="secret", roles=roles.get(user, []))
    arguments = ("--auth", "--keyFile", str(key))
    member = EmbeddedMember(Recipe(find_mongod(), port, tmp_path / "member-0", None, arguments))
    member.launch()
    member.await_port(30)
    yield Guarded(port)
    member.kill()


async def test_missing_privileges_are_named_one_by_one_with_the_role_to_grant(guarded: Guarded) -> None:
    assert not [one for one in (await App(guarded.uri("writer")).check_up()) if one.level == "problem"]
    for user in ("reader", "nobody"):
        found = amiss(await App(guarded.uri(user)).check_up())["privileges"]
        assert found.level == "problem"
        assert found.text.startswith(f"{user}@admin may not ")
        assert f"grantRolesToUser('{user}', [{{role: 'read" in (found.mend or "")


async def test_a_wrong_password_is_told_from_a_server_that_is_not_there(guarded: Guarded) -> None:
    (found,) = await App(guarded.uri("writer").replace("secret", "wrong")).check_up()
    assert found.text.startswith("the user is refused: OperationFailure 18")


async def test_a_client_with_the_drivers_own_timeouts_is_told_of_when_the_app_starts(
    database_uri: str,
) -> None:
    told: list[WeakClient] = []
    async with AsyncMongoClient[Document](database_uri) as client:
        app = App(client=client)
        app.on("instance.weak_client")(told.append)
        async with app:
            pass
    assert [event.options for event in told] == [["heartbeatFrequencyMS=10000", "connectTimeoutMS=20000"]]


async def test_a_client_of_our_own_is_not_weak(database_uri: str) -> None:
    told: list[WeakClient] = []
    app = App(database_uri)
    app.on("instance.weak_client")(told.append)
    async with app:
        pass
    assert not told
