"""Ranges of ids and checkpoints: nothing left out, nothing read but the index, nothing by a former leader."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from bson import Binary, Decimal128, Int64, MaxKey, MinKey, ObjectId, Timestamp
from pymongo import AsyncMongoClient
from pymongo.asynchronous.database import AsyncDatabase
from tests.support.rig import BOUND, Document, Rig

from oplogue.errors import LeadershipLostError
from oplogue.store.definitions import StoredTask
from oplogue.store.documents import key_of
from oplogue.store.ranges import Edge
from oplogue.store.scans import Checkpoint, Scans

IDS: list[Any] = [
    *(None, MinKey(), MaxKey(), True, False, "", "a", "$$ROOT", 1, Int64(2**60), -1.5, float("inf")),
    *(float("nan"), Decimal128("2.25"), ObjectId(), {}, {"a": 1}, {"a": {"b": "$c"}}, Timestamp(1, 1)),
    *(datetime(2001, 1, 1, tzinfo=UTC), Binary(b"\x01", 5), Binary(uuid.UUID(int=7).bytes, 4)),
]


@pytest.fixture
async def scans(rig: Rig) -> Scans:
    """Scans of the rig's collection."""
    return Scans(rig.client, rig.globals, bound=BOUND)


@pytest.fixture
async def standard(database_uri: str) -> AsyncIterator[AsyncMongoClient[Document]]:
    """A client that makes UUIDs of what is stored as such."""
    async with AsyncMongoClient[Document](database_uri, uuidRepresentation="standard") as client:
        yield client


async def scanned(scans: Scans, rig: Rig, size: int) -> list[list[Any]]:
    """The ids of all ranges, as a plan would find them."""
    found: list[list[Any]] = []
    after: Edge | None = None
    while True:
        following = await scans.ranges.following(rig.source, after, size)
        rows = await rig.documents.find(following.selection(), {"_id": 1}).sort("_id", 1).to_list()
        ids = [row["_id"] for row in rows]
        assert list(map(key_of, await scans.ranges.ids(rig.source, following))) == list(map(key_of, ids))
        assert following.size == len(ids)
        found.append(ids)
        if following.last is None:
            return found
        after = following.last


@pytest.mark.parametrize("size", [1, 2, 7, len(IDS), 100])
async def test_ids_of_every_type_are_in_one_range_each(rig: Rig, scans: Scans, size: int) -> None:
    await rig.documents.insert_many([{"_id": id_} for id_ in IDS])
    ranges = await scanned(scans, rig, size)
    ids = [key_of(id_) for ids in ranges for id_ in ids]
    assert sorted(map(repr, ids)) == sorted(repr(key_of(id_)) for id_ in IDS)
    assert max(map(len, ranges)) <= size


async def test_a_collection_without_documents_is_one_empty_range(rig: Rig, scans: Scans) -> None:
    assert await scanned(scans, rig, 10) == [[]]


async def test_an_edge_that_was_deleted_leaves_nothing_out(rig: Rig, scans: Scans) -> None:
    await rig.documents.insert_many([{"_id": number} for number in range(10)])
    first = await scans.ranges.following(rig.source, None, 4)
    await rig.documents.delete_one({"_id": 3})
    second = await scans.ranges.following(rig.source, first.last, 4)
    assert first.last == Edge(3)
    rows = await rig.documents.find(second.selection()).to_list()
    assert {row["_id"] for row in rows} >= {4, 5, 6, 7}


async def test_the_ends_of_ranges_are_found_without_reading_a_document(
    rig: Rig, db: AsyncDatabase[Document], scans: Scans
) -> None:
    await rig.documents.insert_many([{"_id": number} for number in range(50)])
    await db.command("profile", 2)
    await scans.ranges.following(rig.source, Edge(9), 20)
    await scans.ranges.ids(rig.source, await scans.ranges.following(rig.source, Edge(29), 30))
    await db.command("profile", 0)
    finds = await db["system.profile"].find({"op": "query", "ns": str(rig.source)}).to_list()
    assert len(finds) == 6
    assert max(find["docsExamined"] for find in finds) == 0
    assert max(find["keysExamined"] for find in finds) <= 21


async def test_a_range_is_read_by_the_index(rig: Rig, db: AsyncDatabase[Document]) -> None:
    await rig.documents.insert_many([{"_id": number, "status": "paid"} for number in range(50)])
    scans = Scans(rig.client, rig.globals, bound=BOUND)
    following = await scans.ranges.following(rig.source, Edge(9), 20)
    plan = await db.command(
        "explain", {"find": "orders", "filter": following.selection()}, verbosity="executionStats"
    )
    assert plan["executionStats"]["totalDocsExamined"] == 20


async def test_uuids_of_a_client_that_decodes_them_are_scanned_on(
    rig: Rig, standard: AsyncMongoClient[Document]
) -> None:
    ids = [Binary(uuid.UUID(int=number).bytes, 4) for number in range(3)]
    await rig.documents.insert_many([{"_id": id_} for id_ in ids])
    scans, tasks = Scans(standard, rig.globals, bound=BOUND), [StoredTask(rig.task(), False, epoch=1)]
    following = await scans.ranges.following(rig.source, None, 2)
    assert following.last == Edge(ids[1])
    await scans.begin(rig.source, tasks, 3, term=1)
    await scans.save(rig.source, Checkpoint(following.last, 2), 1.0, term=1)
    assert (await scans.begin(rig.source, tasks, 3, term=2)).last == Edge(ids[1])


# -- checkpoints


@pytest.mark.parametrize("id_", IDS, ids=repr)
async def test_a_checkpoint_holds_an_id_of_any_type(rig: Rig, scans: Scans, id_: Any) -> None:
    tasks = [StoredTask(rig.task(), False, epoch=1)]
    assert await scans.begin(rig.source, tasks, 100, term=1) == Checkpoint()
    await scans.save(rig.source, Checkpoint(Edge(id_), 5), 2.5, term=1)
    again = await scans.begin(rig.source, tasks, 100, term=2)
    assert again.documents == 5
    assert again.last is not None
    assert key_of(again.last.id) == key_of(id_)


async def test_a_former_leader_moves_no_checkpoint(rig: Rig, scans: Scans) -> None:
    tasks = [StoredTask(rig.task(), False, epoch=1)]
    await scans.begin(rig.source, tasks, 100, term=1)
    await scans.begin(rig.source, tasks, 100, term=2)
    reached = Checkpoint(Edge(7), 7)
    await scans.save(rig.source, reached, 1.0, term=2)
    with pytest.raises(LeadershipLostError):
        await scans.save(rig.source, Checkpoint(Edge(9), 9), 1.0, term=1)
    with pytest.raises(LeadershipLostError):
        await scans.finish(rig.source, term=1)
    with pytest.raises(LeadershipLostError):
        await scans.begin(rig.source, [StoredTask(rig.task(), False, epoch=2)], 100, term=1)
    assert await scans.begin(rig.source, tasks, 100, term=3) == reached


async def test_a_checkpoint_is_for_its_requests_alone(rig: Rig, scans: Scans) -> None:
    one, other = StoredTask(rig.task("one"), False, epoch=5), StoredTask(rig.task("other"), False, epoch=5)
    reached = Checkpoint(Edge(7), 7)
    for asked in ([one, other], [other], [StoredTask(rig.task("one"), False, epoch=6)]):
        await scans.begin(rig.source, [one], 100, term=1)
        await scans.save(rig.source, reached, 1.0, term=1)
        assert await scans.begin(rig.source, [one], 100, term=1) == reached
        assert await scans.begin(rig.source, asked, 100, term=1) == Checkpoint()


async def test_a_scan_that_is_over_is_not_gone_on_with(rig: Rig, scans: Scans) -> None:
    tasks = [StoredTask(rig.task(), False, epoch=1)]
    await scans.begin(rig.source, tasks, 100, term=1)
    await scans.save(rig.source, Checkpoint(Edge(7), 7, complete=True), 1.0, term=1)
    assert (await scans.begin(rig.source, tasks, 100, term=2)).complete
    await scans.finish(rig.source, term=2)
    assert await scans.begin(rig.source, tasks, 100, term=3) == Checkpoint()


@pytest.mark.parametrize("nonsense", ["x", 2**60, None, [], {"a": 1}], ids=repr)
async def test_a_checkpoint_edited_into_nonsense_is_overwritten(
    rig: Rig, scans: Scans, db: AsyncDatabase[Document], nonsense: Any
) -> None:
    tasks = [StoredTask(rig.task(), False, epoch=1)]
    fields = ("requests", "term", "last", "documents", "estimate", "perSecond", "at", "startedAt")
    for name in fields:
        await scans.begin(rig.source, tasks, 100, term=1)
        await db["_oplogue_globals"].update_one({"_id": f"scan:{rig.source}"}, {"$set": {name: nonsense}})
        await scans.progress(tasks)
        await scans.begin(rig.source, tasks, 100, term=1)
        await scans.save(rig.source, Checkpoint(Edge(7), 7), 1.0, term=1)
        assert (await scans.begin(rig.source, tasks, 100, term=1)).documents == 7
        await scans.finish(rig.source, term=1)
