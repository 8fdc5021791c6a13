"""Events reach subscribers and the log, and reporting never raises."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from oplogue.clock import Clock
from oplogue.errors import ConfigurationError
from oplogue.events import Event, Failure, RunEvent, RunFailed, TaskEvent
from oplogue.model.events import EVENTS
from oplogue.runtime.bus import Bus

RUN = {"task": "t", "doc_id": 1, "attempt": 2}


@pytest.fixture
def bus() -> Bus:
    return Bus(Clock(), "here")


def test_a_subscriber_gets_its_events_only(bus: Bus) -> None:
    heard = list[RunEvent]()
    bus.subscribe("task.lease_lost", heard.append)
    bus.emit("task.lease_lost", **RUN)
    bus.emit("task.started", **RUN)
    (event,) = heard
    assert (event.code, event.instance_id, event.task, event.doc_id, event.attempt) == (
        "task.lease_lost",
        "here",
        "t",
        1,
        2,
    )
    assert event.fields == {"instance_id": "here", **RUN}
    assert event.at.tzinfo is not None


def test_a_subscriber_of_an_area_gets_all_of_it(bus: Bus) -> None:
    area, everything = list[TaskEvent](), list[Event]()
    bus.subscribe("task.*", area.append)
    bus.subscribe("*", everything.append)
    bus.emit("task.started", **RUN)
    bus.emit("instance.started")
    assert [event.code for event in area] == ["task.started"]
    assert [event.code for event in everything] == ["task.started", "instance.started"]


async def test_asynchronous_subscribers_are_waited_for(bus: Bus) -> None:
    go, heard = asyncio.Event(), list[str]()

    async def slow(event: Event) -> None:
        await go.wait()
        heard.append(event.code)

    bus.subscribe("planner.started", slow)
    bus.emit("planner.started", term=1)
    go.set()
    await bus.drain(10)
    assert heard == ["planner.started"]


@pytest.mark.parametrize(
    "error", [ValueError("no"), SystemExit(3), asyncio.CancelledError(), GeneratorExit()]
)
async def test_subscribers_that_raise_are_logged(
    bus: Bus, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    heard = list[str]()

    def broken(_event: Event) -> None:
        raise error

    async def broken_too(_event: Event) -> None:
        raise error

    bus.subscribe("planner.started", broken)
    bus.subscribe("planner.started", broken_too)
    bus.subscribe("planner.started", lambda event: heard.append(event.code))
    bus.emit("planner.started", term=1)
    await bus.drain(10)
    assert heard == ["planner.started"]
    assert [line.levelname for line in caplog.records] == ["ERROR", "ERROR"]
    assert all("broken" in line.getMessage() and line.exc_info for line in caplog.records)


async def test_a_subscriber_that_never_ends_is_cancelled_and_reported(
    bus: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    cancelled = asyncio.Event()

    async def forever(_event: Event) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    bus.subscribe("planner.started", forever)
    bus.emit("planner.started", term=1)
    await bus.drain(0.01)
    assert cancelled.is_set()
    assert "1 calls were cancelled, 0 of them still run" in caplog.text


async def test_a_subscriber_that_refuses_to_end_is_left_behind(
    bus: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    go = asyncio.Event()

    async def stubborn(_event: Event) -> None:
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue

    bus.subscribe("planner.started", stubborn)
    bus.emit("planner.started", term=1)
    await bus.drain(0.01)
    assert "1 calls were cancelled, 1 of them still run" in caplog.text
    go.set()
    await bus.drain(10)


async def test_a_slow_subscriber_misses_events_and_the_log_says_how_many(
    bus: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    go, heard = asyncio.Event(), list[Event]()

    async def slow(event: Event) -> None:
        heard.append(event)
        await go.wait()

    bus.subscribe("task.started", slow)
    for _ in range(1_010):
        bus.emit("task.started", **RUN)
    go.set()
    await bus.drain(10)
    assert len(heard) == 1_000
    first, last = (line.getMessage() for line in caplog.records)
    assert "too slow" in first
    assert "missed 10 events" in last
    bus.emit("task.started", **RUN)
    await bus.drain(10)
    assert len(heard) == 1_001


def test_a_filter_of_the_log_that_raises_does_not_reach_the_engine(
    bus: Bus, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_line: logging.LogRecord) -> bool:
        raise LookupError("no request")

    logger = logging.getLogger("oplogue.planner")
    logger.addFilter(broken)
    try:
        bus.emit("planner.stream_error", error="gone")
    finally:
        logger.removeFilter(broken)
    assert "LookupError: no request" in capsys.readouterr().err


class _Steps(Clock):
    """A clock that stands still until it is moved."""

    at = 0.0

    def monotonic(self) -> float:
        return self.at


def test_failures_that_repeat_themselves_are_written_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    clock = _Steps()
    bus, heard = Bus(clock, "here"), list[Failure]()
    bus.subscribe("claim.failed", heard.append)
    for _ in range(5):
        bus.emit("claim.failed", source="shop.orders", error="AutoReconnect: gone")
    bus.emit("claim.failed", source="shop.users", error="AutoReconnect: gone")
    bus.emit("claim.failed", source="shop.orders", error="OperationFailure 13: no")
    clock.at += 61
    bus.emit("claim.failed", source="shop.orders", error="AutoReconnect: gone")
    clock.at += 61
    bus.emit("claim.failed", source="shop.orders", error="AutoReconnect: gone")
    again = "claiming from shop.orders failed: AutoReconnect: gone"
    assert [line.getMessage() for line in caplog.records] == [
        again,
        "claiming from shop.users failed: AutoReconnect: gone",
        "claiming from shop.orders failed: OperationFailure 13: no",
        f"{again} (4 more like this since it was last said)",
        again,
    ]
    assert len(heard) == 9
    assert bus.counts["claim.failed"] == 9


def _takes_nothing() -> None: ...


def _takes_failures(event: RunFailed) -> None:
    assert event.error


@pytest.mark.parametrize(
    ("code", "subscriber", "named"),
    [
        ("task.exploded", print, "task.failed"),
        ("tasks.*", print, "'task.*'"),
        (7, print, "task.failed"),
        ("task.failed", 7, "a function of one event"),
        ("task.failed", _takes_nothing, "a function of one event"),
        ("task.completed", _takes_failures, "not RunFailed"),
        ("task.*", _takes_failures, "task.started carries RunEvent"),
    ],
)
def test_subscribing_to_what_does_not_exist_names_what_does(
    bus: Bus, code: Any, subscriber: Any, named: str
) -> None:
    with pytest.raises(ConfigurationError, match=named):
        bus.subscribe(code, subscriber)


def test_annotations_that_fit_or_say_nothing_are_taken(bus: Bus) -> None:
    def base(event: Event) -> None:
        assert event.code

    def unknown(event: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    fitting: list[Any] = [_takes_failures, base, print, lambda _event: None, unknown]  # type: ignore[reportUnknownVariableType]
    for subscriber in fitting:
        bus.subscribe("task.failed", subscriber)


@pytest.mark.parametrize("code", EVENTS)
def test_every_event_is_logged_with_its_fields(bus: Bus, code: str, caplog: pytest.LogCaptureFixture) -> None:
    kind, error = EVENTS[code], ValueError("no")
    samples = {"seconds": 2.5, "exception": error}
    payload = {name: samples.get(name, f"<{name}>") for name in kind.fields}
    with caplog.at_level(logging.DEBUG, logger="oplogue"):
        bus.emit(code, **payload)
    (line,) = caplog.records
    assert (line.levelno, line.name) == (kind.level, f"oplogue.{code.split('.')[0]}")
    expected = {"code": code, "instance_id": "here", **payload}
    raised = expected.pop("exception", None)
    assert expected.items() <= vars(line).items()
    assert raised is (line.exc_info[1] if line.exc_info else None)
    assert "{" not in line.getMessage()
