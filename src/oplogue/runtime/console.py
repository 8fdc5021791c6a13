"""The operator's place beside a cluster: reads and changes what the instances share, and is no instance itself.

It needs the database alone, and no code of the user's. It leads nothing and claims nothing; what it changes, the
live instances are told of at once by a signal.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

from oplogue.clock import Clock
from oplogue.model.definition import Namespace
from oplogue.runtime.bus import Bus
from oplogue.runtime.desk import Desk
from oplogue.runtime.lookout import Lookout
from oplogue.store import Client
from oplogue.store.connection import check_server, database_name, make_client, uri_or_environment
from oplogue.store.controls import Controls
from oplogue.store.definitions import Definitions
from oplogue.store.documents import server_time
from oplogue.store.faults import StoreError, describe
from oplogue.store.instances import Instances
from oplogue.store.leadership import Leadership
from oplogue.store.operations import Operations
from oplogue.store.scans import Scans
from oplogue.store.signals import Signal, Signals, Topic

GLOBALS_COLLECTION = "_oplogue_globals"

_BOUND = timedelta(seconds=10)
_NAME = "console"
_LOGGER = logging.getLogger("oplogue.console")


class Console:
    """What can be asked of a cluster, and done to it, over one database."""

    def __init__(
        self, client: Client, database: str, *, globals_collection: str = GLOBALS_COLLECTION
    ) -> None:
        globals_, clock = Namespace(database, globals_collection), Clock()
        self.client: Client = client
        self.globals: Namespace = globals_
        self.definitions: Definitions = Definitions(client, globals_, bound=_BOUND)
        self.controls: Controls = Controls(client, globals_, bound=_BOUND)
        self.instances: Instances = Instances(client, globals_, bound=_BOUND)
        self.leadership: Leadership = Leadership(client, globals_, bound=_BOUND)
        self.scans: Scans = Scans(client, globals_, bound=_BOUND)
        self.lookout: Lookout = Lookout(client, globals_, bound=_BOUND)
        self._signals = Signals(client, globals_, patience=_BOUND, bound=_BOUND)
        self.desk: Desk = Desk(
            definitions=self.definitions,
            operations=Operations(client, database),
            controls=self.controls,
            scans=self.scans,
            tell=self._tell,
            bus=Bus(clock, _NAME),
            clock=clock,
        )

    async def now(self) -> datetime:
        """The server's time."""
        return await server_time(self.client, bound=_BOUND)

    async def ask_for_loads(self) -> None:
        """Let the live instances say soon how busy they are; else it is as old as their heartbeats."""
        # Where nobody listens nothing is written: to look must not leave a collection behind.
        if await self.instances.live():
            await self._tell(Topic.LOAD, ())

    async def _tell(self, topic: Topic, names: Iterable[str]) -> None:
        try:
            await self._signals.send(Signal(topic, _NAME, tuple(sorted(names))))
        except StoreError as error:
            # What was changed is written; without the signal the instances find it at their next look.
            _LOGGER.debug("instances could not be told: %s", describe(error))


@asynccontextmanager
async def open_console(
    uri: str | None = None,
    *,
    database: str | None = None,
    globals_collection: str = GLOBALS_COLLECTION,
) -> AsyncGenerator[Console]:
    """A console on a server that answers; the URI is that of the environment where none is given."""
    uri = uri_or_environment(uri)
    name = database_name(uri, None, database)
    assert uri is not None  # refused above
    async with make_client(uri) as client:
        await check_server(client, bound=_BOUND)
        yield Console(client, name, globals_collection=globals_collection)
