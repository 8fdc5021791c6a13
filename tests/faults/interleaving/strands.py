"""Coroutines that go on by one statement at a time: any order of many actors' statements, and a fault at each.

A *strand* is a coroutine of an actor. It halts before each statement of the driver and again behind it, and goes on
when it is told to: unharmed, or with an error of the network, which before the statement means that nothing was
sent, and behind it that the answer is unknown. A strand that is killed never sends anything again, whatever its
clean-up would like to; the statement that it was about to send may be on its way, and land at any later time.

Only the driver's client is wrapped, by subclasses that halt and then do what they always do: the store, the
planner and the workers are the library's own.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from pymongo import AsyncMongoClient
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.cursor import AsyncCursor
from pymongo.asynchronous.database import AsyncDatabase

Document = dict[str, Any]
_BEGINNING = "its beginning"
Call = Callable[[], Awaitable[Any]]


class Killed(BaseException):
    """Nothing of a killed actor reaches the database."""


class Strand:
    """One coroutine, and where it stands."""

    def __init__(self, part: str, coroutine: Coroutine[Any, Any, None]) -> None:
        self.part = part
        """What it does, in one word."""
        self.place: str = _BEGINNING
        """Where it has halted."""
        self.rests = False
        """Whether it has nothing under way."""
        self.free = False
        """Whether it goes on without halting, until it rests."""
        self.dead = False
        self.about_to_send: Call | None = None
        self._over = False
        loop = asyncio.get_running_loop()
        self._turn: asyncio.Future[None] = loop.create_future()
        self._halted = asyncio.Event()
        context = contextvars.copy_context()
        context.run(_CURRENT.set, self)
        self._task = loop.create_task(self._run(coroutine), name=part, context=context)

    async def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        try:
            await self._halt(self.place)
            await coroutine
        except Killed:
            pass
        finally:
            coroutine.close()
            self._over = True
            self._halted.set()

    @property
    def has_begun(self) -> bool:
        """Whether it has done anything."""
        return self.place != _BEGINNING

    @property
    def at_statement(self) -> bool:
        """Whether it stands before a statement or behind one."""
        return not self.rests and not self.ended and self.place.startswith(("before ", "behind "))

    @property
    def ended(self) -> bool:
        """Whether it has come to its end."""
        return self._task.done()

    async def begin(self) -> None:
        """Come to the first halt."""
        await self._halted.wait()

    async def go_on(self, error: Exception | None = None) -> None:
        """To the next halt, or to the end; what the coroutine raises is raised here."""
        if self.ended:
            return
        self._halted.clear()
        turn, self._turn = self._turn, asyncio.get_running_loop().create_future()
        self.rests = False
        if error is None:
            turn.set_result(None)
        else:
            turn.set_exception(error)
        await self._halted.wait()
        if self._over:
            await self._task

    async def kill(self) -> None:
        """Never go on. What its clean-up does stays inside the process, which is gone."""
        self.dead = True
        if not self.ended:
            self._turn.set_exception(Killed())
            await asyncio.wait({self._task})

    async def rest(self, place: str) -> None:
        """Halt with nothing under way."""
        self.rests = True
        await self._halt(place)

    async def halt(self, place: str) -> None:
        """Halt, unless it is free."""
        if self.dead:
            raise Killed
        if not self.free:
            await self._halt(place)

    async def _halt(self, place: str) -> None:
        if self.dead:
            raise Killed
        self.place = place
        self._halted.set()
        await self._turn


_CURRENT: contextvars.ContextVar[Strand | None] = contextvars.ContextVar("strand", default=None)


def current() -> Strand:
    """The strand that runs now."""
    strand = _CURRENT.get()
    assert strand is not None
    return strand


async def send(what: str, call: Call) -> Any:
    """Send a statement, halting before and behind it. What no strand sends (the stage itself) is sent at once."""
    strand = _CURRENT.get()
    if strand is None:
        return await call()
    strand.about_to_send = call
    try:
        await strand.halt(f"before {what}")
    finally:
        if not strand.dead:
            strand.about_to_send = None
    answer = await call()
    await strand.halt(f"behind {what}")
    return answer


class HaltingCursor(AsyncCursor[Document]):
    """Halts around its one batch."""

    _asked = False

    async def next(self) -> Document:
        """The next document; the first one asks the server."""
        if self._asked:
            return await super().next()
        self._asked = True
        return await send("find", super().next)

    async def to_list(self, length: int | None = None) -> list[Document]:
        """All documents."""
        ask = super().to_list
        return await send("find", lambda: ask(length))


class HaltingCollection(AsyncCollection[Document]):
    """Halts around each statement."""

    def find(self, *args: Any, **options: Any) -> AsyncCursor[Document]:
        """A cursor that halts."""
        return HaltingCursor(self, *args, **options)

    def with_options(self, *args: Any, **options: Any) -> AsyncCollection[Any]:
        """The same collection with other concerns or another codec."""
        plain = super().with_options(*args, **options)
        return _halting(plain, self.database)

    async def aggregate(self, *args: Any, **options: Any) -> Any:
        """Halting."""
        ask = super().aggregate
        return await send("aggregate", lambda: ask(*args, **options))

    async def update_one(self, *args: Any, **options: Any) -> Any:
        """Halting."""
        ask = super().update_one
        return await send("update one", lambda: ask(*args, **options))

    async def update_many(self, *args: Any, **options: Any) -> Any:
        """Halting."""
        ask = super().update_many
        return await send("update many", lambda: ask(*args, **options))

    async def bulk_write(self, *args: Any, **options: Any) -> Any:
        """Halting."""
        ask = super().bulk_write
        return await send("bulk write", lambda: ask(*args, **options))

    async def delete_many(self, *args: Any, **options: Any) -> Any:
        """Halting."""
        ask = super().delete_many
        return await send("delete many", lambda: ask(*args, **options))

    async def find_one_and_update(self, *args: Any, **options: Any) -> Any:
        """Halting."""
        ask = super().find_one_and_update
        return await send("find and update", lambda: ask(*args, **options))


class HaltingDatabase(AsyncDatabase[Document]):
    """Its collections halt."""

    def get_collection(self, *args: Any, **options: Any) -> AsyncCollection[Any]:
        """A collection that halts."""
        return _halting(super().get_collection(*args, **options), self)

    def __getitem__(self, name: str) -> AsyncCollection[Any]:
        return HaltingCollection(self, name)


class HaltingClient(AsyncMongoClient[Document]):
    """Its databases' collections halt."""

    def get_database(self, *args: Any, **options: Any) -> AsyncDatabase[Any]:
        """A database whose collections halt."""
        plain = super().get_database(*args, **options)
        return HaltingDatabase(
            self,
            plain.name,
            plain.codec_options,
            plain.read_preference,
            plain.write_concern,
            plain.read_concern,
        )

    def __getitem__(self, name: str) -> AsyncDatabase[Any]:
        return self.get_database(name)


def _halting(plain: AsyncCollection[Any], database: AsyncDatabase[Any]) -> HaltingCollection:
    return HaltingCollection(
        database,
        plain.name,
        False,
        plain.codec_options,
        plain.read_preference,
        plain.write_concern,
        plain.read_concern,
    )
