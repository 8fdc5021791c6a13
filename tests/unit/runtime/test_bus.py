"""Events reach subscribers and the log, and reporting never raises."""

from __future__ import annotations

import asyncio
import logging

import pytest

from oplogue.clock import Clock
from oplogue.model.events import EVENTS, Event
from oplogue.runtime.bus import Bus


def test_a_subscriber_gets_its_events_only() -> None:
    bus, heard = Bus(Clock()), list[Event]()
    bus.subscribe("task.deferred", heard.append)
    bus.emit("task.deferred", task="t", doc_id=1, attempt=2)
    bus.emit("task.started", task="t", doc_id=1, attempt=2)
    (event,) = heard
    assert (event.code, dict(event.fields)) == ("task.deferred", {"task": "t", "doc_id": 1, "attempt": 2})
    assert event.at.tzinfo is not None


async def test_asynchronous_subscribers_are_waited_for() -> None:
    bus, go, heard = Bus(Clock()), asyncio.Event(), list[str]()

    async def slow(event: Event) -> None:
        await go.wait()
        heard.append(event.code)

    bus.subscribe("planner.started", slow)
    bus.emit("planner.started", term=1)
    go.set()
    await bus.drain()
    assert heard == ["planner.started"]


async def test_subscribers_that_raise_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    bus = Bus(Clock())

    def broken(_event: Event) -> None:
        raise ValueError("a")

    async def broken_too(_event: Event) -> None:
        raise ValueError("b")

    bus.subscribe("planner.started", broken)
    bus.subscribe("planner.started", broken_too)
    bus.emit("planner.started", term=1)
    await bus.drain()
    assert [line.levelname for line in caplog.records] == ["ERROR", "ERROR"]


@pytest.mark.parametrize("code", EVENTS)
def test_every_event_is_logged_with_its_fields(code: str, caplog: pytest.LogCaptureFixture) -> None:
    kind = EVENTS[code]
    fields = {name: f"<{name}>" for name in kind.fields}
    with caplog.at_level(logging.DEBUG, logger="oplogue"):
        Bus(Clock()).emit(code, **fields)
    (line,) = caplog.records
    assert (line.levelno, line.name) == (kind.level, f"oplogue.{code.split('.')[0]}")
    assert {name: getattr(line, name) for name in fields} == fields
    assert getattr(line, "code") == code  # noqa: B009
    assert "{" not in line.getMessage()
