"""How the server answers the engine's queries: by indexes, and by no more keys than it needs."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, cast

import pytest
from bson.codec_options import CodecOptions, DatetimeConversion
from pymongo import AsyncMongoClient, MongoClient
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.database import Database
from pymongo.monitoring import CommandListener, CommandStartedEvent
from tests.support.rig import LEASE, LONG_AGO, Document, Rig

from oplogue.embedded import EmbeddedServer
from oplogue.model import states
from oplogue.store.backlog import depths_pipeline
from oplogue.store.tasks import INDEXES, Wanted, look_pipeline

TASKS = [f"task-{number}" for number in range(10)]
FUTURE = 100_000
DUE = 200
"""Of each of the first three tasks."""
RUNNING = 40
LOST = 5
FAILED = 300


class Commands(CommandListener):
    """What the client sends."""

    def __init__(self) -> None:
        self.sent: list[Document] = []

    def started(self, event: CommandStartedEvent) -> None:
        self.sent.append(dict(event.command))

    def succeeded(self, event: object) -> None: ...

    def failed(self, event: object) -> None: ...

    def named(self, name: str, collection: str) -> list[Document]:
        """The commands of one kind on one collection."""
        return [command for command in self.sent if command.get(name) == collection]


@pytest.fixture(scope="module")
def filled(replica_set: EmbeddedServer) -> Iterator[str]:
    """The URI of a database with many records of every kind; tests leave of each kind what others need."""
    uri = replica_set.uri_for(f"test_{uuid.uuid4().hex[:12]}")
    with MongoClient[Document](uri) as client:
        db = client.get_default_database()
        db["orders_tasks"].create_indexes(list(INDEXES))
        _fill(db)
        yield uri
        db.client.drop_database(db.name)


@pytest.fixture
def commands() -> Commands:
    """A record of what `watched` sends."""
    return Commands()


@pytest.fixture
async def watched(filled: str, commands: Commands) -> AsyncIterator[Rig]:
    """A rig on that database, whose commands are recorded."""
    async with AsyncMongoClient[Document](filled, tz_aware=True, event_listeners=[commands]) as client:
        rig = Rig(client, client.get_default_database())
        yield rig
        await rig.documents.drop()
        await rig.end_sessions()


def _fill(db: Database[Document]) -> None:
    """Records are made where they are to be: nothing travels."""
    hours = 3_600_000
    later = {"$add": ["$$NOW", {"$multiply": [hours, {"$add": ["$n", 1]}]}]}
    before = {"$subtract": ["$$NOW", {"$add": [1_000, "$n"]}]}
    _insert(db, FUTURE, 0, {"$arrayElemAt": [TASKS, {"$mod": ["$n", 10]}]}, "pending", later)
    _insert(db, 3 * DUE, FUTURE, {"$arrayElemAt": [TASKS, {"$mod": ["$n", 3]}]}, "pending", before)
    _insert(db, RUNNING, 2 * FUTURE, TASKS[0], "processing", later)
    _insert(db, LOST, 3 * FUTURE, TASKS[0], "processing", before)
    _insert(db, 10_000, 4 * FUTURE, TASKS[0], "completed", None)
    _insert(db, FAILED, 5 * FUTURE, TASKS[1], "failed", None)


def _insert(db: Database[Document], count: int, first: int, task: Any, status: str, next_run_at: Any) -> None:
    record = {
        "sourceDocId": {"$add": ["$n", first]},
        "task": task,
        "status": status,
        "nextRunAt": next_run_at,
        "attempts": {"$literal": 0},
    }
    pipeline: list[Document] = [
        {"$documents": {"$map": {"input": {"$range": [0, count]}, "as": "n", "in": {"n": "$$n"}}}},
        {"$replaceWith": record},
        {"$merge": {"into": "orders_tasks"}},
    ]
    db.aggregate(pipeline).to_list()


# -- reading an explanation


def parts(explanation: Any) -> Iterator[Mapping[str, Any]]:
    """Every document within an explanation."""
    if isinstance(explanation, dict):
        document = cast(Document, explanation)
        yield document
        for member in document.values():
            yield from parts(member)
    elif isinstance(explanation, list):
        for member in cast(list[Any], explanation):
            yield from parts(member)


def stages(explanation: Any) -> set[str]:
    """The names of the stages that were executed, those of rejected plans left out."""
    chosen: list[Document] = [dict(part) for part in parts(_chosen(explanation))]
    return {part["stage"] for part in chosen if isinstance(part.get("stage"), str)}


def _chosen(explanation: Any) -> Any:
    if isinstance(explanation, dict):
        document = cast(Document, explanation)
        return {k: _chosen(v) for k, v in document.items() if k not in ("rejectedPlans", "allPlansExecution")}
    if isinstance(explanation, list):
        return [_chosen(member) for member in cast(list[Any], explanation)]
    return explanation


def examined(explanation: Any) -> tuple[int, int]:
    """Keys and documents that were examined, in all executions together."""
    found = [part for part in parts(_chosen(explanation)) if "totalKeysExamined" in part]
    assert found, "no executionStats in the explanation"
    return sum(p["totalKeysExamined"] for p in found), sum(p["totalDocsExamined"] for p in found)


async def explain(db: AsyncDatabase[Document], command: Mapping[str, Any]) -> Document:
    """How the server executes a command that was sent."""
    said = {k: v for k, v in command.items() if not k.startswith(("$", "lsid", "txn")) and k != "maxTimeMS"}
    if "pipeline" in said:
        # Explained without the merge: what is read is the same, and nothing is written.
        said["pipeline"] = [stage for stage in said["pipeline"] if "$merge" not in stage]
    said.pop("writeConcern", None)
    said.pop("readConcern", None)
    # Bounds over all dates are beyond Python's.
    any_date = CodecOptions[Document](datetime_conversion=DatetimeConversion.DATETIME_AUTO)
    return await db.command({"explain": said, "verbosity": "executionStats"}, codec_options=any_date)


async def explain_all(db: AsyncDatabase[Document], commands: Sequence[Mapping[str, Any]]) -> list[Document]:
    """The explanations of several commands; none of them scans a collection."""
    assert commands, "nothing was sent"
    explanations = [await explain(db, command) for command in commands]
    for explanation in explanations:
        assert "COLLSCAN" not in stages(explanation), explanation
    return explanations


# -- looks


async def test_agenda_is_a_distinct_scan_of_one_key_for_each_task(watched: Rig) -> None:
    pipeline = look_pipeline(watched.source.tasks, TASKS, {})
    explanation = await explain(
        watched.db, {"aggregate": watched.rows.name, "pipeline": pipeline, "cursor": {}}
    )
    assert "DISTINCT_SCAN" in stages(explanation)
    assert not {"COLLSCAN", "SORT", "FETCH"} & stages(explanation)
    keys, documents = examined(explanation)
    assert keys <= 2 * len(TASKS) + 2
    assert documents == 0


async def test_due_records_are_a_bounded_range_of_the_due_index(watched: Rig, commands: Commands) -> None:
    limit = 20
    look = await watched.records.look(TASKS, dict.fromkeys(TASKS, Wanted(limit)))
    assert {name: len(ids) for name, ids in look.due.items()} == dict.fromkeys(TASKS[:3], limit)
    (sent,) = commands.named("aggregate", watched.rows.name)
    unions = [stage["$unionWith"] for stage in sent["pipeline"] if "$unionWith" in stage]
    of_records = [union for union in unions if union["coll"] == watched.rows.name]
    assert len(of_records) == len(TASKS)
    for task, union in zip(TASKS, of_records, strict=True):
        (explanation,) = await explain_all(
            watched.db, [{"aggregate": watched.rows.name, "pipeline": union["pipeline"], "cursor": {}}]
        )
        assert "SORT" not in stages(explanation)
        # The future is out of bounds: not a key of it is looked at.
        keys, documents = examined(explanation)
        due = limit if task in TASKS[:3] else 0
        assert (keys <= due + 1, documents <= due) == (True, True), (task, keys, documents)


async def test_whole_look_examines_a_few_keys_more_than_it_finds(watched: Rig, commands: Commands) -> None:
    await watched.records.look(TASKS, dict.fromkeys(TASKS, Wanted(20)))
    (explanation,) = await explain_all(watched.db, commands.named("aggregate", watched.rows.name))
    assert "SORT" not in stages(explanation)
    keys, _ = examined(explanation)
    assert keys <= 3 * 20 + 4 * len(TASKS)


async def test_look_of_a_flood_examines_only_what_it_finds(watched: Rig, commands: Commands) -> None:
    everything = (await watched.records.look(TASKS[:3], dict.fromkeys(TASKS[:3], Wanted(30)))).reached
    commands.sent.clear()
    wanted = {name: Wanted(20, since=reached) for name, reached in everything.items()}
    look = await watched.records.look(TASKS[:3], wanted)
    assert {name: len(ids) for name, ids in look.due.items()} == dict.fromkeys(TASKS[:3], 20)
    (explanation,) = await explain_all(watched.db, commands.named("aggregate", watched.rows.name))
    assert "SORT" not in stages(explanation)
    assert max(examined(explanation)) <= 3 * 20 + 3


async def test_globals_are_read_by_id(watched: Rig, commands: Commands) -> None:
    await watched.records.look(TASKS, {})
    (sent,) = commands.named("aggregate", watched.rows.name)
    (union,) = [stage["$unionWith"] for stage in sent["pipeline"] if "$unionWith" in stage]
    await watched.db[union["coll"]].insert_one({})
    (explanation,) = await explain_all(
        watched.db, [{"aggregate": union["coll"], "pipeline": union["pipeline"], "cursor": {}}]
    )
    assert examined(explanation)[0] <= 1


# -- claims and ends


async def test_claim_and_its_end_go_by_id(watched: Rig, commands: Commands) -> None:
    look = await watched.records.look(TASKS, {TASKS[0]: Wanted(50)})
    claimed = await watched.records.claim(look.due[TASKS[0]], owner="me", lease=LEASE)
    assert len(claimed) == 50
    done = states.completed(duration_ms=1, debounce=LEASE, history_limit=5)
    assert await watched.records.settle(claimed[0].token, {one.id: done for one in claimed}) == set()
    updates, finds = (commands.named(name, watched.rows.name) for name in ("update", "find"))
    assert (len(updates), len(finds)) == (2, 1)
    for explanation in await explain_all(watched.db, [*updates, *finds]):
        assert max(examined(explanation)) <= 2 * 50 + 1


async def test_suspects_are_found_among_the_running_only(watched: Rig, commands: Commands) -> None:
    found = await watched.records.suspects(TASKS, 32)
    assert len(found) == LOST
    (explanation,) = await explain_all(watched.db, commands.named("find", watched.rows.name))
    keys, documents = examined(explanation)
    assert keys <= LOST + 4 * len(TASKS)
    assert documents == LOST


async def test_dead_letters_go_by_id(watched: Rig, commands: Commands) -> None:
    found = await watched.records.suspects(TASKS, 32)
    assert await watched.records.fail_suspects([one.id for one in found], "why", 5) == LOST
    (explanation,) = await explain_all(watched.db, commands.named("update", watched.rows.name))
    assert max(examined(explanation)) <= 2 * LOST + 1
    await watched.rows.update_many(
        {"_id": {"$in": [one.id for one in found]}},
        {"$set": {"status": "processing", "nextRunAt": LONG_AGO}},
    )


# -- plans


@pytest.mark.parametrize("count", [40, 200])
async def test_plan_reads_documents_by_id_and_records_by_the_unique_index(
    watched: Rig, commands: Commands, count: int
) -> None:
    tasks = [watched.task(name) for name in TASKS[:2]]
    await watched.documents.insert_many(
        [{"_id": number, "status": "paid" if number % 2 else "x"} for number in range(2 * count)]
    )
    commands.sent.clear()
    await watched.plan(*tasks, ids=range(count))
    (planned, left) = await explain_all(watched.db, commands.named("aggregate", "orders"))
    assert examined(planned)[1] == count
    # Read again are only documents that have a record: at most those just planned, and one in ten.
    assert examined(left)[1] <= count * 0.6
    (candidates,) = await explain_all(watched.db, commands.named("find", watched.rows.name))
    keys, documents = examined(candidates)
    assert keys <= 3 * count
    # A large batch is asked for in a covered query; of a small one, what was just planned can be left out.
    assert documents <= (0 if count > 100 else 2 * count)


async def test_records_of_deleted_documents_are_found_by_the_unique_index(
    watched: Rig, commands: Commands
) -> None:
    task = watched.task(TASKS[0])
    await watched.documents.insert_many([{"_id": number, "status": "paid"} for number in range(20)])
    deleted = await watched.delete(*range(20))
    commands.sent.clear()
    await watched.plan_deleted(task, deleted)
    (explanation,) = await explain_all(watched.db, commands.named("update", watched.rows.name))
    keys, documents = examined(explanation)
    assert keys <= 3 * 20
    assert documents <= 20


async def test_running_records_among_a_batch_are_found_by_the_unique_index(
    watched: Rig, commands: Commands
) -> None:
    leader, ids = watched.leader(), [2 * FUTURE, 2 * FUTURE + 1, 5, 6, "none"]
    running = await leader.running_among(watched.source, TASKS[:1], ids, LEASE)
    assert running == {2 * FUTURE, 2 * FUTURE + 1}
    (explanation,) = await explain_all(watched.db, commands.named("find", watched.rows.name))
    assert examined(explanation)[1] <= len(ids)


async def test_condition_of_a_run_is_read_by_id(watched: Rig, commands: Commands) -> None:
    task = watched.task()
    await watched.documents.insert_many(
        [{"_id": number, "status": "paid", "total": 1} for number in range(50)]
    )
    commands.sent.clear()
    assert await watched.sources.fetch(task.definition, 7, {"total": 1}) is not None
    assert len(await watched.sources.look(task.definition, [7, 8, 9], with_document=True)) == 3
    sent = [*commands.named("find", "orders"), *commands.named("aggregate", "orders")]
    explanations = await explain_all(watched.db, sent)
    assert [examined(explanation)[1] for explanation in explanations] == [1, 3]


# -- metrics


async def test_backlog_is_counted_by_keys_alone_and_looks_at_one_record_for_each_age(watched: Rig) -> None:
    for pipeline in _subpipelines(depths_pipeline(watched.source.tasks, TASKS)):
        command: Document = {"aggregate": watched.rows.name, "pipeline": pipeline, "cursor": {}}
        (explanation,) = await explain_all(watched.db, [command])
        counts = any("$count" in stage for stage in pipeline)
        assert ("COUNT_SCAN" in stages(explanation)) == counts
        assert "SORT" not in stages(explanation)
        keys, documents = examined(explanation)
        rows = await (await watched.rows.aggregate(pipeline)).to_list()
        found = rows[0].get("n", 1) if rows else 0
        # COUNT_SCAN looks one key beyond the last.
        assert keys <= found + 1
        assert documents <= (0 if counts else 1)


def _subpipelines(pipeline: list[Document]) -> list[list[Document]]:
    unions = [stage["$unionWith"]["pipeline"] for stage in pipeline if "$unionWith" in stage]
    return [[stage for stage in pipeline if "$unionWith" not in stage], *unions]


# -- indexes


async def test_indexes_are_those_that_are_promised_and_hold_no_finished_records(rig: Rig) -> None:
    indexes = await rig.rows.index_information()
    assert indexes["oplogue_record"]["key"] == [("sourceDocId", 1), ("task", 1)]
    assert indexes["oplogue_record"]["unique"] is True
    (polling,) = [index for name, index in indexes.items() if name == "oplogue_due"]
    assert polling["partialFilterExpression"] == {"nextRunAt": {"$type": "date"}}


async def test_indexes_for_metrics_hold_no_record_that_runs_once_and_succeeds(rig: Rig) -> None:
    """Else every task would pay two writes for them."""
    done = states.completed(duration_ms=1, debounce=LEASE, history_limit=5)
    await rig.documents.insert_one({"_id": 1, "status": "paid"})
    await rig.plan(rig.task(debounce=0))
    assert await _keys_for_metrics(rig) == (0, 0)
    record = await rig.claim_one(1)
    assert await _keys_for_metrics(rig) == (0, 0)
    await rig.settle(record, done)
    assert await _keys_for_metrics(rig) == (0, 0)


async def _keys_for_metrics(rig: Rig) -> tuple[int, int]:
    keys = (await rig.db.command({"validate": rig.rows.name}))["keysPerIndex"]
    return keys["oplogue_failed"], keys["oplogue_waiting"]


async def test_equal_index_under_another_name_is_as_good(rig: Rig) -> None:
    await rig.rows.drop()
    await rig.rows.create_index([("sourceDocId", 1), ("task", 1)], name="theirs", unique=True)
    await rig.records.ensure_indexes()
    await rig.records.ensure_indexes()
    assert {"theirs", "oplogue_due"} < set(await rig.rows.index_information())
    await rig.documents.insert_one({"_id": 1, "status": "paid"})
    await rig.plan(rig.task())
    assert (await rig.row())["status"] == "pending"
