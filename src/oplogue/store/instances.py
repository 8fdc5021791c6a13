"""Who is alive: one document for each instance in the globals collection, renewed by its heartbeat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from oplogue.model.definition import Namespace
from oplogue.store.connection import Client, Collection, bounded, ours
from oplogue.store.expressions import NOW, after, first_set, literal, milliseconds
from oplogue.store.fields import aware_or_none, document_in, list_in

_PREFIX = "instance:"
_THEIRS: dict[str, Any] = {"_id": {"$regex": f"^{_PREFIX}"}}


@dataclass(frozen=True, slots=True)
class Carried:
    """A task as an instance runs it: which revision of its definition, and which version of its handler."""

    revision: str
    version: int


@dataclass(frozen=True, slots=True)
class Load:
    """How busy an instance is."""

    slots: int = 0
    in_use: int = 0


@dataclass(frozen=True, slots=True)
class LiveInstance:
    """An instance whose heartbeat has not run out."""

    id: str
    started_at: datetime | None
    carries: Mapping[str, Carried]
    """Each task that it runs, by name."""
    load: Load
    """By its own last word."""


class Instances:
    """The heartbeats in one globals collection."""

    def __init__(self, client: Client, globals_: Namespace, *, bound: timedelta) -> None:
        self._globals: Collection = ours(client, globals_)
        self._bound = bound

    async def beat(self, id_: str, carries: Mapping[str, Carried], load: Load, lasts: timedelta) -> None:
        """This instance is alive for so long, runs these tasks, and is so busy."""
        # A list, not a document: a task's name may have dots.
        carried = [
            {"task": name, "revision": one.revision, "version": one.version} for name, one in carries.items()
        ]
        alive = {
            "carries": literal(carried),
            "expiresAt": after(NOW, milliseconds(lasts)),
            "startedAt": first_set("$startedAt", NOW),
            "slots": load.slots,
            "slotsInUse": load.in_use,
        }
        with bounded(self._bound):
            await self._globals.update_one({"_id": _PREFIX + id_}, [{"$set": alive}], upsert=True)

    async def note_load(self, id_: str, load: Load) -> None:
        """How busy this instance is. Where its heartbeat is not there, it will be with the next one."""
        with bounded(self._bound):
            await self._globals.update_one(
                {"_id": _PREFIX + id_}, {"$set": {"slots": load.slots, "slotsInUse": load.in_use}}
            )

    async def loads(self) -> dict[str, Load]:
        """How busy the live instances are, by their own last word."""
        alive = {"_id": {"$regex": f"^{_PREFIX}"}, "$expr": {"$gt": ["$expiresAt", NOW]}}
        with bounded(self._bound):
            documents = await self._globals.find(alive, {"slots": 1, "slotsInUse": 1}).to_list()
        return {str(document["_id"]).removeprefix(_PREFIX): _load(document) for document in documents}

    async def leave(self, id_: str) -> None:
        """This instance stops."""
        with bounded(self._bound):
            await self._globals.delete_one({"_id": _PREFIX + id_})

    async def forget_dead(self) -> None:
        """Delete what the dead left behind."""
        with bounded(self._bound):
            await self._globals.delete_many(_THEIRS | {"$expr": {"$lte": ["$expiresAt", NOW]}})

    async def live(self) -> list[LiveInstance]:
        """Who is alive by the server's clock."""
        with bounded(self._bound):
            documents = await self._globals.find(_THEIRS | {"$expr": {"$gt": ["$expiresAt", NOW]}}).to_list()
        return [_instance(document) for document in documents]


def _instance(document: Mapping[str, Any]) -> LiveInstance:
    entries = [document_in(entry) for entry in list_in(document.get("carries"))]
    return LiveInstance(
        id=str(document["_id"]).removeprefix(_PREFIX),
        started_at=aware_or_none(document.get("startedAt")),
        carries={
            str(entry.get("task")): Carried(str(entry.get("revision")), _whole(entry.get("version")))
            for entry in entries
        },
        load=_load(document),
    )


def _load(document: Mapping[str, Any]) -> Load:
    return Load(_whole(document.get("slots")), _whole(document.get("slotsInUse")))


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0
