"""Orphans: finished records whose source document is gone, or (by policy) outside the filter.

Found in pages of the records, by a look-up of their documents on the server, and deleted by one conditional
statement: a record that became pending meanwhile survives, whatever the look-up saw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from oplogue.model.definition import Namespace, TaskDefinition
from oplogue.model.states import Status
from oplogue.store.connection import Client, Collection, bounded, ours
from oplogue.store.documents import server_time
from oplogue.store.expressions import NOW, after, literal, milliseconds
from oplogue.store.fields import aware, aware_or_none

_PAGE = 1_000
_CLEANUP = "cleanup"
_FINISHED = [Status.COMPLETED, Status.FAILED]
_PATIENCE = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Turn:
    """When cleanup last ran, and the time now, both by the server's clock."""

    last: datetime
    now: datetime


class Cleanup:
    """Cleanup of task records, and its schedule in the globals collection."""

    def __init__(self, client: Client, globals_: Namespace, *, bound: timedelta) -> None:
        self._client = client
        self._globals: Collection = ours(client, globals_)
        self._bound = bound

    async def sweep(self, definition: TaskDefinition, *, doc_ids: Sequence[Any] | None = None) -> int:
        """Delete the orphans of one task, among all its records or those of some documents; how many."""
        policy = definition.cleanup_policy
        if policy.delete_when == "never":
            return 0
        records = ours(self._client, definition.source.tasks)
        old = _finished_for(policy.keep_for)
        theirs: dict[str, Any] = {"task": definition.task, **old}
        if doc_ids is not None:
            theirs["sourceDocId"] = {"$in": list(doc_ids)}
        needs_now = definition.filter.needs_now
        now = await server_time(self._client, bound=self._bound) if needs_now else None
        deleted, last = 0, None
        while True:
            beyond: dict[str, Any] = {} if last is None else {"_id": {"$gt": last}}
            with bounded(_PATIENCE):
                page = await (await records.aggregate(_page(theirs | beyond, definition, now))).to_list()
                orphans = [row["_id"] for row in page if row["orphan"]]
                if orphans:
                    still = {"_id": {"$in": orphans}, **old}
                    deleted += (await records.delete_many(still)).deleted_count
            if len(page) < _PAGE:
                return deleted
            last = page[-1]["_id"]

    async def turn(self) -> Turn:
        """When the last cleanup was; the first look at an empty schedule counts as one."""
        with bounded(self._bound):
            await self._globals.update_one(
                {"_id": _CLEANUP}, [{"$set": {"lastAt": {"$ifNull": ["$lastAt", NOW]}}}], upsert=True
            )
            found = await self._globals.find_one({"_id": _CLEANUP}, {"lastAt": 1, "now": NOW})
        assert found is not None  # it was just made
        return Turn(aware(found["lastAt"]), aware(found["now"]))

    async def last(self) -> datetime | None:
        """When the last cleanup by schedule was; None before the first."""
        with bounded(self._bound):
            found = await self._globals.find_one({"_id": _CLEANUP, "by": {"$exists": True}}, {"lastAt": 1})
        return None if found is None else aware_or_none(found.get("lastAt"))

    async def take(self, turn: Turn, owner: str) -> bool:
        """Take the turn that is due; False where another instance took it."""
        with bounded(self._bound):
            result = await self._globals.update_one(
                {"_id": _CLEANUP, "lastAt": turn.last}, [{"$set": {"lastAt": NOW, "by": literal(owner)}}]
            )
        return bool(result.matched_count)


def _finished_for(keep_for: timedelta) -> dict[str, Any]:
    # Dates that are missing don't count in $max.
    newest = {"$max": ["$updatedAt", "$lastFinalizedAt", "$createdAt"]}
    return {
        "status": {"$in": _FINISHED},
        "$expr": {"$lte": [after(newest, milliseconds(keep_for)), NOW]},
    }


def _page(theirs: dict[str, Any], definition: TaskDefinition, now: datetime | None) -> list[dict[str, Any]]:
    outside_too = definition.cleanup_policy.delete_when == "source_document_deleted_or_no_longer_matching"
    condition = [{"$match": definition.filter.match(now)}] if outside_too else []
    return [
        {"$match": theirs},
        {"$sort": {"_id": 1}},
        {"$limit": _PAGE},
        {
            "$lookup": {
                "from": definition.source.collection,
                "localField": "sourceDocId",
                "foreignField": "_id",
                "pipeline": [*condition, {"$project": {"_id": 1}}],
                "as": "document",
            }
        },
        {"$project": {"orphan": {"$eq": [{"$size": "$document"}, 0]}}},
    ]
