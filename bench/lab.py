"""What every measurement needs: a database of its own, counted commands, a ledger, and waiting for the end."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pymongo import AsyncMongoClient
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

from bench.model import VoidError
from oplogue import App

Document = dict[str, Any]
WAITING = ("getMore",)
"""Commands of cursors that wait at the server for something to happen."""
UNFINISHED = {
    "status": {"$in": ["pending", "processing", "processing_dirty"]},
    "nextRunAt": {"$type": "date"},
}
"""Records that are pending or running: none of a kept million is among them."""
_PATIENCE = 120.0


class Commands(CommandListener):
    """Counts what is sent to the database, and what a change stream brings back."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        self.events_read = 0

    def started(self, event: CommandStartedEvent) -> None:
        """One command more."""
        self.sent[event.command_name] += 1

    def succeeded(self, event: CommandSucceededEvent) -> None:
        """Events of a change stream that reached this process."""
        if event.command_name == "getMore":
            cursor = event.reply["cursor"]
            if str(cursor["ns"]).endswith("$cmd.aggregate"):
                self.events_read += len(cursor["nextBatch"])

    def failed(self, event: CommandFailedEvent) -> None:
        """It was counted when it was sent."""

    def total(self) -> int:
        """All but those of waiting cursors."""
        return sum(count for name, count in self.sent.items() if name not in WAITING)

    def reset(self) -> None:
        """Start counting again."""
        self.sent.clear()
        self.events_read = 0


class Ledger:
    """Which documents were handled, and when the first and the last of them."""

    def __init__(self) -> None:
        self._handled: list[Any] = []
        self.full = asyncio.Event()
        self._expected = 0

    def expect(self, count: int) -> None:
        """So many documents are to be handled."""
        self._expected = count

    def note(self, id_: Any) -> None:
        """This one is handled."""
        self._handled.append(id_)
        if len(self._handled) == self._expected:
            self.full.set()

    def check(self, ids: Iterable[Any]) -> None:
        """Raise `VoidError` unless each of these was handled exactly once, and nothing else."""
        counts, wanted = Counter(self._handled), set(ids)
        twice = sum(1 for count in counts.values() if count > 1)
        missing, unknown = len(wanted - counts.keys()), len(counts.keys() - wanted)
        if twice or missing or unknown:
            raise VoidError(f"ledger: {twice} handled twice, {missing} never, {unknown} unknown")


class Lab:
    """One server, and what the measurements share."""

    def __init__(
        self, uri: str, uri_for: Callable[[str], str], *, scale: float, server_pid: int | None = None
    ) -> None:
        self.uri = uri
        self.uri_for = uri_for
        self.scale = scale
        self._server_pid = server_pid
        self.client: AsyncMongoClient[Document] = AsyncMongoClient(uri)
        self.commands = Commands()

    def size(self, count: int) -> int:
        """How many documents to take where the full run takes so many."""
        return max(int(count * self.scale), 100)

    @asynccontextmanager
    async def database(self) -> AsyncIterator[AsyncDatabase[Document]]:
        """A database that nobody has written to, dropped afterwards."""
        database = self.client.get_database(f"bench_{uuid.uuid4().hex[:10]}")
        try:
            yield database
        finally:
            await self.client.drop_database(database.name)

    @asynccontextmanager
    async def app(self, database: str, **options: Any) -> AsyncIterator[App]:
        """An app whose commands are counted; the caller registers tasks and starts it, here it is stopped."""
        self.commands = Commands()
        client: AsyncMongoClient[Document] = AsyncMongoClient(self.uri, event_listeners=[self.commands])
        app = App(self.uri_for(database), client=client, database=database, **options)
        try:
            yield app
        finally:
            await app.stop()
            await client.close()

    async def settled(self, database: AsyncDatabase[Document], collection: str = "orders") -> None:
        """Wait until no record of the collection is pending or running: one look at the due index each time."""
        records = database[f"{collection}_tasks"]

        async def done() -> bool:
            return await records.find_one(UNFINISHED, {"_id": 1}) is None

        await until(done, every=0.005)

    def stopwatch(self) -> Callable[[int], dict[str, float]]:
        """Start measuring; call the answer with a number of tasks for processor time and commands of each."""
        mine, servers = time.process_time(), processor_seconds(self._server_pid)
        self.commands.reset()

        def stop(tasks: int) -> dict[str, float]:
            figures = {"commands per task": self.commands.total() / tasks}
            figures["python µs per task"] = (time.process_time() - mine) / tasks * 1e6
            if servers:
                figures["mongod µs per task"] = (processor_seconds(self._server_pid) - servers) / tasks * 1e6
            return figures

        return stop

    async def close(self) -> None:
        """Close the runner's own client."""
        await self.client.close()


async def until(
    condition: Callable[[], Awaitable[bool]], *, every: float, patience: float = _PATIENCE
) -> None:
    """Poll; VoidError when it takes too long."""
    deadline = time.perf_counter() + patience
    while not await condition():
        if time.perf_counter() > deadline:
            raise VoidError(f"not done after {patience:.0f} s")
        await asyncio.sleep(every)


def order(number: int) -> Document:
    """The document that all contestants work on."""
    return {"_id": number, "status": "paid", "total": number % 100, "pad": "x" * 300}


async def insert(
    database: AsyncDatabase[Document], count: int, *, start: int = 0, batch: int = 1_000
) -> None:
    """Insert orders, a thousand at a time."""
    orders = database["orders"]
    for first in range(start, start + count, batch):
        numbers = range(first, min(first + batch, start + count))
        await orders.insert_many([order(number) for number in numbers], ordered=False)


def resident(process: int | str = "self") -> float:
    """Megabytes of memory that a process holds; 0 where the system doesn't tell."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def processor_seconds(process: int | None) -> float:
    """Processor time that a process has used; 0 where the system doesn't tell."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
