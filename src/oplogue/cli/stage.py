"""Puts the demo on: a server, the shop, its customers, the picture, and the audit at the end."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import uuid
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from oplogue.cli.audit import gaps, read_records
from oplogue.cli.customers import Customers
from oplogue.cli.failures import INTERRUPTED, OK, WRONG, told
from oplogue.cli.gauges import Gauges
from oplogue.cli.shop import NOTIFY, open_shop
from oplogue.cli.view import TASKS, Scene, show
from oplogue.clock import Clock
from oplogue.embedded import start_embedded
from oplogue.errors import OplogueError
from oplogue.runtime.parts import end
from oplogue.store.connection import make_client
from oplogue.store.faults import StoreError

_RATE = 40.0
_STALL = 20.0
_LONGEST, _LONGEST_PER_ORDER = 60.0, 0.02
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Script:
    """What the user asked for."""

    seconds: float | None
    docs: int | None
    uri: str | None

    @property
    def open_ended(self) -> bool:
        """Whether Ctrl-C is its regular end."""
        return self.seconds is None and self.docs is None


@dataclass(frozen=True, slots=True)
class Server:
    """Where the shop's data are."""

    uri: str
    database: str
    title: str


def play(script: Script) -> int:
    """Put the demo on; its exit code."""
    # Events are shown by the view; without a handler the logging module would print warnings across it.
    logging.getLogger("oplogue").addHandler(logging.NullHandler())
    return asyncio.run(_Play(script).run())


class _Play:
    def __init__(self, script: Script) -> None:
        self._script = script
        self._clock = Clock()
        self._console = Console()
        self._scene: Scene | None = None
        self._interrupted = asyncio.Event()

    async def run(self) -> int:
        self._listen()
        try:
            async with _server(self._script.uri, self._console) as server:
                code = await self._play(server)
        except asyncio.CancelledError:
            code = None
        if code is not None:
            return code
        if self._scene is not None:
            self._summarize(self._scene)
        self._console.print("Interrupted: what was on its way then was not checked (--seconds N checks).")
        return OK if self._script.open_ended else INTERRUPTED

    def _listen(self) -> None:
        """The first Ctrl-C ends the play, so that the app stops gracefully; one before it, or a second, all."""
        task = asyncio.current_task()

        def interrupt() -> None:
            if task is not None and (self._scene is None or self._interrupted.is_set()):
                task.cancel()
            self._interrupted.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            with suppress(NotImplementedError):  # Windows: KeyboardInterrupt it is
                asyncio.get_running_loop().add_signal_handler(number, interrupt)

    async def _play(self, server: Server) -> int | None:
        """The exit code; None when it was interrupted."""
        shop = open_shop(server.uri, server.database, clock=self._clock)
        gauges = Gauges(shop.app, self._clock)
        script = self._script
        async with shop.app:
            customers = Customers(
                shop.app, seconds=script.seconds, docs=script.docs, rate=_RATE, clock=self._clock
            )
            started = self._clock.monotonic()
            scene = Scene(server.title, shop, gauges, customers.book, self._clock, started)
            self._scene = scene
            async with _shown(scene, self._console):
                missing = await self._unless_interrupted(self._perform(scene, customers))
        if missing is None:
            return None
        self._summarize(scene)
        return self._judge(scene, missing)

    async def _perform(self, scene: Scene, customers: Customers) -> list[str]:
        scene.act = "customers are writing"
        await customers.write()
        scene.act = "all is written, waiting for the last handlers"
        missing = await self._missing(scene)
        scene.act = "done"
        return missing

    async def _unless_interrupted(self, performance: Coroutine[Any, Any, list[str]]) -> list[str] | None:
        performing = asyncio.create_task(performance, name="demo-customers")
        interrupted = asyncio.create_task(self._interrupted.wait(), name="demo-ctrl-c")
        try:
            await asyncio.wait({performing, interrupted}, return_when=asyncio.FIRST_COMPLETED)
            return performing.result() if performing.done() else None
        finally:
            await end(performing, interrupted)

    async def _missing(self, scene: Scene) -> list[str]:
        """Wait until everything is handled, as long as something moves; what is missing then."""
        expected, ran = scene.book.expected(), scene.shop.ledger.ran
        began = self._clock.monotonic()
        longest = _LONGEST + _LONGEST_PER_ORDER * len(scene.book.paid)
        while True:
            now = self._clock.monotonic()
            late = now - max(scene.gauges.moved, began) > _STALL or now - began > longest
            if late or all(ran.get(key) == values for key, values in expected.items()):
                missing = gaps(expected, await read_records(scene.shop.app), ran)
                if late or not missing:
                    return missing
            await self._clock.sleep(0.1)

    def _summarize(self, scene: Scene) -> None:
        say, book = self._console.print, scene.book
        reviews = sum(book.reviews.values())
        say(f"\n{scene.elapsed:.1f} s: {book.orders:,} orders, {len(book.paid):,} paid, {reviews:,} reviews")
        for task in TASKS:
            ended = scene.gauges.ended[task]
            counts = ", ".join(f"{ended[end]:,} {end}" for end in sorted(ended))
            say(f"  {task:16} {counts or 'no run'}")
        latency = f"p50 {scene.latency(0.5)}, p99 {scene.latency(0.99)}"
        say(f"  write → handler  {latency} ({NOTIFY}, no debounce)")

    def _judge(self, scene: Scene, missing: list[str]) -> int:
        expected = len(scene.book.expected())
        if not missing:
            paid = len(scene.book.paid)
            self._console.print(f"Every order was handled: {paid:,} of {paid:,}, checked in the database.")
            return OK
        print(f"oplogue demo: {len(missing)} of {expected} were not handled:", file=sys.stderr)
        for line in missing[:_SHOWN]:
            print(f"  {line}", file=sys.stderr)
        return WRONG


@asynccontextmanager
async def _server(uri: str | None, console: Console) -> AsyncGenerator[Server]:
    if uri is not None:
        async with _database_of_its_own(uri) as server:
            yield server
        return
    console.print("Starting an embedded MongoDB …", style="dim")
    embedded = await asyncio.to_thread(start_embedded)
    try:
        version = await _version(embedded.uri)
        yield Server(embedded.uri, "shop", f"MongoDB {version}, embedded")
    finally:
        await asyncio.to_thread(embedded.stop)


@asynccontextmanager
async def _database_of_its_own(uri: str) -> AsyncGenerator[Server]:
    """On a server of the user's nothing of theirs is touched."""
    version, name = await _version(uri), f"oplogue_demo_{uuid.uuid4().hex[:8]}"
    try:
        yield Server(uri, name, f"MongoDB {version}, database {name}")
    finally:
        async with make_client(uri) as client:
            await client.drop_database(name)


async def _version(uri: str) -> str:
    async with make_client(uri) as client:
        try:
            hello = await client.admin.command("hello")
            build = await client.admin.command("buildInfo")
        except StoreError as error:
            raise OplogueError(f"no MongoDB to work with: {told(error)}") from error
    if "setName" not in hello:
        raise OplogueError("that MongoDB is no replica set: it has no change streams")
    return str(build["version"])


@asynccontextmanager
async def _shown(scene: Scene, console: Console) -> AsyncGenerator[None]:
    showing = asyncio.create_task(show(scene, console), name="demo-view")
    try:
        yield
    finally:
        await end(showing)
