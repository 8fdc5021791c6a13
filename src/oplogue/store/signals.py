"""Signals between instances, through a small capped collection and a cursor that waits at its end.

A signal says *look*, never *what to do*: losing one only slows things down. So the collection is tiny, signals
are acknowledged by the primary alone, and whoever may not create the collection does without.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

from bson import Int64
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import OperationFailure

from oplogue.model.definition import Namespace
from oplogue.store.connection import FIRE_AND_KNOW, Client, Document, bounded, ours
from oplogue.store.faults import NAMESPACE_EXISTS
from oplogue.store.fields import document_in, list_in

_SIZE = 65_536


class Topic(StrEnum):
    """What a signal is about."""

    WORK = "work"
    DEFINITIONS = "definitions"
    CONTROLS = "controls"
    RESUMED = "resumed"
    VACANCY = "vacancy"
    PRESENCE = "presence"
    LOAD = "load"


@dataclass(frozen=True, slots=True)
class Signal:
    """What another instance, or this one, told everybody."""

    topic: Topic
    by: str
    tasks: tuple[str, ...] = ()


class Signals:
    """The signals of one globals collection."""

    def __init__(self, client: Client, globals_: Namespace, *, patience: timedelta, bound: timedelta) -> None:
        self._client = client
        self._place = Namespace(globals_.database, f"{globals_.collection}_signals")
        self._patience = patience
        self._bound = bound
        self._session: AsyncClientSession | None = None
        self._cursor = 0

    async def send(self, signal: Signal) -> None:
        """Tell all instances."""
        document = {"topic": signal.topic, "by": signal.by, "tasks": list(signal.tasks)}
        with bounded(self._bound):
            await ours(self._client, self._place, acknowledge=FIRE_AND_KNOW).insert_one(document)

    async def open(self) -> None:
        """Wait at the end of what was said so far, which is not heard; creates or repairs the collection."""
        await self.close()
        await self._ensure()
        self._session = self._client.start_session()
        find: dict[str, Any] = {"find": self._place.collection, "tailable": True, "awaitData": True}
        # Not `bounded`: the driver would wait at the end for as long as the bound, instead of a millisecond.
        async with asyncio.timeout(self._bound.total_seconds()):
            cursor = await self._command(find)
            while cursor["id"] and cursor.get("nextBatch", cursor.get("firstBatch")):
                cursor = await self._more(int(cursor["id"]), timedelta(milliseconds=1))
        self._cursor = int(cursor["id"])

    async def next(self) -> list[Signal]:
        """What was said since; after the patience with nothing said, nothing. Raises when it must be opened again."""
        async with asyncio.timeout((self._patience + self._bound).total_seconds()):
            cursor = await self._more(self._cursor, self._patience)
        if not cursor["id"]:
            # Dropped, overrun, or no longer capped: the cursor ends without an error.
            raise OperationFailure("the cursor of signals has ended", code=43)
        read = (_signal(document) for document in cursor["nextBatch"])
        return [signal for signal in read if signal is not None]

    async def close(self) -> None:
        """Wait no more."""
        session, self._session, self._cursor = self._session, None, 0
        if session is not None:
            await session.end_session()

    async def _ensure(self) -> None:
        database = self._client.get_database(self._place.database)
        with bounded(self._bound):
            try:
                await database.create_collection(
                    self._place.collection, capped=True, size=_SIZE, check_exists=False
                )
            except OperationFailure as error:
                if error.code != NAMESPACE_EXISTS:
                    raise
                await self._repair()
            records = ours(self._client, self._place, acknowledge=FIRE_AND_KNOW)
            if await records.find_one({}, {"_id": 1}) is None:
                # A cursor on an empty capped collection ends at once.
                await records.insert_one({"topic": "begin"})

    async def _repair(self) -> None:
        """An insert after a drop makes a plain collection, which no cursor can wait on."""
        database = self._client.get_database(self._place.database)
        async for found in await database.list_collections(filter={"name": self._place.collection}):
            if not found.get("options", {}).get("capped"):
                await database.command("convertToCapped", self._place.collection, size=_SIZE)

    async def _more(self, cursor: int, patience: timedelta) -> Document:
        command: dict[str, Any] = {
            "getMore": Int64(cursor),
            "collection": self._place.collection,
            "maxTimeMS": max(patience // timedelta(milliseconds=1), 1),
        }
        return await self._command(command)

    async def _command(self, command: dict[str, Any]) -> Document:
        database = self._client.get_database(self._place.database)
        answer = await database.command(command, session=self._session)
        return document_in(answer["cursor"])


def _signal(document: Document) -> Signal | None:
    """Entries that can't be read (edited by hand, of a later version) say nothing."""
    if document.get("topic") not in list(Topic):
        return None
    names = tuple(map(str, list_in(document.get("tasks"))))
    return Signal(Topic(document["topic"]), str(document.get("by")), names)
