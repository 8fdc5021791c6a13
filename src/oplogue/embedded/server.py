"""A development replica set of one or three members. The package's docstring tells who ends whom."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from oplogue.clock import Clock
from oplogue.embedded.member import EmbeddedMember, Recipe
from oplogue.embedded.mongod import find_mongod
from oplogue.errors import EmbeddedServerError
from oplogue.store import replica

# A secondary whose source was frozen looks for another after a second, not five; a primary that was asked to
# stop doesn't linger for its clients.
_FAST_FAILOVER = (
    *("--setParameter", "oplogNetworkTimeoutBufferSeconds=1"),
    *("--setParameter", "shutdownTimeoutMillisForSignaledShutdown=100"),
)
_CLOCK = Clock()


def start_embedded(
    *,
    members: int = 1,
    data: Path | str | None = None,
    extra_args: Sequence[str] = (),
    timeout: float = 30,
) -> EmbeddedServer:
    """Start a replica set of one or three members and wait until it takes writes.

    Without ``data`` nothing is left after ``stop()``. ``extra_args`` go to every mongod.

        with start_embedded() as server:
            client = AsyncMongoClient(server.uri)
    """
    if members not in (1, 3):
        raise EmbeddedServerError(f"members={members}: an embedded replica set has 1 or 3 members")
    folder = None if data is None else Path(data).expanduser().absolute()
    server = EmbeddedServer(find_mongod(), members, folder, extra_args)
    try:
        server.start(timeout)
    except BaseException:
        server.stop()
        raise
    return server


class EmbeddedServer:
    """A running replica set, made by `start_embedded`. A context manager; ``stop()`` may be called again."""

    def __init__(self, mongod: Path, members: int, data: Path | None, extra_args: Sequence[str]) -> None:
        kept = [] if data is None else _kept_ports(data, members)
        scratch = Path(tempfile.mkdtemp(prefix="oplogue-mongod-")) if data is None else None
        folder = data or scratch or Path()
        self._ports_file = folder / "ports.json"
        arguments = (*(_FAST_FAILOVER if members > 1 else ()), *extra_args)
        reserved = [_reserve(port) for port in kept or [0] * members]
        self.ports: tuple[int, ...] = tuple(port for port, _ in reserved)
        self.members: tuple[EmbeddedMember, ...] = tuple(
            EmbeddedMember(Recipe(mongod, port, folder / f"member-{number}", scratch, arguments))
            for number, port in enumerate(self.ports)
        )
        self.uri: str = self.uri_for("")
        held = [socket for _, socket in reserved]
        self._stop = weakref.finalize(self, _stop, os.getpid(), self.members, held, scratch)

    def uri_for(self, database: str) -> str:
        """The replica set's URI with a default database."""
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        return f"mongodb://{hosts}/{database}?replicaSet={replica.SET_NAME}"

    def start(self, timeout: float) -> None:
        """Start the members and make them one set. `start_embedded` has done it."""
        for member in self.members:
            member.launch()
        for member in self.members:
            member.await_port(timeout)
        try:
            replica.configure(self.ports, clock=_CLOCK, timeout=timeout, alive=self.check)
        except EmbeddedServerError:
            self.check()  # a member that died explains more than a wait that failed
            raise
        self._ports_file.write_text(json.dumps(self.ports), encoding="utf-8")

    def await_ready(self, timeout: float = 30) -> None:
        """Wait until the set takes writes and every member that runs follows the primary. For fault tests.

        A member that is frozen while another one is choosing whom to follow costs majority writes 20 seconds.
        """
        running = [member.port for member in self.members if member.alive]
        replica.await_ready(running, clock=_CLOCK, timeout=timeout, alive=self.check)

    def check(self) -> None:
        """Raise `EmbeddedServerError` with the log's tail if a member died by itself."""
        for member in self.members:
            member.check()

    def stop(self) -> None:
        """End all members; temporary data are removed."""
        self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()


def _stop(
    owner: int, members: Sequence[EmbeddedMember], reserved: Sequence[socket.socket], scratch: Path | None
) -> None:
    if os.getpid() != owner:  # a forked child that exits must not end its parent's server
        return
    for member in members:
        member.ask_to_end()
    for member in members:
        member.await_end()
    for held in reserved:
        held.close()
    if scratch is not None:
        shutil.rmtree(scratch, ignore_errors=True)


def _kept_ports(folder: Path, members: int) -> list[int]:
    """The ports of the last start on this folder; empty if there was none."""
    try:
        ports: list[int] = json.loads((folder / "ports.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return []
    if len(ports) != members:
        raise EmbeddedServerError(f"members={members}: {folder} keeps a replica set of {len(ports)}")
    return ports


def _reserve(port: int) -> tuple[int, socket.socket]:
    """A free loopback port, if possible the given one, and the socket that holds it.

    On Linux a server may bind a port that a socket with the same option has bound but doesn't listen on: so
    nobody else gets the port before mongod starts, nor while it is restarted. Elsewhere it is only chosen.
    """
    held = socket.socket()
    if os.name == "posix":
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        held.bind(("127.0.0.1", port))
    except OSError:
        held.bind(("127.0.0.1", 0))
    chosen: int = held.getsockname()[1]
    if sys.platform != "linux":
        held.close()
    return chosen, held
