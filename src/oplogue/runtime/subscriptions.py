"""Subscribers: other people's code, called from within the engine, which nothing in them may break or delay.

One that raises is logged. The calls of an asynchronous one run beside the engine, so many at once and no more:
events beyond that are dropped for it, and the log says so. A plain one is called in the event loop.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from oplogue.errors import ConfigurationError
from oplogue.model.annotations import plain, resolved, scope_of
from oplogue.model.events import EVENTS, Event, codes_of

Subscriber = Callable[[Any], Awaitable[None] | None]
"""Called with an event; its parameter may be annotated with the event's class."""

_MOST_AT_ONCE = 1_000
_RAISED = (Exception, asyncio.CancelledError, SystemExit, GeneratorExit)
_LOGGER = logging.getLogger("oplogue")


class Subscription:
    """One subscriber, and its calls that are under way."""

    def __init__(self, subscriber: Subscriber) -> None:
        self._subscriber = subscriber
        self._name = getattr(subscriber, "__qualname__", repr(subscriber))
        self._dropped = 0
        self.running: set[asyncio.Task[None]] = set()

    def tell(self, event: Event) -> None:
        """Call it. Whatever it raises ends in the log."""
        if len(self.running) >= _MOST_AT_ONCE:
            self._drop()
            return
        try:
            answer = self._subscriber(event)
            if inspect.isawaitable(answer):
                call = asyncio.ensure_future(self._finish(answer, event))
                self.running.add(call)
                call.add_done_callback(self._ended)
        except _RAISED:
            self._report(event)

    async def _finish(self, answer: Awaitable[None], event: Event) -> None:
        try:
            await answer
        except _RAISED:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            self._report(event)

    def _report(self, event: Event) -> None:
        _LOGGER.exception("the subscriber %s failed at %s", self._name, event.code)

    def _drop(self) -> None:
        if not self._dropped:
            _LOGGER.warning(
                "the subscriber %s is too slow: %d of its calls are under way, further events are dropped for it",
                self._name,
                len(self.running),
            )
        self._dropped += 1

    def _ended(self, call: asyncio.Task[None]) -> None:
        self.running.discard(call)
        if self._dropped and len(self.running) <= _MOST_AT_ONCE // 2:
            _LOGGER.warning("the subscriber %s has missed %d events", self._name, self._dropped)
            self._dropped = 0


def codes_for(pattern: str, subscriber: Subscriber) -> Sequence[str]:
    """The codes that a subscriber asks for; ConfigurationError where there are none, or it expects others."""
    codes = codes_of(pattern) if isinstance(pattern, str) else ()  # pyright: ignore[reportUnnecessaryIsInstance]
    if not codes:
        expected = f"'*', an area as 'task.*', or one of {', '.join(EVENTS)}"
        raise ConfigurationError("no such event", option="code", value=pattern, expected=expected)
    if not _takes_an_event(subscriber):
        raise ConfigurationError(
            "can't be called so", option="subscriber", value=subscriber, expected="a function of one event"
        )
    wanted = _annotated(subscriber)
    for code in codes:
        carried = EVENTS[code].payload
        if wanted is not None and not issubclass(carried, wanted):
            raise ConfigurationError(
                f"{code} carries {carried.__name__}",
                option="subscriber",
                value=subscriber,
                expected=f"an annotation that fits, not {wanted.__name__}",
            )
    return codes


def _takes_an_event(subscriber: object) -> bool:
    if not callable(subscriber):
        return False
    try:
        signature = inspect.signature(subscriber)
    except (ValueError, TypeError):  # written in C, and says nothing
        return True
    try:
        signature.bind(None)
    except TypeError:
        return False
    return True


def _annotated(subscriber: Subscriber) -> type[Event] | None:
    """The class of events that the subscriber's parameter is annotated with; None where it says nothing."""
    try:
        parameters = list(inspect.signature(subscriber).parameters.values())
    except (ValueError, TypeError):
        return None
    if not parameters or parameters[0].annotation is inspect.Parameter.empty:
        return None
    hint = plain(resolved(parameters[0].annotation, subscriber, scope_of(subscriber)))
    return hint if isinstance(hint, type) and issubclass(hint, Event) else None
