"""What operators ask of the task records: lists, counts, retries and deletions, over one collection or all.

A filter on source documents may be any query, also one that only ``find`` takes. The ids that match are streamed,
a thousand at a time, and the records asked for by them. They come in the order of ``_id``: in any other order, a
document that a retried task changes could be met again and again, and be retried for ever. What is asked by ``_id``
alone, the records can answer too: so a record is found whose document is gone.

However many records there are, few are held here at once: a listing by source documents keeps what it sorts by,
of as many records as it skips and shows; any other listing keeps what it shows.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from datetime import timedelta
from heapq import heappop, heappush, nsmallest
from typing import Any

from oplogue.errors import ConfigurationError
from oplogue.model.definition import Namespace
from oplogue.model.filters import compile_filter
from oplogue.model.record import Page, TaskRecord
from oplogue.model.states import Status
from oplogue.store.connection import Client, Collection, Document, bounded, ours
from oplogue.store.documents import key_of, server_time
from oplogue.store.expressions import IS_RUNNING, MARKS, NOW, Expr, literal, merged, when
from oplogue.store.faults import OperationFailure, describe, is_refusal
from oplogue.store.ordering import Ordered
from oplogue.store.records import FIELDS, read_record
from oplogue.store.sendable import as_sent

_BATCH = 1_000
_PATIENCE = timedelta(minutes=5)
"""An operator's query may take longer than the engine's own statements."""

Order = Sequence[tuple[str, int]]
Sources = Mapping[Namespace, Sequence[str]]
"""The tasks that are meant, by the collection that they are for."""


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
            parts.append({"lastError": {"$regex": _literally(self.error_message), "$options": "i"}})
        if self.has_error is not None:
            parts.append({"lastError": {"$ne": None} if self.has_error else None})
        return {"$and": parts} if parts else {}


class _Key:
    """Where a record stands in a listing."""

    __slots__ = ("id", "place", "source")

    def __init__(self, source: Namespace, row: Document, order: Order) -> None:
        self.source = source
        self.id: Any = row["_id"]
        self.place = tuple(Ordered(row.get(field), direction) for field, direction in _sort(order))

    def __lt__(self, other: _Key) -> bool:
        return (self.place, self.source) < (other.place, other.source)


class Operations:
    """Queries and changes over the records of some source collections."""

    def __init__(self, client: Client, home: str) -> None:
        self._client = client
        self._home = home

    async def list(self, sources: Sources, which: RecordFilter, order: Order, skip: int, limit: int) -> Page:
        """One page over all collections, sorted over all of them, and how many there are."""
        which = self._sendable(which)
        if which.source_doc_filter is None:
            keys = await self._sorted(sources, which, order, skip, limit)
            return Page(await self._read(keys), await self.count(sources, which))
        keys, total = await self._sifted(sources, which, order, skip + limit)
        return Page(await self._read(keys[skip:]), total)

    async def count(self, sources: Sources, which: RecordFilter) -> int:
        """How many records are meant."""
        total = 0
        async with aclosing(self._queries(sources, self._sendable(which))) as queries:
            async for source, query in queries:
                with bounded(_PATIENCE):
                    total += await self._records(source).count_documents(query)
        return total

    def retry(self, sources: Sources, which: RecordFilter) -> AsyncGenerator[int]:
        """Run records again, at once, with a full set of attempts; one that runs now runs again after that.

        How many, after each batch.
        """
        return self._each_batch(sources, which, run_again_update())

    def delete(self, sources: Sources, which: RecordFilter) -> AsyncGenerator[int]:
        """Delete records; a run that is under way finds its lease lost. How many, after each batch."""
        return self._each_batch(sources, which, None)

    async def _sorted(
        self, sources: Sources, which: RecordFilter, order: Order, skip: int, limit: int
    ) -> list[_Key]:
        """The keys of a page, merged from what each collection sorts itself."""
        # One collection can skip by itself; of several, nobody knows what the others have before it.
        ahead, most = (skip, limit) if len(sources) == 1 else (0, skip + limit)

        async def keys(source: Namespace, tasks: Sequence[str]) -> AsyncGenerator[_Key]:
            found = self._records(source).find(which.query(tasks), _shown(order)).sort(_sort(order))
            async with found.skip(ahead).limit(most):
                async for row in found:
                    yield _Key(source, row, order)

        with bounded(_PATIENCE):
            return await _merged([keys(*of_source) for of_source in sources.items()], skip - ahead, limit)

    async def _sifted(
        self, sources: Sources, which: RecordFilter, order: Order, most: int
    ) -> tuple[list[_Key], int]:
        """The first keys of all, and how many records there are: source documents come in an order of their own."""
        first: list[_Key] = []
        total = 0
        async with aclosing(self._queries(sources, which)) as queries:
            async for source, query in queries:
                with bounded(_PATIENCE):
                    rows = await self._records(source).find(query, _shown(order)).to_list()
                total += len(rows)
                first = nsmallest(most, [*first, *(_Key(source, row, order) for row in rows)])
        return first, total

    async def _read(self, keys: Sequence[_Key]) -> tuple[TaskRecord, ...]:
        """The records of a page, in its order; without those that were deleted meanwhile."""
        ids: dict[Namespace, list[Any]] = defaultdict(list)
        for key in keys:
            ids[key.source].append(key.id)
        found: dict[Any, TaskRecord] = {}
        for source, wanted in ids.items():
            with bounded(_PATIENCE):
                async for row in self._records(source).find({"_id": {"$in": wanted}}):
                    found[source, key_of(row["_id"])] = read_record(source.within(self._home), row)
        places = [(key.source, key_of(key.id)) for key in keys]
        return tuple(found[place] for place in places if place in found)

    async def _each_batch(
        self, sources: Sources, which: RecordFilter, update: list[dict[str, Expr]] | None
    ) -> AsyncGenerator[int]:
        async with aclosing(self._queries(sources, self._sendable(which))) as queries:
            async for source, query in queries:
                async with aclosing(self._change(self._records(source), query, update)) as batches:
                    async for changed in batches:
                        yield changed

    async def _change(
        self, records: Collection, query: Mapping[str, Any], update: list[dict[str, Expr]] | None
    ) -> AsyncGenerator[int]:
        beyond: dict[str, Any] = {}
        while True:
            with bounded(_PATIENCE):
                page = records.find({"$and": [query, beyond]}, {"_id": 1}).sort("_id", 1).limit(_BATCH)
                ids = [row["_id"] async for row in page]
                # Asked once more with the change itself: a record may have changed since.
                still = {"$and": [query, {"_id": {"$in": ids}}]}
                if not ids:
                    return
                if update is None:
                    changed = (await records.delete_many(still)).deleted_count
                else:
                    changed = (await records.update_many(still, update)).matched_count
            yield changed
            beyond = {"$expr": {"$gt": ["$_id", literal(ids[-1])]}}

    async def _queries(
        self, sources: Sources, which: RecordFilter
    ) -> AsyncGenerator[tuple[Namespace, dict[str, Any]]]:
        """The queries on the records of each collection; several where they hang on source documents."""
        for source, tasks in sources.items():
            query = which.query(tasks)
            if which.source_doc_filter is None:
                yield source, query
                continue
            wanted = await self._understood(which.source_doc_filter)
            by_id = [{"sourceDocId": wanted["_id"]}] if set(wanted) == {"_id"} else []
            async with aclosing(self._matching(source, wanted, which.source_doc_filter)) as batches:
                async for ids in batches:
                    # A document's own collection may compare ids in a way of its own.
                    others = [{"$nor": by_id}] if by_id else []
                    yield source, {"$and": [{"sourceDocId": {"$in": ids}}, *others, query]}
            if by_id:
                yield source, {"$and": [*by_id, query]}

    async def _matching(
        self, source: Namespace, query: Mapping[str, Any], asked: Mapping[str, Any]
    ) -> AsyncGenerator[list[Any]]:
        """The ids of the source documents that match, in batches."""
        found = ours(self._client, source).find(query, {"_id": 1}, batch_size=_BATCH).sort("_id", 1)
        batch: list[Any] = []
        async with found:
            while True:
                try:
                    batch = [document["_id"] for document in await found.to_list(_BATCH)]
                except OperationFailure as error:
                    if not is_refusal(error):
                        raise
                    raise _refused(asked, describe(error)) from error
                if not batch:
                    return
                yield batch

    async def _understood(self, wanted: Mapping[str, Any]) -> Mapping[str, Any]:
        """What `find` is asked: a task's own filter may be given too, with its expressions and its ``$$NOW``."""
        try:
            compiled = compile_filter(wanted)
        except ConfigurationError:
            return wanted  # no task could have it; `find` may well take it, or says why not
        now = await server_time(self._client, bound=_PATIENCE) if compiled.needs_now else None
        return compiled.match(now)

    def _sendable(self, which: RecordFilter) -> RecordFilter:
        """With its values as they are sent; ConfigurationError where one can't be."""

        def sent(option: str, value: Any) -> Any:
            return None if value is None else as_sent(value, option=option, client=self._client)

        return replace(
            which,
            ids=sent("ids", which.ids),
            source_doc_filter=sent("source_doc_filter", which.source_doc_filter),
            error_message=sent("error_message", which.error_message),
        )

    def _records(self, source: Namespace) -> Collection:
        return ours(self._client, source.tasks)


def run_again_update() -> list[dict[str, Expr]]:
    """At once, with a full set of attempts; a record that runs now becomes dirty and runs again after that.

    The mark stays until the next claim: a change that is planned before it puts the record off by no backoff.
    """
    return [
        {
            "$set": {
                "status": when(IS_RUNNING, literal(Status.PROCESSING_DIRTY), literal(Status.PENDING)),
                "nextRunAt": when(IS_RUNNING, "$nextRunAt", NOW),
                "attempts": when(IS_RUNNING, "$attempts", 0),
                "firstErrorAt": when(IS_RUNNING, "$firstErrorAt", None),
                "oplogue": merged(MARKS, {"manual": True}, when(IS_RUNNING, {}, {"parked": False})),
            }
        }
    ]


async def _merged(streams: Sequence[AsyncGenerator[_Key]], skip: int, limit: int) -> list[_Key]:
    """The keys of a page of sorted streams, which are read no further than that."""
    page: list[_Key] = []
    ahead: list[tuple[_Key, int]] = []

    async def read_on(stream: int) -> None:
        async for key in streams[stream]:
            heappush(ahead, (key, stream))
            return

    async with AsyncExitStack() as stack:
        for number, stream in enumerate(streams):
            await stack.enter_async_context(aclosing(stream))
            await read_on(number)
        while ahead and len(page) < limit:
            key, number = heappop(ahead)
            if skip:
                skip -= 1
            else:
                page.append(key)
            await read_on(number)
    return page


def _literally(text: str) -> str:
    """A pattern that this text alone matches. The server takes no NUL in one."""
    return re.escape(text).replace("\x00", r"\x00")


def _sort(order: Order) -> list[tuple[str, int]]:
    # The first direction of a field holds: of two, the driver would send the last.
    directions: dict[str, int] = {}
    for name, direction in [*order, ("id", 1)]:
        directions.setdefault(FIELDS[name], direction)
    return list(directions.items())


def _shown(order: Order) -> dict[str, int]:
    """What a listing needs before it knows its page."""
    return {field: 1 for field, _ in _sort(order)}


def _refused(wanted: Mapping[str, Any], why: str) -> ConfigurationError:
    return ConfigurationError(
        f"the server refuses it: {why}",
        option="source_doc_filter",
        value=wanted,
        expected="a query on the source documents, as find() takes it",
    )
