"""An app under test: everything that it reports is kept, and a test awaits what it expects instead of sleeping."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from oplogue import App
from oplogue.model.events import Event
from oplogue.model.record import TaskRecord

LIMIT = 10.0
"""Seconds that anything may take before its test fails."""

T = TypeVar("T")


class Stage:
    """One app and what it has reported so far."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.events: list[Event] = []
        self._taken: set[int] = set()
        self._stirred = asyncio.Event()
        app.on("*")(self._note)

    def _note(self, event: Event) -> None:
        self.events.append(event)
        self._stirred.set()

    async def next(self, code: str, *, limit: float = LIMIT, **fields: Any) -> Event:
        """The first event of that code, with these fields, that was not taken before."""
        async with _Limited(limit, lambda: f"no {code} {fields}; heard: {self._heard()}"):
            while True:
                for place, event in enumerate(self.events):
                    if place not in self._taken and _fits(event, code, fields):
                        self._taken.add(place)
                        return event
                await self._stir()

    async def until(self, true: Callable[[], Awaitable[bool] | bool], *, limit: float = LIMIT) -> None:
        """Wait until that is true; asked again after every event."""
        async with _Limited(limit, lambda: f"never came true; heard: {self._heard()}"):
            while True:
                self._stirred.clear()
                answer = true()
                if answer if isinstance(answer, bool) else await answer:
                    return
                await self._stirred.wait()

    def heard(self, code: str, **fields: Any) -> list[Event]:
        """All events of that code, with these fields, so far."""
        return [event for event in self.events if _fits(event, code, fields)]

    async def eventually(self, true: Callable[[], Awaitable[bool]], *, limit: float = LIMIT) -> None:
        """Ask until that is true: for what no event tells of. The question's own round trip is the pause."""
        async with _Limited(limit, lambda: f"never came true; heard: {self._heard()}"):
            while not await true():
                pass

    async def counted(self, count: int, *, limit: float = LIMIT, **which: Any) -> None:
        """Ask until there are so many such records."""

        async def there_are() -> bool:
            return await self.app.count_reactive_tasks(**which) == count

        await self.eventually(there_are, limit=limit)

    async def record(self, doc_id: Any = None, *, task: str | None = None) -> TaskRecord:
        """The only record, or that of a document, or of a task."""
        source = None if doc_id is None else {"_id": doc_id}
        page = await self.app.get_reactive_tasks(task, source_doc_filter=source)
        assert len(page.items) == 1, page
        return page.items[0]

    async def planned(self, count: int) -> None:
        """Wait until so many records are pending."""

        async def all_pending() -> bool:
            return await self.app.count_reactive_tasks(status="pending") == count

        await self.until(all_pending)

    async def _stir(self) -> None:
        self._stirred.clear()
        await self._stirred.wait()

    def _heard(self) -> str:
        return ", ".join(f"{event.code} {dict(event.fields)}" for event in self.events[-12:])


class Gate:
    """A door that handlers wait at: the test knows how many stand there, and opens it."""

    def __init__(self) -> None:
        self.waiting = 0
        self.most = 0
        self._open = asyncio.Event()
        self._came = asyncio.Condition()

    async def __call__(self) -> None:
        """Wait until it is open."""
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        try:
            async with self._came:
                self._came.notify_all()
            await self._open.wait()
        finally:
            self.waiting -= 1

    async def reached(self, count: int = 1) -> None:
        """Wait until so many stand before it."""
        async with _Limited(LIMIT, lambda: f"{self.waiting} of {count} came"), self._came:
            await self._came.wait_for(lambda: self.waiting >= count)

    @property
    def opened(self) -> bool:
        """Whether it is open."""
        return self._open.is_set()

    def open(self) -> None:
        """Let everybody through, from now on."""
        self._open.set()


async def within(awaitable: Awaitable[T], limit: float = LIMIT) -> T:
    """The same, failing when it takes too long."""
    async with asyncio.timeout(limit):
        return await awaitable


class _Limited:
    def __init__(self, seconds: float, message: Callable[[], str]) -> None:
        self._timeout = asyncio.timeout(seconds)
        self._message = message

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError:
            raise AssertionError(self._message()) from None


def _fits(event: Event, code: str, fields: dict[str, Any]) -> bool:
    return event.code == code and all(event.fields.get(name) == value for name, value in fields.items())
