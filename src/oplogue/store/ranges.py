"""Ranges of a collection by ``_id``, in the order of its index: the total order of BSON, ids may be of mixed types.

Range ends are looked up in the index alone, no document is read for them. Conditions on a range are made with
``$expr``: query operators compare within one type only, and a collection with ids of mixed types would be read in part.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from bson import MaxKey
from pymongo import ASCENDING
from pymongo.asynchronous.cursor import AsyncCursor

from oplogue.model.definition import Namespace
from oplogue.store.connection import PLAIN, Client, Collection, Document, bounded, ours
from oplogue.store.documents import key_of
from oplogue.store.expressions import literal


@dataclass(frozen=True, slots=True)
class Edge:
    """An id that a range begins after, or ends with; it may be null."""

    id: Any


@dataclass(frozen=True, slots=True)
class Range:
    """Documents after one id, up to and with another; None: from the start, to the end."""

    after: Edge | None
    last: Edge | None
    size: int

    def selection(self) -> dict[str, Any]:
        """The range as a condition."""
        bounds: list[Any] = []
        if self.after is not None:
            bounds.append({"$gt": ["$_id", literal(self.after.id)]})
        if self.last is not None:
            bounds.append({"$lte": ["$_id", literal(self.last.id)]})
        return {"$expr": {"$and": bounds}} if bounds else {}


class Ranges:
    """Cuts collections into ranges; only ids come here."""

    def __init__(self, client: Client, *, bound: timedelta) -> None:
        self._client = client
        self._bound = bound

    async def following(self, collection: Namespace, after: Edge | None, size: int) -> Range:
        """The next documents in the order of their ids; the last range has no end.

        It has one more where the document that it begins after is gone.
        """
        if not _is_highest(after):
            before = 0 if after is None else 1
            with bounded(self._bound):
                ends = self._in_order(collection, after).skip(size - 1 + before).limit(1)
                found = await ends.to_list()
            if found:
                return Range(after, Edge(found[0]["_id"]), size)
        rest = await self.ids(collection, Range(after, None, size))
        return Range(after, None, len(rest))

    async def ids(self, collection: Namespace, within: Range) -> list[Any]:
        """The ids of a range, for planning it document by document."""
        if _is_highest(within.after):
            return []
        found: list[Any] = []
        with bounded(self._bound):
            async for document in self._in_order(collection, within.after).limit(within.size + 1):
                if not _is(document, within.after):
                    found.append(document["_id"])
                if _is(document, within.last):
                    return found
            if within.last is None and within.after is not None:
                # A lower bound of an index leaves out the highest of all values.
                highest = await self._plain(collection).find({"_id": MaxKey()}, {"_id": 1}).to_list()
                found += [document["_id"] for document in highest]
        return found

    def _in_order(self, collection: Namespace, start: Edge | None) -> AsyncCursor[Document]:
        """Ids by the index alone, from one on."""
        cursor = self._plain(collection).find({}, {"_id": 1}).sort("_id", ASCENDING)
        return cursor.hint([("_id", ASCENDING)]) if start is None else _from(cursor, start)

    def _plain(self, namespace: Namespace) -> Collection:
        return ours(self._client, namespace).with_options(codec_options=PLAIN)


def _from(cursor: AsyncCursor[Document], start: Edge) -> AsyncCursor[Document]:
    """With that id: the server has no bound of an index that leaves the id itself out."""
    return cursor.min([("_id", start.id)]).hint([("_id", ASCENDING)])


def _is(document: Document, edge: Edge | None) -> bool:
    return edge is not None and bool(key_of(document["_id"]) == key_of(edge.id))


def _is_highest(edge: Edge | None) -> bool:
    return edge is not None and isinstance(edge.id, MaxKey)
