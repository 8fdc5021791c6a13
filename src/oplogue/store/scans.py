"""Scanning a source collection in ranges of ``_id``, and the checkpoints of that.

Ranges are compared with ``$expr``: the total order of BSON. Query operators compare within one type only, and a
collection with ids of mixed types would be scanned in part.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pymongo import ASCENDING
from pymongo.errors import DuplicateKeyError

from oplogue.model.definition import Namespace
from oplogue.store.connection import PLAIN, Client, Collection, bounded, ours
from oplogue.store.definitions import StoredTask
from oplogue.store.expressions import NOW, literal

_PREFIX = "scan:"


@dataclass(frozen=True, slots=True)
class Range:
    """Documents after one id, up to and with another; None: from the start, to the end."""

    after: Any | None
    last: Any | None
    size: int

    def selection(self) -> dict[str, Any]:
        """The range as a condition."""
        bounds: list[Any] = []
        if self.after is not None:
            bounds.append({"$gt": ["$_id", literal(self.after)]})
        if self.last is not None:
            bounds.append({"$lte": ["$_id", literal(self.last)]})
        return {"$expr": {"$and": bounds}} if bounds else {}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far a scan got, for which triggers."""

    last: Any
    documents: int


class Scans:
    """Range ends and checkpoints; only ids come here."""

    def __init__(self, client: Client, globals_: Namespace, *, bound: timedelta) -> None:
        self._client = client
        self._globals: Collection = ours(client, globals_).with_options(codec_options=PLAIN)
        self._bound = bound

    async def next_range(self, source: Namespace, after: Any | None, size: int) -> Range:
        """The next documents in the order of their ids; the last range has no end."""
        start = Range(after, None, size).selection()
        ends = self._documents(source).find(start, {"_id": 1})
        with bounded(self._bound):
            found = await ends.sort("_id", ASCENDING).skip(size - 1).limit(1).to_list()
            if found:
                return Range(after, found[0]["_id"], size)
            rest = await self._documents(source).count_documents(start, limit=size)
        return Range(after, None, rest)

    async def ids(self, source: Namespace, within: Range) -> list[Any]:
        """The ids of a range, for planning it document by document."""
        with bounded(self._bound):
            found = await self._documents(source).find(within.selection(), {"_id": 1}).to_list()
        return [document["_id"] for document in found]

    async def estimate(self, source: Namespace) -> int:
        """About how many documents there are."""
        with bounded(self._bound):
            return await self._documents(source).estimated_document_count()

    async def checkpoint(self, source: Namespace, tasks: Sequence[StoredTask]) -> Checkpoint | None:
        """Where a scan for exactly these triggers and requests broke off."""
        with bounded(self._bound):
            found = await self._globals.find_one({"_id": f"{_PREFIX}{source}", "tasks": _set(tasks)})
        return None if found is None else Checkpoint(found["last"], int(found["documents"]))

    async def save(
        self, source: Namespace, tasks: Sequence[StoredTask], reached: Checkpoint, term: int
    ) -> None:
        """Note how far the scan got, unless a later term did so already."""
        progress = {
            "tasks": literal(_set(tasks)),
            "last": literal(reached.last),
            "documents": reached.documents,
            "term": term,
            "at": NOW,
        }
        not_later = {"$or": [{"term": {"$lte": term}}, {"term": {"$not": {"$type": "number"}}}]}
        with contextlib.suppress(DuplicateKeyError), bounded(self._bound):
            await self._globals.update_one(
                {"_id": f"{_PREFIX}{source}", **not_later}, [{"$set": progress}], upsert=True
            )

    async def finish(self, source: Namespace) -> None:
        """The scan is over."""
        with bounded(self._bound):
            await self._globals.delete_one({"_id": f"{_PREFIX}{source}"})

    def _documents(self, source: Namespace) -> Collection:
        return ours(self._client, source).with_options(codec_options=PLAIN)


def _set(tasks: Sequence[StoredTask]) -> list[list[str | int]]:
    """What a scan is for. Documents behind its checkpoint may have changed unseen before a later request."""
    return [[name, hash_, epoch] for name, hash_, epoch in sorted(map(_request, tasks))]


def _request(task: StoredTask) -> tuple[str, str, int]:
    return task.name, task.planned.hash, task.epoch
