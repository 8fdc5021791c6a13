"""Reprocessing after a handler's version went up: records are reset in bounded batches, resumable.

What is reset is decided by when it last ran: before the moment at which the version was announced. A record that
was reset and has run since is so never reset again, whoever repeats a batch: the next leader after a crash, or a
former one that wakes up. The checkpoint spares work, no more.

A record that runs meanwhile becomes dirty where everything is reprocessed, and runs again. Where only failed ones
are, a run of older code may still fail after its range was passed: so the reset ends with looks at the failed ones,
until no run is left that began before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from oplogue.model.definition import Namespace
from oplogue.model.states import RUNNING, Status
from oplogue.store.connection import Client, Collection, bounded, ours
from oplogue.store.expressions import Expr, literal, merged, when
from oplogue.store.fields import aware_or_none, document_in, list_in
from oplogue.store.operations import run_again_update
from oplogue.store.ranges import Edge, Range, Ranges
from oplogue.store.tasks import HAS_DATE

_BATCH = 1_000
_PREFIX = "task:"


@dataclass(frozen=True, slots=True)
class Reprocessing:
    """A reset that is under way."""

    task: str
    source: Namespace
    version: int
    everything: bool
    asked_at: datetime
    last: Edge | None = None
    """Up to where the records have been passed."""
    swept: bool = False
    """Whether all have: it waits for runs of older code to end."""


class Evolution:
    """The resets that the definitions ask for."""

    def __init__(self, client: Client, globals_: Namespace, *, bound: timedelta) -> None:
        self._client = client
        self._globals: Collection = ours(client, globals_)
        self._ranges = Ranges(client, bound=bound)
        self._bound = bound

    async def pending(self) -> list[Reprocessing]:
        """Resets that are asked for and not done, in the order of their versions."""
        with bounded(self._bound):
            found = await self._globals.find({"reprocess.version": {"$type": "number"}}).to_list()
        entries = [
            _reprocessing(document, document_in(entry))
            for document in found
            for entry in list_in(document["reprocess"])
        ]
        return sorted(filter(None, entries), key=lambda entry: entry.version)

    async def step(self, what: Reprocessing) -> Reprocessing | None:
        """Reset a batch; what is left to do, None when all is done."""
        if what.swept:
            return await self._wait_for_the_old(what)
        records = what.source.tasks
        batch = await self._ranges.following(records, what.last, _BATCH)
        with bounded(self._bound):
            # By the order of ids: an index of the failed ones would be read whole for each batch.
            await ours(self._client, records).update_many(
                {**batch.selection(), **_to_be_reset(what)}, run_again_update(), hint={"_id": 1}
            )
        return await self._passed(what, batch)

    async def _passed(self, what: Reprocessing, batch: Range) -> Reprocessing | None:
        if batch.last is not None:
            await self._note(what, {"last": {"$max": ["$$this.last", literal(batch.last.id)]}})
            return replace(what, last=batch.last)
        if what.everything:
            await self._done(what)
            return None
        await self._note(what, {"swept": True})
        return replace(what, swept=True)

    async def _wait_for_the_old(self, what: Reprocessing) -> Reprocessing | None:
        records = ours(self._client, what.source.tasks)
        before = {"startedAt": {"$lt": what.asked_at}}
        running = {"status": {"$in": list(RUNNING)}, "task": what.task, **HAS_DATE, **before}
        with bounded(self._bound):
            # In this order: what ends after the look is seen by the next one.
            left = await records.find_one(running, {"_id": 1})
            await records.update_many(_to_be_reset(what), run_again_update())
        if left is not None:
            return what
        await self._done(what)
        return None

    async def _note(self, what: Reprocessing, change: dict[str, Expr]) -> None:
        noted = when(_is(what), merged("$$this", change), "$$this")
        await self._update(what, {"$map": {"input": "$reprocess", "in": noted}})

    async def _done(self, what: Reprocessing) -> None:
        await self._update(what, {"$filter": {"input": "$reprocess", "cond": {"$not": [_is(what)]}}})

    async def _update(self, what: Reprocessing, entries: Expr) -> None:
        known = {"_id": _PREFIX + what.task, "reprocess.version": what.version}
        with bounded(self._bound):
            await self._globals.update_one(known, [{"$set": {"reprocess": entries}}])


def _is(what: Reprocessing) -> Expr:
    return {"$eq": ["$$this.version", what.version]}


def _to_be_reset(what: Reprocessing) -> dict[str, Any]:
    """Its records that ended, or run, as a run of older code made them."""
    statuses = (Status.COMPLETED, Status.FAILED, *RUNNING) if what.everything else (Status.FAILED,)
    # Also those that never ran: parked ones.
    older = {"startedAt": {"$not": {"$gte": what.asked_at}}}
    return {"task": what.task, "status": {"$in": list(statuses)}, **older}


def _reprocessing(document: dict[str, Any], entry: dict[str, Any]) -> Reprocessing | None:
    """An entry; None for one that was edited by hand into nonsense."""
    version, asked_at = entry.get("version"), aware_or_none(entry.get("askedAt"))
    if not isinstance(version, int) or asked_at is None:
        return None
    return Reprocessing(
        task=str(document["_id"]).removeprefix(_PREFIX),
        source=Namespace(str(document.get("database")), str(document.get("collection"))),
        version=version,
        everything=entry.get("mode") == "reprocess_all",
        asked_at=asked_at,
        last=None if entry.get("last") is None else Edge(entry["last"]),
        swept=entry.get("swept") is True,
    )
