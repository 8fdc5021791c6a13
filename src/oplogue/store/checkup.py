"""Collects the facts of a check-up from a server. Reads only; what may not be read is left out."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeVar

from bson import Timestamp, json_util
from pymongo import AsyncMongoClient, IndexModel
from pymongo.errors import PyMongoError

from oplogue.clock import Clock
from oplogue.model.checkup import Oplog, Privilege, Records, Server, Settings
from oplogue.model.definition import Namespace
from oplogue.store.connection import Client, Database, Document, bounded, ours
from oplogue.store.fields import aware, document_in, list_in
from oplogue.store.tasks import INDEXES

_PATIENCE = timedelta(seconds=2)
_MOST_COUNTED = 10_000
_HOSTS = re.compile(r"^(mongodb://(?:[^@/]*@)?)[^/?]+(.*)$")

Result = TypeVar("Result")


class Checkup:
    """Asks one server."""

    def __init__(self, client: Client, uri: str | None, *, bound: timedelta, clock: Clock) -> None:
        self._client = client
        self._uri = uri
        self._bound = bound
        self._clock = clock

    async def server(self) -> Server:
        """Who answers. Raises where nobody does."""
        hello, offset, doubt = await self._offset(self._client)
        with bounded(self._bound):
            build = await self._client.admin.command("buildInfo")
        hosts = [str(host) for host in list_in(hello.get("hosts"))]
        return Server(
            version=tuple(int(number) for number in list_in(build.get("versionArray"))[:3]),
            replica_set=hello.get("setName"),
            sharded=hello.get("msg") == "isdbgrid",
            clock_offset=offset,
            clock_doubt=doubt,
            member_offsets=await self._member_offsets(hosts),
        )

    async def _offset(self, client: Client) -> tuple[Document, timedelta, timedelta]:
        """The quickest of a few answers, how far its clock is ahead of ours, and what that may be wrong by."""
        best: tuple[Document, timedelta, timedelta] | None = None
        for _ in range(3):
            asked_at, began = self._clock.now(), self._clock.monotonic()
            with bounded(self._bound):
                hello = await client.admin.command("hello")
            doubt = timedelta(seconds=(self._clock.monotonic() - began) / 2)
            if best is None or doubt < best[2]:
                best = hello, aware(hello["localTime"]) - (asked_at + doubt), doubt
        assert best is not None
        return best

    async def _member_offsets(self, hosts: Sequence[str]) -> dict[str, timedelta]:
        offsets: dict[str, timedelta] = {}
        for host in hosts if len(hosts) > 1 else ():
            async with self._member(host) as member:
                found = None if member is None else await _seen(lambda to=member: self._offset(to))
            if found is not None:
                offsets[host] = found[1]
        return offsets

    @asynccontextmanager
    async def _member(self, host: str) -> AsyncGenerator[Client | None]:
        """A client of one member alone, where the URI names its hosts."""
        alone = None if self._uri is None else _HOSTS.sub(rf"\g<1>{host}\g<2>", self._uri)
        if alone is None or alone == self._uri or "directconnection" in alone.lower():
            yield None
            return
        plain = re.sub(r"(?i)replicaSet=[^&]*&?", "", alone)
        async with AsyncMongoClient[Document](
            plain, directConnection=True, serverSelectionTimeoutMS=_PATIENCE // timedelta(milliseconds=1)
        ) as member:
            yield member

    async def privileges(self) -> tuple[str | None, tuple[Privilege, ...] | None]:
        """Who this client is, and what it may do; None where access control is off."""
        with bounded(self._bound):
            status = await self._client.admin.command("connectionStatus", showPrivileges=True)
        found = document_in(status.get("authInfo"))
        users = [f"{user['user']}@{user['db']}" for user in list_in(found.get("authenticatedUsers"))]
        if not users:
            return None, None
        granted = (document_in(entry) for entry in list_in(found.get("authenticatedUserPrivileges")))
        return users[0], tuple(map(_privilege, granted))

    async def default_write_concern(self) -> str | int | None:
        """The cluster's; None where it is the server's own, which is majority, or can't be seen."""
        answer = await _seen(lambda: self._command("getDefaultRWConcern"))
        return document_in((answer or {}).get("defaultWriteConcern")).get("w")

    async def arbiters(self) -> int | None:
        """How many members vote and hold no data; None where that can't be seen."""
        hello = await self._command("hello")
        return len(list_in(hello.get("arbiters"))) if "setName" in hello else None

    async def oplog(self) -> Oplog | None:
        """How far back it reaches; None where it can't be seen."""
        local = self._client.get_database("local")
        return await _seen(lambda: self._oplog(local))

    async def _oplog(self, local: Database) -> Oplog | None:
        entries = local["oplog.rs"]
        with bounded(self._bound):
            first = await entries.find_one({}, {"ts": 1}, sort=[("$natural", 1)])
            last = await entries.find_one({}, {"ts": 1}, sort=[("$natural", -1)])
        if first is None or last is None:
            return None
        stats = await _seen(lambda: self._storage(local))
        oldest = _moment(first["ts"])
        return Oplog(window=_moment(last["ts"]) - oldest, fill=stats, oldest=oldest)

    async def _storage(self, local: Database) -> float:
        with bounded(self._bound):
            stages: list[dict[str, Any]] = [{"$collStats": {"storageStats": {}}}]
            (row,) = await (await local["oplog.rs"].aggregate(stages)).to_list()
        stats = row["storageStats"]
        return float(stats["size"]) / float(stats["maxSize"])

    async def signals(self, globals_: Namespace) -> Literal["capped", "plain", "missing"]:
        """What the collection of signals is."""
        database = self._client.get_database(globals_.database)
        named = {"name": f"{globals_.collection}_signals"}
        with bounded(self._bound):
            found = await (await database.list_collections(filter=named)).to_list()
        if not found:
            return "missing"
        return "capped" if document_in(found[0].get("options")).get("capped") else "plain"

    async def records(self, source: Namespace) -> Records:
        """The records beside a collection, and which of their indexes are missing. Equal ones count."""
        database = self._client.get_database(source.database)
        with bounded(self._bound):
            exists = await database.list_collection_names(filter={"name": source.tasks.collection})
            found = await (await database[source.tasks.collection].list_indexes()).to_list() if exists else []
        missing = [index for index in INDEXES if not any(_equal(one, index) for one in found)]
        commands = tuple((_name(index), _creation(source.tasks, index)) for index in missing)
        return Records(str(source), bool(exists), commands)

    async def count(self, source: Namespace, which: Document) -> int | None:
        """How many records there are, up to many; None where counting takes too long."""
        records = ours(self._client, source.tasks)
        with bounded(_PATIENCE):
            return await _seen(lambda: records.count_documents(which, limit=_MOST_COUNTED))

    async def _command(self, name: str) -> Document:
        with bounded(self._bound):
            return await self._client.admin.command(name)


FAILED: Document = {"status": "failed", "oplogue.parked": {"$ne": True}}
PARKED: Document = {"status": "failed", "oplogue.parked": True}


def settings_of(client: Client) -> Settings:
    """How a client is set up."""
    options = client.options
    pool = options.pool_options
    return Settings(
        heartbeat=timedelta(seconds=options.heartbeat_frequency),
        connect_timeout=_length(pool.connect_timeout),
        socket_timeout=_length(pool.socket_timeout),
        server_selection_timeout=timedelta(seconds=options.server_selection_timeout),
        operation_timeout=_length(options.timeout),
        write_concern=options.write_concern.document.get("w"),
        retries_writes=options.retry_writes,
    )


async def _seen(read: Callable[[], Awaitable[Result]]) -> Result | None:
    """What is read, or None: a missing privilege or an unreachable member is a finding of its own, no failure."""
    try:
        return await read()
    except PyMongoError:
        return None


def _privilege(entry: Document) -> Privilege:
    resource = document_in(entry.get("resource"))
    return Privilege(
        database=str(resource.get("db", "?")),
        collection=str(resource.get("collection", "?")),
        actions=frozenset(map(str, list_in(entry.get("actions")))),
        on_anything=resource.get("anyResource") is True,
    )


def _equal(found: Mapping[str, Any], wanted: IndexModel) -> bool:
    document = wanted.document
    shape = ("unique", "partialFilterExpression", "collation")
    same_key = list(found["key"].items()) == list(document["key"].items())
    return same_key and all(found.get(name) == document.get(name) for name in shape)


def _creation(records: Namespace, index: IndexModel) -> str:
    options = {name: value for name, value in index.document.items() if name != "key"}
    key, others = json_util.dumps(index.document["key"]), json_util.dumps(options)
    database = f"db.getSiblingDB('{records.database}')"
    return f"{database}.getCollection('{records.collection}').createIndex({key}, {others})"


def _name(index: IndexModel) -> str:
    return str(index.document["name"])


def _moment(time: Timestamp) -> datetime:
    return datetime.fromtimestamp(time.time, UTC)


def position_time(position: Document | None) -> datetime | None:
    """The moment that a saved position stands for."""
    time = (position or {}).get("time")
    return _moment(time) if isinstance(time, Timestamp) else None


def _length(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)
