"""Brings the members of a development replica set together. Only `oplogue.embedded` uses it.

Every function talks to single members over direct connections, synchronously, and expects that the members'
ports answer already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pymongo import MongoClient
from pymongo.errors import PyMongoError

from oplogue.clock import Clock
from oplogue.errors import EmbeddedServerError

SET_NAME = "oplogue"

_PRIMARY, _SECONDARY = 1, 2
# A member that is gone is replaced after about one second, not ten: these sets live on one machine.
_SETTINGS = {
    "electionTimeoutMillis": 1000,
    "heartbeatIntervalMillis": 200,
    "heartbeatTimeoutSecs": 1,
    "catchUpTimeoutMillis": 500,
}


def configure(ports: Sequence[int], *, clock: Clock, timeout: float, alive: Callable[[], None]) -> None:
    """Make the members one replica set, unless their data say that they are, and wait until it is ready.

    `alive` is called between polls: it raises when waiting has become pointless.
    """
    with _member(ports[0]) as client:
        _poll(lambda: _configured(client, ports), clock=clock, timeout=timeout, alive=alive)
    await_ready(ports, clock=clock, timeout=timeout, alive=alive)


def await_ready(ports: Sequence[int], *, clock: Clock, timeout: float, alive: Callable[[], None]) -> None:
    """Wait until the set takes writes and each of these members follows.

    A secondary that is still choosing its source may choose one that is frozen next, and then the server
    waits 20 seconds for it, whatever its settings. Fault tests need a set that is past this.
    """
    with _member(ports[0]) as client:
        _poll(lambda: _complete(client, ports), clock=clock, timeout=timeout, alive=alive)


def await_member(port: int, *, clock: Clock, timeout: float, alive: Callable[[], None]) -> None:
    """Wait until a restarted member is primary or secondary again."""
    with _member(port) as client:
        _poll(lambda: _serves(client), clock=clock, timeout=timeout, alive=alive)


def _hosts(ports: Sequence[int]) -> list[str]:
    return [f"127.0.0.1:{port}" for port in ports]


def _member(port: int) -> MongoClient[dict[str, Any]]:
    return MongoClient(
        "127.0.0.1", port, directConnection=True, serverSelectionTimeoutMS=10_000, appname="oplogue-embedded"
    )


def _configured(client: MongoClient[dict[str, Any]], ports: Sequence[int]) -> bool:
    """Whether the stored configuration names these ports; if not, a step towards it."""
    stored = client.local.get_collection("system.replset").find_one()
    if stored is None:
        members = [{"_id": number, "host": host} for number, host in enumerate(_hosts(ports))]
        config = {"_id": SET_NAME, "members": members, "settings": _SETTINGS}
        client.admin.command("replSetInitiate", config)
        return True
    if [member["host"] for member in stored["members"]] == _hosts(ports):
        return True
    # A member that is not in its own configuration counts as removed, and takes only a forced one. First it
    # tries its old address, and refuses until whoever has that port now answers, or half a minute passed.
    members = [{**one, "host": host} for one, host in zip(stored["members"], _hosts(ports), strict=True)]
    config = {**stored, "members": members, "version": stored["version"] + 1}
    client.admin.command("replSetReconfig", config, force=True)
    return False


def _poll(ready: Callable[[], bool], *, clock: Clock, timeout: float, alive: Callable[[], None]) -> None:
    """Ask until it is ready. Errors mean not yet: elections close connections, states come one by one."""
    deadline = clock.monotonic() + timeout
    pause = 0.005
    while True:
        problem: PyMongoError | None = None
        try:
            if ready():
                return
        except PyMongoError as error:
            problem = error
        alive()
        if clock.monotonic() > deadline:
            why = f": {problem}" if problem is not None else ""
            raise EmbeddedServerError(
                f"the development replica set was not ready after {timeout:g} s{why}"
            ) from problem
        clock.block(pause)
        pause = min(pause * 1.2, 0.1)


def _complete(client: MongoClient[dict[str, Any]], ports: Sequence[int]) -> bool:
    if client.admin.command("hello").get("isWritablePrimary") and len(ports) == 1:
        return True
    hosts = _hosts(ports)
    members = [one for one in client.admin.command("replSetGetStatus")["members"] if one["name"] in hosts]
    followers = [one for one in members if one["state"] == _SECONDARY and one["syncSourceHost"]]
    primaries = [one for one in members if one["state"] == _PRIMARY]
    return len(primaries) == 1 and len(primaries) + len(followers) == len(hosts)


def _serves(client: MongoClient[dict[str, Any]]) -> bool:
    hello = client.admin.command("hello")
    return bool(hello.get("isWritablePrimary") or hello.get("secondary"))
