"""Orphans: finished records whose source document is gone, or (by policy) outside the filter.

Records are read in ranges of their own ids, for all tasks of a collection at once: however many records other tasks
have, a look is at a bounded number of them. Their documents are looked up on the server, and orphans deleted by one
conditional statement, which asks again for what the look has seen: a record that was planned anew meanwhile
survives, whether it waits, runs, or has run already.

The schedule is one document in the globals collection. A turn is held like a lock while its sweep goes on, and
counts when it is done: one that was broken off is taken again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from oplogue.model.definition import Namespace, TaskDefinition
from oplogue.model.states import Status
from oplogue.store.connection import PLAIN, Client, Collection, bounded, ours
from oplogue.store.documents import collation_of, server_time
from oplogue.store.expressions import NOW, Expr, Table, after, literal, milliseconds, when
from oplogue.store.fields import aware, aware_or_none
from oplogue.store.ranges import Edge, Ranges

_PAGE = 1_000
_CLEANUP = "cleanup"
_HELD_FOR = timedelta(minutes=2)
"""How long a turn is held without a sign of life: well above the time of one page."""
_FINISHED = [Status.COMPLETED, Status.FAILED]
_PATIENCE = timedelta(seconds=30)
_LAST_AT: Expr = when({"$eq": [{"$type": "$lastAt"}, "date"]}, "$lastAt", NOW)


@dataclass(frozen=True, slots=True)
class Turn:
    """When cleanup last ran, and the time now, both by the server's clock."""

    last: datetime
    now: datetime


@dataclass(frozen=True, slots=True)
class Swept:
    """What one page of a sweep deleted, by task, and where the next begins; None after the last."""

    deleted: Mapping[str, int]
    last: Edge | None


class Cleanup:
    """Cleanup of task records, and its schedule in the globals collection."""

    def __init__(self, client: Client, globals_: Namespace, *, bound: timedelta) -> None:
        self._client = client
        self._globals: Collection = ours(client, globals_)
        self._ranges = Ranges(client, bound=_PATIENCE)
        self._bound = bound

    async def sweep(self, tasks: Sequence[TaskDefinition], beyond: Edge | None) -> Swept:
        """Delete the orphans among the next records of one collection's tasks."""
        page = await self._ranges.following(tasks[0].source.tasks, beyond, _PAGE)
        return Swept(await self._delete_orphans(tasks, page.selection()), page.last)

    async def sweep_documents(
        self, tasks: Sequence[TaskDefinition], doc_ids: Sequence[Any]
    ) -> Mapping[str, int]:
        """Delete the orphans among the records of these documents, by task."""
        return await self._delete_orphans(tasks, {"sourceDocId": {"$in": list(doc_ids)}})

    async def _delete_orphans(
        self, tasks: Sequence[TaskDefinition], among: Mapping[str, Any]
    ) -> Mapping[str, int]:
        deleted: Counter[str] = Counter()
        swept = [task for task in tasks if task.cleanup_policy.delete_when != "never"]
        if not swept:
            return deleted
        # Filters and ids mean what they mean in the source.
        collation = await collation_of(self._client, swept[0].source, bound=self._bound)
        gone = [task for task in swept if not _outside_too(task)]
        for group in ([gone] if gone else []) + [[task] for task in swept if _outside_too(task)]:
            deleted += await self._delete_group(group, among, collation)
        return deleted

    async def _delete_group(
        self, tasks: Sequence[TaskDefinition], among: Mapping[str, Any], collation: Mapping[str, Any] | None
    ) -> Counter[str]:
        """Several tasks that ask for the document alone, or one that asks for its filter too."""
        source = tasks[0].source
        records = ours(self._client, source.tasks).with_options(codec_options=PLAIN)
        condition: list[dict[str, Any]] = []
        if _outside_too(tasks[0]):
            asks = tasks[0].filter.needs_now
            now = await server_time(self._client, bound=self._bound) if asks else None
            condition = [{"$match": tasks[0].filter.match(now)}]
        with bounded(_PATIENCE):
            found = await records.aggregate(_orphans(tasks, among, source, condition), collation=collation)
            orphans = await found.to_list()
        deleted: Counter[str] = Counter()
        for task in tasks:
            theirs = [row for row in orphans if row["task"] == task.task]
            if theirs:
                still = {"_id": {"$in": [row["_id"] for row in theirs]}}
                seen = _old([task], literal(theirs[0]["seen"]))
                with bounded(_PATIENCE):
                    result = await records.delete_many({**still, **seen})
                deleted[task.task] = result.deleted_count
        return deleted

    # -- the schedule

    async def turn(self) -> Turn:
        """When the last cleanup was; the first look at an empty schedule counts as one."""
        with bounded(self._bound):
            await self._globals.update_one({"_id": _CLEANUP}, [{"$set": {"lastAt": _LAST_AT}}], upsert=True)
            found = await self._globals.find_one({"_id": _CLEANUP}, {"lastAt": 1, "now": NOW})
        assert found is not None  # it was just made
        return Turn(aware(found["lastAt"]), aware(found["now"]))

    async def last(self) -> datetime | None:
        """When the last cleanup by schedule ended; None before the first."""
        with bounded(self._bound):
            found = await self._globals.find_one({"_id": _CLEANUP}, {"doneAt": 1})
        return None if found is None else aware_or_none(found.get("doneAt"))

    async def take(self, turn: Turn, owner: str) -> bool:
        """Take the turn that is due; False where another instance has it, or has had it."""
        held = {"$and": [{"$eq": [{"$type": "$heldUntil"}, "date"]}, {"$gt": ["$heldUntil", NOW]}]}
        free = {"_id": _CLEANUP, "lastAt": turn.last, "$expr": {"$not": [held]}}
        taken = {"by": literal(owner), "takenAt": NOW, "heldUntil": after(NOW, milliseconds(_HELD_FOR))}
        with bounded(self._bound):
            result = await self._globals.update_one(free, [{"$set": taken}])
        return bool(result.matched_count)

    async def hold(self, turn: Turn, owner: str) -> bool:
        """The sweep goes on; False where another instance has taken the turn."""
        return await self._change(turn, owner, {"heldUntil": after(NOW, milliseconds(_HELD_FOR))})

    async def let_go(self, turn: Turn, owner: str) -> None:
        """The sweep was broken off: another instance may take the turn at once."""
        await self._change(turn, owner, {"heldUntil": NOW})

    async def done(self, turn: Turn, owner: str) -> None:
        """The sweep is done; the next turn counts from when this one was taken."""
        await self._change(turn, owner, {"lastAt": "$takenAt", "doneAt": NOW, "heldUntil": NOW})

    async def _change(self, turn: Turn, owner: str, change: Mapping[str, Expr]) -> bool:
        mine = {"_id": _CLEANUP, "by": owner, "lastAt": turn.last}
        with bounded(self._bound):
            result = await self._globals.update_one(mine, [{"$set": dict(change)}])
        return bool(result.matched_count)


def _outside_too(task: TaskDefinition) -> bool:
    return task.cleanup_policy.delete_when == "source_document_deleted_or_no_longer_matching"


def _old(tasks: Sequence[TaskDefinition], moment: Expr) -> dict[str, Any]:
    """Finished, and kept for long enough at that moment."""
    keep = Table(
        "$task", [(task.task, {"for": milliseconds(task.cleanup_policy.keep_for)}) for task in tasks]
    )
    # What is missing, or was edited into no date, doesn't count in $max.
    dates = [
        when({"$eq": [{"$type": field}, "date"]}, field, None)
        for field in ("$updatedAt", "$lastFinalizedAt", "$createdAt")
    ]
    # The server's own date is moved: a record's may be at the end of time.
    newest_to_go: Expr = {"$subtract": [moment, keep.get("for")]}
    return {"status": {"$in": _FINISHED}, "$expr": keep.bind({"$lte": [{"$max": dates}, newest_to_go]})}


def _orphans(
    tasks: Sequence[TaskDefinition],
    among: Mapping[str, Any],
    source: Namespace,
    condition: list[dict[str, Any]],
) -> list[dict[str, Any]]:
    return [
        {"$match": dict(among)},
        {"$match": {"task": {"$in": [task.task for task in tasks]}, **_old(tasks, NOW)}},
        {
            "$lookup": {
                "from": source.collection,
                "localField": "sourceDocId",
                "foreignField": "_id",
                "pipeline": [*condition, {"$project": {"_id": 1}}],
                "as": "document",
            }
        },
        {"$match": {"document": {"$size": 0}}},
        {"$project": {"task": 1, "seen": NOW}},
    ]
