"""What operators ask of the task records: lists, counts, retries and deletions, over one collection or all.

A filter on source documents may be any query, also one that only ``find`` takes: matching ids are streamed, some
thousand at a time, and the records asked for by them.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from heapq import nsmallest
from typing import Any

from oplogue.model.definition import Namespace
from oplogue.model.record import HistoryEntry, LastSuccess, Page, TaskRecord
from oplogue.model.states import Status
from oplogue.store.connection import Client, Document, bounded, ours
from oplogue.store.expressions import IS_RUNNING, NOW, Expr, literal, merged, when
from oplogue.store.fields import aware, aware_or_none, document_in, list_in

_BATCH = 1_000
_PATIENCE = timedelta(minutes=5)
"""An operator's query may take longer than the engine's own statements."""

FIELDS: Mapping[str, str] = {
    "id": "_id",
    "task": "task",
    "source_doc_id": "sourceDocId",
    "status": "status",
    "next_run_at": "nextRunAt",
    "due_at": "dueAt",
    "attempts": "attempts",
    "last_error": "lastError",
    "first_error_at": "firstErrorAt",
    "created_at": "createdAt",
    "updated_at": "updatedAt",
    "started_at": "startedAt",
    "completed_at": "completedAt",
    "last_finalized_at": "lastFinalizedAt",
}
"""The fields that a listing may be sorted by, and what they are called in the database."""

Order = Sequence[tuple[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFilter:
    """Which records are meant."""

    tasks: Sequence[str] | None = None
    statuses: Sequence[Status] | None = None
    error_message: str | None = None
    has_error: bool | None = None
    ids: Sequence[Any] | None = None
    source_doc_filter: Mapping[str, Any] | None = None

    def query(self, tasks: Sequence[str] | None) -> dict[str, Any]:
        """The part that the records themselves answer."""
        parts: list[dict[str, Any]] = []
        if tasks is not None:
            parts.append({"task": {"$in": list(tasks)}})
        if self.statuses is not None:
            parts.append({"status": {"$in": list(self.statuses)}})
        if self.ids is not None:
            parts.append({"_id": {"$in": list(self.ids)}})
        if self.error_message is not None:
            parts.append({"lastError": {"$regex": re.escape(self.error_message), "$options": "i"}})
        if self.has_error is not None:
            parts.append({"lastError": {"$ne": None} if self.has_error else None})
        return {"$and": parts} if parts else {}


class Operations:
    """Queries and changes over the records of some source collections."""

    def __init__(self, client: Client, home: str) -> None:
        self._client = client
        self._home = home

    async def list(
        self,
        sources: Mapping[Namespace, Sequence[str] | None],
        which: RecordFilter,
        order: Order,
        skip: int,
        limit: int,
    ) -> Page:
        """One page over all collections, sorted over all of them, and how many there are."""
        found: list[tuple[Namespace, Document]] = []
        for source, tasks in sources.items():
            async for query in self._queries(source, which, tasks):
                with bounded(_PATIENCE):
                    cursor = ours(self._client, source.tasks).find(query).sort(_sort(order))
                    found.extend([(source, row) async for row in cursor.limit(skip + limit)])
            # Only the first of all can be on the page: what was read of the others is let go.
            found = nsmallest(skip + limit, found, key=lambda row: _sort_key(row[1], order))
        items = tuple(_record(source.within(self._home), document) for source, document in found[skip:])
        return Page(items, await self.count(sources, which))

    async def count(self, sources: Mapping[Namespace, Sequence[str] | None], which: RecordFilter) -> int:
        """How many records are meant."""
        total = 0
        for source, tasks in sources.items():
            async for query in self._queries(source, which, tasks):
                with bounded(_PATIENCE):
                    total += await ours(self._client, source.tasks).count_documents(query)
        return total

    async def retry(self, sources: Mapping[Namespace, Sequence[str] | None], which: RecordFilter) -> int:
        """Run records again, at once, with a full set of attempts; one that runs now runs again after that."""
        return await self._each_batch(sources, which, run_again_update())

    async def delete(self, sources: Mapping[Namespace, Sequence[str] | None], which: RecordFilter) -> int:
        """Delete records; a run that is under way finds its lease lost."""
        return await self._each_batch(sources, which, None)

    async def _each_batch(
        self,
        sources: Mapping[Namespace, Sequence[str] | None],
        which: RecordFilter,
        update: list[dict[str, Expr]] | None,
    ) -> int:
        changed = 0
        for source, tasks in sources.items():
            records = ours(self._client, source.tasks)
            async for query in self._queries(source, which, tasks):
                after: dict[str, Any] = {}
                while True:
                    with bounded(_PATIENCE):
                        page = (
                            await records.find({"$and": [query, after]}, {"_id": 1})
                            .sort("_id", 1)
                            .limit(_BATCH)
                            .to_list()
                        )
                        if not page:
                            break
                        ids = [row["_id"] for row in page]
                        # Asked once more with the change itself: a record may have changed since.
                        still = {"$and": [query, {"_id": {"$in": ids}}]}
                        if update is None:
                            changed += (await records.delete_many(still)).deleted_count
                        else:
                            changed += (await records.update_many(still, update)).matched_count
                    after = {"$expr": {"$gt": ["$_id", literal(ids[-1])]}}
        return changed

    async def _queries(
        self, source: Namespace, which: RecordFilter, tasks: Sequence[str] | None
    ) -> AsyncIterator[dict[str, Any]]:
        """The query on the records; several where it hangs on source documents."""
        query = which.query(tasks)
        if which.source_doc_filter is None:
            yield query
            return
        documents = ours(self._client, source).find(which.source_doc_filter, {"_id": 1})
        batch: list[Any] = []
        async with documents:
            async for document in documents:
                batch.append(document["_id"])
                if len(batch) == _BATCH:
                    yield {"$and": [{"sourceDocId": {"$in": batch}}, query]}
                    batch = []
        if batch:
            yield {"$and": [{"sourceDocId": {"$in": batch}}, query]}


def run_again_update() -> list[dict[str, Expr]]:
    """At once, with a full set of attempts; a record that runs now becomes dirty and runs again after that."""
    return [
        {
            "$set": {
                "status": when(IS_RUNNING, literal(Status.PROCESSING_DIRTY), literal(Status.PENDING)),
                "nextRunAt": when(IS_RUNNING, "$nextRunAt", NOW),
                "attempts": when(IS_RUNNING, "$attempts", 0),
                "firstErrorAt": when(IS_RUNNING, "$firstErrorAt", None),
                "oplogue": merged("$oplogue", when(IS_RUNNING, {"manual": True}, {"parked": False})),
            }
        }
    ]


def _sort(order: Order) -> list[tuple[str, int]]:
    return [*((FIELDS[name], direction) for name, direction in order), ("_id", 1)]


def _sort_key(document: Document, order: Order) -> list[_Ordered]:
    pairs = [*((FIELDS[name], direction) for name, direction in order), ("_id", 1)]
    return [_Ordered(document.get(field), direction) for field, direction in pairs]


class _Ordered:
    """A value in the server's order of types, for merging pages of several collections."""

    __slots__ = ("_direction", "_key")

    def __init__(self, value: Any, direction: int) -> None:
        self._key = _rank(value)
        self._direction = direction

    def __lt__(self, other: _Ordered) -> bool:
        if self._key == other._key:
            return False
        try:
            less = self._key < other._key
        except TypeError:
            less = repr(self._key) < repr(other._key)
        return less if self._direction > 0 else not less

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Ordered) and self._key == other._key

    def __hash__(self) -> int:
        return hash(repr(self._key))


def _rank(value: Any) -> tuple[int, Any]:
    match value:
        case None:
            return (0, 0)
        case bool():
            return (5, value)
        case int() | float():
            return (1, value)
        case str():
            return (2, value)
        case datetime():
            return (6, aware(value).timestamp())
        case _:
            return (4, value)


def _record(collection: str, document: Document) -> TaskRecord:
    def date(name: str) -> datetime | None:
        return aware_or_none(document.get(name))

    last_success = document_in(document.get("lastSuccess"))
    succeeded_at = aware_or_none(last_success.get("at"))
    attempts = document.get("attempts")
    error = document.get("lastError")
    return TaskRecord(
        id=document["_id"],
        collection=collection,
        task=str(document.get("task")),
        source_doc_id=document.get("sourceDocId"),
        status=_status(document.get("status")),
        next_run_at=date("nextRunAt"),
        due_at=date("dueAt"),
        attempts=attempts if isinstance(attempts, int) else 0,
        last_observed_values=_values(document),
        last_error=None if error is None else str(error),
        first_error_at=date("firstErrorAt"),
        created_at=date("createdAt"),
        updated_at=date("updatedAt"),
        started_at=date("startedAt"),
        completed_at=date("completedAt"),
        last_finalized_at=date("lastFinalizedAt"),
        last_success=None
        if succeeded_at is None
        else LastSuccess(succeeded_at, int(last_success.get("durationMs") or 0)),
        execution_history=tuple(_entries(document)),
    )


def _values(document: Document) -> dict[str, Any] | None:
    values = document.get("lastObservedValues")
    return document_in(values) if isinstance(values, dict) else None


def _entries(document: Document) -> list[HistoryEntry]:
    entries: list[HistoryEntry] = []
    for stored in map(document_in, list_in(document.get("executionHistory"))):
        at = aware_or_none(stored.get("at"))
        if at is not None:
            status = _status(stored.get("status"))
            entries.append(HistoryEntry(at, status, int(stored.get("durationMs") or 0), stored.get("error")))
    return entries


def _status(value: Any) -> Status:
    """A status edited by hand into nonsense is shown as failed: nothing will run it."""
    return Status(value) if value in set(Status) else Status.FAILED
