"""Reprocessing after a handler's version went up: records are reset in bounded batches, resumable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from oplogue.model.definition import Namespace
from oplogue.model.states import RUNNING, Status
from oplogue.store.connection import Client, Collection, bounded, ours
from oplogue.store.expressions import literal
from oplogue.store.fields import document_in
from oplogue.store.operations import run_again_update

_BATCH = 1_000
_PREFIX = "task:"


@dataclass(frozen=True, slots=True)
class Reprocessing:
    """A reset that is under way."""

    task: str
    source: Namespace
    version: int
    everything: bool
    last: Any


class Evolution:
    """The resets that the definitions ask for."""

    def __init__(self, client: Client, globals_: Namespace, *, bound: timedelta) -> None:
        self._client = client
        self._globals: Collection = ours(client, globals_)
        self._bound = bound

    async def pending(self) -> list[Reprocessing]:
        """Resets that are asked for and not done."""
        with bounded(self._bound):
            found = await self._globals.find({"reprocess.version": {"$type": "number"}}).to_list()
        return [
            Reprocessing(
                task=str(document["task"]),
                source=Namespace(document["database"], document["collection"]),
                version=int(document["reprocess"]["version"]),
                everything=document["reprocess"].get("mode") == "reprocess_all",
                last=document_in(document["reprocess"]).get("last"),
            )
            for document in found
        ]

    async def step(self, what: Reprocessing) -> Reprocessing | None:
        """Reset a batch; what is left to do, None when all is done."""
        records = ours(self._client, what.source.tasks)
        statuses: Sequence[Status] = (
            (Status.COMPLETED, Status.FAILED, *RUNNING) if what.everything else (Status.FAILED,)
        )
        theirs: dict[str, Any] = {"task": what.task, "status": {"$in": list(statuses)}}
        beyond: dict[str, Any] = {} if what.last is None else {"_id": {"$gt": what.last}}
        with bounded(self._bound):
            page = await records.find(theirs | beyond, {"_id": 1}).sort("_id", 1).limit(_BATCH).to_list()
            ids = [row["_id"] for row in page]
            if ids:
                await records.update_many({"_id": {"$in": ids}} | theirs, run_again_update())
        if len(page) < _BATCH:
            await self._note(what, {"$unset": "reprocess"})
            return None
        await self._note(what, {"$set": {"reprocess.last": literal(ids[-1])}})
        return Reprocessing(what.task, what.source, what.version, what.everything, ids[-1])

    async def _note(self, what: Reprocessing, change: dict[str, Any]) -> None:
        with bounded(self._bound):
            await self._globals.update_one(
                {"_id": _PREFIX + what.task, "reprocess.version": what.version}, [change]
            )
