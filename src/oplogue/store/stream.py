"""The change stream: one cursor over a database, or over the whole cluster, that yields keys only.

It is driven by its two commands (``aggregate`` with ``$changeStream``, then ``getMore``) rather than by the
driver's ``watch()``, because the planner needs what that hides: a whole server batch at once (so that a lone
event is planned without waiting and a flood in large batches), the post-batch token, and every error as it is.
The driver would resume by itself from its own position; ours is the one that has been planned and acknowledged.

Positions. A *quiet* token (the post-batch token of an answer without events, or after the last event) can be
resumed by any pipeline; an event's own token is refused (280) by a pipeline that its event does not pass. So only
post-batch tokens are kept, with the cluster time that they stand for, and where a token can't be used (another
target, another pipeline, refused) the stream reopens by that time, inclusive: planning is idempotent.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any

from bson import Int64, Timestamp
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import OperationFailure, PyMongoError

from oplogue.model.definition import Namespace
from oplogue.store.connection import PLAIN, Client, Database, Document, bounded
from oplogue.store.expressions import first_set, literal
from oplogue.store.fields import document_in

BATCH = 2_000
_WHOLE = ("insert", "replace", "delete")
_TIMESTAMP_IN_TOKEN = 0x82
_NO_KEY: Document = {}


class Kind(Enum):
    """What an event may mean to the planner."""

    INSERTED = "inserted"
    CHANGED = "changed"
    DELETED = "deleted"
    COLLECTION_GONE = "collection gone"
    COLLECTION_CAME = "collection came"
    DATABASE_GONE = "database gone"
    INVALIDATED = "invalidated"


_KINDS = {
    "insert": Kind.INSERTED,
    "update": Kind.CHANGED,
    "replace": Kind.CHANGED,
    "delete": Kind.DELETED,
    "drop": Kind.COLLECTION_GONE,
    "rename": Kind.COLLECTION_GONE,
    "dropDatabase": Kind.DATABASE_GONE,
    "invalidate": Kind.INVALIDATED,
}


@dataclass(frozen=True, slots=True)
class Event:
    """A document, or a whole collection, that changed."""

    kind: Kind
    source: Namespace
    id: Any
    time: Timestamp


@dataclass(frozen=True, slots=True)
class Following:
    """What a stream was opened for."""

    target: str
    pipeline: str
    covers: tuple[str, ...]
    """The hashes of the triggers whose events it passes."""


@dataclass(frozen=True, slots=True)
class Position:
    """Up to where everything has been planned."""

    time: Timestamp
    token: Document | None = None

    def not_after(self, moment: Timestamp) -> Position:
        """This position, or one right after that moment where that is earlier."""
        following = Timestamp(moment.time, moment.inc + 1)
        return self if self.time <= following else Position(following)

    def stored(self, follows: Following, term: int) -> Document:
        """As it is kept in the leader's document: with what it is valid for."""
        return {
            "time": self.time,
            "token": self.token,
            "target": follows.target,
            "pipeline": follows.pipeline,
            "covers": list(follows.covers),
            "term": term,
        }


@dataclass(frozen=True, slots=True)
class Batch:
    """One answer of the server."""

    events: Sequence[Event]
    position: Position
    cluster_time: Timestamp
    """The newest time that the server knew of when it answered."""

    @property
    def is_full(self) -> bool:
        """Whether more may be ready: nothing need be waited for."""
        return len(self.events) >= BATCH


class ChangeStream:
    """An open stream. Any error of the driver means: reopen it, from the last position that was saved."""

    def __init__(
        self,
        client: Client,
        database: str | None,
        pipeline: Sequence[Mapping[str, Any]],
        *,
        bound: timedelta,
    ) -> None:
        self._client = client
        self._database: Database = client.get_database(database or "admin")
        self._whole_cluster = database is None
        self._pipeline = list(pipeline)
        self._bound = bound
        self._session: AsyncClientSession | None = None
        self._cursor = 0

    async def open(self, position: Position) -> Batch:
        """Start after the position; its first batch. By its token where it has one, else by its time."""
        await self.close()
        self._session = self._client.start_session()
        stage: dict[str, Any] = {"allChangesForCluster": True} if self._whole_cluster else {}
        if position.token is not None:
            stage["startAfter"] = position.token
        else:
            stage["startAtOperationTime"] = position.time
        command: dict[str, Any] = {
            "aggregate": 1,
            "pipeline": [{"$changeStream": stage}, *self._pipeline],
            "cursor": {"batchSize": BATCH},
        }
        with bounded(self._bound):
            answer = await self._command(command)
        return self._batch(answer, "firstBatch")

    async def next(self, patience: timedelta) -> Batch:
        """The next answer: at once where events are ready, else after the first event, or after the patience."""
        if not self._cursor:
            # After an invalidation the server closes the cursor with its last answer; it is opened again behind it.
            raise OperationFailure("the change stream's cursor is closed", code=43)
        command: dict[str, Any] = {
            "getMore": Int64(self._cursor),
            "collection": "$cmd.aggregate",
            "batchSize": BATCH,
            "maxTimeMS": max(patience // timedelta(milliseconds=1), 1),
        }
        # An answer is due after the patience, with or without events: silence means that the stream is broken.
        async with asyncio.timeout((patience + self._bound).total_seconds()):
            answer = await self._command(command)
        return self._batch(answer, "nextBatch")

    async def _command(self, command: dict[str, Any]) -> Document:
        # The codec goes with each command: the database's own does not count for them.
        return await self._database.command(command, codec_options=PLAIN, session=self._session)

    async def close(self) -> None:
        """Let the server forget the cursor."""
        session, cursor = self._session, self._cursor
        self._session, self._cursor = None, 0
        if session is None:
            return
        try:
            if cursor:
                kill = {"killCursors": "$cmd.aggregate", "cursors": [Int64(cursor)]}
                with bounded(self._bound):
                    await self._database.command(kill, session=session)
        except PyMongoError:  # The server closes idle cursors by itself; closing is a courtesy.
            pass
        finally:
            await session.end_session()

    def _batch(self, answer: Document, name: str) -> Batch:
        cursor = answer["cursor"]
        self._cursor = int(cursor["id"])
        token = cursor["postBatchResumeToken"]
        events = [event for document in cursor[name] for event in _events(document)]
        return Batch(events, Position(token_time(token), token), _cluster_time(answer))


def stream_pipeline(watched: Mapping[Namespace, str | None], *, whole_cluster: bool) -> list[dict[str, Any]]:
    """Only events that can matter, and of each only what names the document.

    ``watched`` has, for each collection, a regex for the keys of updates that can matter; None: all of them can.
    Nothing of a user's is evaluated here: an expression that fails on one document would kill the stream, again
    on every restart.
    """
    names = [_named("ns", source) for source in watched]
    updates = [_named("ns", source) | _touched(pattern) for source, pattern in watched.items()]
    databases = sorted({source.database for source in watched})
    theirs: dict[str, Any] = {"ns.db": {"$in": databases}} if whole_cluster else {}
    return [
        {
            "$match": {
                "$or": [
                    {"operationType": "update", "$or": updates},
                    {"operationType": {"$in": [*_WHOLE, "drop", "rename"]}, "$or": names},
                    {"operationType": "rename", "$or": [_named("to", source) for source in watched]},
                    {"operationType": "dropDatabase", **theirs},
                    {"operationType": "invalidate"},
                ]
            }
        },
        {"$project": {"operationType": 1, "ns": 1, "to": 1, "documentKey._id": 1, "clusterTime": 1}},
    ]


def _named(field: str, source: Namespace) -> dict[str, Any]:
    return {f"{field}.db": source.database, f"{field}.coll": source.collection}


def _touched(pattern: str | None) -> dict[str, Any]:
    """Whether an update changed, removed or truncated a field whose key matches."""
    if pattern is None:
        return {}
    described = "$updateDescription"
    updated: Any = {"$objectToArray": first_set(f"{described}.updatedFields", literal({}))}
    keys: Any = {
        "$concatArrays": [
            {"$map": {"input": updated, "in": "$$this.k"}},
            first_set(f"{described}.removedFields", literal([])),
            first_set(f"{described}.truncatedArrays.field", literal([])),
        ]
    }
    hit = {"$regexMatch": {"input": "$$this", "regex": pattern}}
    return {"$expr": {"$anyElementTrue": [{"$map": {"input": keys, "in": hit}}]}}


def token_time(token: Mapping[str, Any]) -> Timestamp:
    """The cluster time that a resume token stands for: a type byte, then the time, big-endian."""
    data = bytes.fromhex(token["_data"])
    if data[0] != _TIMESTAMP_IN_TOKEN:
        raise ValueError(f"not a resume token of a kind that is known: {token['_data'][:18]}…")
    seconds, increment = struct.unpack(">II", data[1:9])
    return Timestamp(seconds, increment)


def read_position(stored: Document | None, follows: Following) -> Position | None:
    """A stored position: with its token where it was made by the same pipeline on the same target."""
    if stored is None or not isinstance(stored.get("time"), Timestamp):
        return None
    same = stored.get("target") == follows.target and stored.get("pipeline") == follows.pipeline
    return Position(stored["time"], _sound(stored) if same else None)


def _sound(stored: Document) -> Document | None:
    """The token, if it stands for the time that it was saved with: the server takes one from the future silently."""
    token = document_in(stored.get("token"))
    try:
        return token if token_time(token) == stored["time"] else None
    except (KeyError, TypeError, ValueError, IndexError, struct.error):
        return None


def _cluster_time(answer: Document) -> Timestamp:
    """The newest time that the server knows of. A set that was made just now does not tell it yet.

    The operation time is second best: it stands still with the stream where no majority acknowledges.
    """
    return document_in(answer.get("$clusterTime")).get("clusterTime", answer["operationTime"])


async def operation_time(client: Client, *, bound: timedelta) -> Timestamp:
    """The server's current cluster time."""
    with bounded(bound):
        answer = await client.admin.command("ping")
    time = answer.get("operationTime")
    if not isinstance(time, Timestamp):
        raise OperationFailure("change streams need a replica set", code=40573)
    return time


def _events(document: Document) -> list[Event]:
    kind, time = _KINDS[document["operationType"]], document["clusterTime"]
    event = Event(kind, _namespace(document.get("ns")), document.get("documentKey", _NO_KEY).get("_id"), time)
    if "to" not in document:
        return [event]
    return [event, Event(Kind.COLLECTION_CAME, _namespace(document["to"]), None, time)]


def _namespace(stored: Document | None) -> Namespace:
    names = stored or _NO_KEY
    return Namespace(names.get("db", ""), names.get("coll", ""))
