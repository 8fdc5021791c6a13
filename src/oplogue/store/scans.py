"""How far collections have been scanned: the checkpoints of reconciliations.

A checkpoint is one document for each collection in the globals collection. It holds *which requests* are being met:
each task's name, the hash of its trigger and the number of its request to be reconciled. A scan goes on at a
checkpoint of the same requests alone: when the set of tasks, a trigger or a request is another, documents before the
checkpoint may have changed unseen. Its writes carry the leader's term; a former leader's match nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pymongo import ReturnDocument
from pymongo.errors import DuplicateKeyError

from oplogue.errors import LeadershipLostError
from oplogue.model.definition import Namespace
from oplogue.model.reconciliation import Reconciliation
from oplogue.store.connection import PLAIN, Client, Collection, Document, bounded, ours
from oplogue.store.definitions import StoredTask
from oplogue.store.expressions import NOW, ROOT, Expr, literal, merged, when
from oplogue.store.fields import aware_or_none, document_in
from oplogue.store.ranges import Edge, Ranges

_PREFIX = "scan:"
_HIGHEST_TERM = 2**52
"""What is above was edited by hand, and must not end reconciliations for ever."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far a scan got."""

    last: Edge | None = None
    documents: int = 0
    complete: bool = False
    """All ranges are planned."""


class Scans:
    """The checkpoints in one globals collection, and the ranges that they stand between."""

    def __init__(self, client: Client, globals_: Namespace, *, bound: timedelta) -> None:
        self._client = client
        self._globals: Collection = ours(client, globals_).with_options(codec_options=PLAIN)
        self._bound = bound
        self.ranges: Ranges = Ranges(client, bound=bound)

    async def estimate(self, source: Namespace) -> int:
        """About how many documents there are."""
        with bounded(self._bound):
            return await ours(self._client, source).estimated_document_count()

    # -- checkpoints

    async def begin(
        self, source: Namespace, tasks: Sequence[StoredTask], estimate: int, term: int
    ) -> Checkpoint:
        """Where a scan for exactly these requests broke off; else it starts now."""
        requests = _requests(tasks)
        same: Expr = {"$and": [{"$eq": ["$requests", literal(requests)]}, {"$ne": ["$over", True]}]}
        fresh = {"requests": literal(requests), "documents": 0, "startedAt": NOW}
        now = {"_id": literal(_id_of(source)), "estimate": estimate, "term": term, "at": NOW}
        found = await self._write(source, term, [{"$replaceWith": merged(when(same, ROOT, fresh), now)}])
        last = document_in(found.get("last"))
        documents = found.get("documents")
        return Checkpoint(
            Edge(last["id"]) if "id" in last else None,
            documents if isinstance(documents, int) else 0,
            found.get("complete") is True,
        )

    async def save(self, source: Namespace, reached: Checkpoint, per_second: float, term: int) -> None:
        """Note how far the scan got; LeadershipLostError when a later term scans."""
        progress: dict[str, Any] = {
            "documents": reached.documents,
            "complete": reached.complete,
            "perSecond": per_second,
            "term": term,
            "at": NOW,
        }
        if reached.last is not None:
            progress["last"] = {"id": literal(reached.last.id)}
        await self._write(source, term, [{"$set": progress}])

    async def finish(self, source: Namespace, term: int) -> None:
        """The scan is over, and its requests are met."""
        await self._write(source, term, [{"$set": {"over": True, "at": NOW, "term": term}}])

    async def _write(self, source: Namespace, term: int, change: list[dict[str, Any]]) -> Document:
        """Change the checkpoint, unless a later term did so."""
        theirs = {"_id": _id_of(source), "$nor": [{"term": {"$gt": term, "$lt": _HIGHEST_TERM}}]}
        try:
            with bounded(self._bound):
                found = await self._globals.find_one_and_update(
                    theirs, change, upsert=True, return_document=ReturnDocument.AFTER
                )
        except DuplicateKeyError:
            raise LeadershipLostError(f"term {term} is over") from None
        return document_in(found)

    # -- looking

    async def progress(self, tasks: Iterable[StoredTask]) -> list[Reconciliation]:
        """How far it has come, for each collection of those tasks that are not reconciled."""
        groups = by_source(task for task in tasks if not task.reconciled)
        if not groups:
            return []
        with bounded(self._bound):
            ids = [_id_of(source) for source in groups]
            found = await self._globals.find({"_id": {"$in": ids}, "over": {"$ne": True}}).to_list()
        scans = {document["_id"]: document for document in found}
        return [
            await self._told(source, group, scans.get(_id_of(source), {}))
            for source, group in sorted(groups.items(), key=lambda item: str(item[0]))
        ]

    async def _told(self, source: Namespace, tasks: Sequence[StoredTask], scan: Document) -> Reconciliation:
        names = tuple(sorted(task.name for task in tasks))
        documents, estimate, per_second = (_number(scan, name) for name in _TOLD)
        if scan.get("requests") != _requests(tasks):
            # Not begun, or begun for requests that have been overtaken: it starts again.
            return Reconciliation(source=source, tasks=names, estimate=await self.estimate(source))
        return Reconciliation(
            source=source,
            tasks=names,
            documents=int(documents),
            estimate=max(int(estimate), int(documents)),
            per_second=per_second,
            started_at=aware_or_none(scan.get("startedAt")),
            seen_at=aware_or_none(scan.get("at")),
        )


_TOLD = ("documents", "estimate", "perSecond")


def by_source(tasks: Iterable[StoredTask]) -> dict[Namespace, list[StoredTask]]:
    """Tasks by the collection whose documents they are planned for: each is scanned once for all of them."""
    groups: dict[Namespace, list[StoredTask]] = {}
    for task in tasks:
        groups.setdefault(task.planned.definition.source, []).append(task)
    return groups


def _id_of(source: Namespace) -> str:
    return f"{_PREFIX}{source}"


def _number(scan: Document, name: str) -> float:
    value = scan.get(name)
    return value if isinstance(value, (int, float)) and value >= 0 else 0


def _requests(tasks: Sequence[StoredTask]) -> list[list[Any]]:
    return sorted([task.name, task.planned.hash, task.epoch] for task in tasks)
