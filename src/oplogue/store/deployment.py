"""Counts of what a deployment would do to the records. Reads only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, TypeVar

from oplogue.model.definition import Namespace, TaskDefinition
from oplogue.model.deployment import Expected
from oplogue.model.states import RUNNING, Status
from oplogue.store.connection import Client, bounded, ours
from oplogue.store.documents import server_time
from oplogue.store.expressions import literal
from oplogue.store.faults import StoreError, is_stalled

_PATIENCE = timedelta(minutes=2)
"""A collection of millions takes a while; whoever asks for a plan can wait for it."""

Result = TypeVar("Result")


class Forecast:
    """Counts on the server."""

    def __init__(self, client: Client, *, bound: timedelta) -> None:
        self._client = client
        self._bound = bound

    async def reconciliation(self, definition: TaskDefinition) -> Expected:
        """What a reconciliation of this task would plan: decided by the server as the planner's statements are."""
        now = await server_time(self._client, bound=self._bound) if definition.filter.needs_now else None
        record = {"_id": 0, "v": "$lastObservedValues", "left": "$oplogue.left", "parked": "$oplogue.parked"}
        pipeline: list[dict[str, Any]] = [
            {"$match": definition.filter.match(now)},
            {"$project": {"v": definition.projection.expression}},
            {
                "$lookup": {
                    "from": definition.source.tasks.collection,
                    "localField": "_id",
                    "foreignField": "sourceDocId",
                    "pipeline": [{"$match": {"task": definition.task}}, {"$project": record}],
                    "as": "record",
                }
            },
            {"$set": {"record": {"$first": "$record"}}},
            {"$group": {"_id": _state(), "count": {"$sum": 1}}},
        ]

        async def count() -> dict[str, int]:
            rows = await ours(self._client, definition.source).aggregate(pipeline, allowDiskUse=True)
            return {row["_id"]: row["count"] async for row in rows}

        found = await self._patiently(count)
        if found is None:
            return Expected(None, None)
        return Expected(found.get("new", 0), found.get("changed", 0))

    async def reprocessed(self, task: str, source: Namespace, *, everything: bool) -> int | None:
        """How many records a new handler version would run again."""
        statuses = (Status.COMPLETED, Status.FAILED, *RUNNING) if everything else (Status.FAILED,)
        return await self._count(source, {"task": task, "status": {"$in": list(statuses)}})

    async def records(self, task: str, source: Namespace) -> int | None:
        """How many records there are."""
        return await self._count(source, {"task": task})

    async def _count(self, source: Namespace, which: dict[str, Any]) -> int | None:
        records = ours(self._client, source.tasks)
        return await self._patiently(lambda: records.count_documents(which))

    async def _patiently(self, read: Callable[[], Awaitable[Result]]) -> Result | None:
        """What is read; None where it takes too long."""
        try:
            with bounded(_PATIENCE):
                return await read()
        except StoreError as error:
            if not is_stalled(error):
                raise
            return None


def _state() -> dict[str, Any]:
    changed = {
        "$or": [
            {"$ne": ["$v", "$record.v"]},
            {"$eq": ["$record.left", True]},
            {"$eq": ["$record.parked", True]},
        ]
    }
    missing = {"case": {"$eq": [{"$type": "$record"}, "missing"]}, "then": literal("new")}
    return {
        "$switch": {
            "branches": [missing, {"case": changed, "then": literal("changed")}],
            "default": literal("unchanged"),
        }
    }
