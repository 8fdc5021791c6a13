"""Where everything that happens is reported: to subscribers, and to the log. Reporting never raises."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from oplogue.clock import Clock
from oplogue.errors import ConfigurationError
from oplogue.model.events import EVENTS, Event

Subscriber = Callable[[Event], Awaitable[None] | None]

_LOGGER = logging.getLogger("oplogue")


class Bus:
    """Emits events. An event that nobody listens to costs a dictionary look-up."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._subscribers: dict[str, list[Subscriber]] = {}
        self._running: set[asyncio.Task[None]] = set()
        self.counts: Counter[str] = Counter()

    def subscribe(self, code: str, subscriber: Subscriber) -> None:
        """Call the subscriber with each event of that code."""
        if code not in EVENTS:
            raise ConfigurationError(
                "no such event", option="code", value=code, expected=f"one of {', '.join(EVENTS)}"
            )
        self._subscribers.setdefault(code, []).append(subscriber)

    def emit(self, code: str, /, **fields: Any) -> None:
        """Report that something happened."""
        self.counts[code] += 1
        kind = EVENTS[code]
        if _LOGGER.isEnabledFor(kind.level):
            area = _LOGGER.getChild(code.partition(".")[0])
            area.log(kind.level, kind.message.format_map(fields), extra={"code": code, **fields})
        for subscriber in self._subscribers.get(code, ()):
            self._tell(subscriber, Event(code, self._clock.now(), fields))

    def _tell(self, subscriber: Subscriber, event: Event) -> None:
        try:
            answer = subscriber(event)
        except Exception:
            _LOGGER.exception("a subscriber of %s failed", event.code)
            return
        if inspect.isawaitable(answer):
            task = asyncio.ensure_future(_finish(answer, event))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def drain(self) -> None:
        """Wait for asynchronous subscribers that still run."""
        while self._running:
            await asyncio.gather(*self._running)


async def _finish(answer: Awaitable[None], event: Event) -> None:
    try:
        await answer
    except Exception:
        _LOGGER.exception("a subscriber of %s failed", event.code)
