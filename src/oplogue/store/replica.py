"""Brings the members of a development replica set together. Only `oplogue.embedded` uses it.

Every function talks to single members over direct connections, synchronously, and expects that the members'
ports answer already.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from pymongo import MongoClient
from pymongo.errors import ConnectionFailure, OperationFailure, PyMongoError

from oplogue.clock import Clock
from oplogue.errors import EmbeddedServerError

SET_NAME = "oplogue"

_NOT_YET_INITIALIZED = 94
_PRIMARY, _SECONDARY = 1, 2
_POLL_SECONDS = 0.01
# A member that is gone is replaced after about one second, not ten: these sets live on one machine.
_SETTINGS = {
    "electionTimeoutMillis": 1000,
    "heartbeatIntervalMillis": 200,
    "heartbeatTimeoutSecs": 1,
    "catchUpTimeoutMillis": 500,
}


def configure(ports: Sequence[int], *, clock: Clock, timeout: float, alive: Callable[[], None]) -> None:
    """Make the members one replica set and wait until it is ready.

    `alive` is called between polls: it raises when waiting has become pointless. Members whose data come from
    an earlier start keep their configuration, or get a forced one when their ports are others now.
    """
    wanted = [{"_id": number, "host": f"127.0.0.1:{port}"} for number, port in enumerate(ports)]
    with _member(ports[0]) as client, _told("the development replica set could not be configured"):
        _install(client, wanted)
    await_ready(ports, clock=clock, timeout=timeout, alive=alive)


def await_ready(ports: Sequence[int], *, clock: Clock, timeout: float, alive: Callable[[], None]) -> None:
    """Wait until the set takes writes and each of these members follows.

    A secondary that is still choosing its source may choose one that is frozen next, and then the server
    waits 20 seconds for it, whatever its settings. Fault tests need a set that is past this.
    """
    with _member(ports[0]) as client, _told("the development replica set did not get ready"):
        _poll(lambda: _complete(client, ports), clock=clock, timeout=timeout, alive=alive)


def await_member(port: int, *, clock: Clock, timeout: float, alive: Callable[[], None]) -> None:
    """Wait until a restarted member is primary or secondary again."""
    with _member(port) as client, _told(f"the member at port {port} did not come back"):
        _poll(lambda: _serves(client), clock=clock, timeout=timeout, alive=alive)


@contextmanager
def _told(problem: str) -> Generator[None]:
    try:
        yield
    except PyMongoError as error:
        raise EmbeddedServerError(f"{problem}: {error}") from error


def _member(port: int) -> MongoClient[dict[str, Any]]:
    return MongoClient(
        "127.0.0.1", port, directConnection=True, serverSelectionTimeoutMS=10_000, appname="oplogue-embedded"
    )


def _install(client: MongoClient[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    current = _configuration(client)
    if current is None:
        config = {"_id": SET_NAME, "members": wanted, "settings": _SETTINGS}
        client.admin.command("replSetInitiate", config)
    elif [member["host"] for member in current["members"]] != [member["host"] for member in wanted]:
        # A member that is not in its own configuration counts as removed; it takes only a forced one then.
        members = [{**old, "host": new["host"]} for old, new in zip(current["members"], wanted, strict=True)]
        config = {**current, "members": members, "version": current["version"] + 1}
        client.admin.command("replSetReconfig", config, force=True)


def _configuration(client: MongoClient[dict[str, Any]]) -> dict[str, Any] | None:
    try:
        return client.admin.command("replSetGetConfig")["config"]
    except OperationFailure as error:
        if error.code == _NOT_YET_INITIALIZED:
            return None
        raise


def _poll(ready: Callable[[], bool], *, clock: Clock, timeout: float, alive: Callable[[], None]) -> None:
    deadline = clock.monotonic() + timeout
    while not _tolerant(ready):
        alive()
        if clock.monotonic() > deadline:
            raise EmbeddedServerError(f"the development replica set was not ready after {timeout:g} s")
        clock.block(_POLL_SECONDS)


def _tolerant(ready: Callable[[], bool]) -> bool:
    """Whether it is ready; a connection that an election closed, or a status not there yet, means not yet."""
    try:
        return ready()
    except (ConnectionFailure, OperationFailure):
        return False


def _complete(client: MongoClient[dict[str, Any]], ports: Sequence[int]) -> bool:
    if client.admin.command("hello").get("isWritablePrimary") and len(ports) == 1:
        return True
    hosts = {f"127.0.0.1:{port}" for port in ports}
    members = [one for one in client.admin.command("replSetGetStatus")["members"] if one["name"] in hosts]
    followers = [one for one in members if one["state"] == _SECONDARY and one["syncSourceHost"]]
    primaries = [one for one in members if one["state"] == _PRIMARY]
    return len(primaries) == 1 and len(primaries) + len(followers) == len(hosts)


def _serves(client: MongoClient[dict[str, Any]]) -> bool:
    hello = client.admin.command("hello")
    return bool(hello.get("isWritablePrimary") or hello.get("secondary"))
