"""The collection of signals: made, seeded, and mended when somebody dropped it or made it plain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from pymongo.errors import OperationFailure
from tests.support.rig import BOUND, Rig

from oplogue.store.signals import Signal, Signals, Topic

WORK = Signal(Topic.WORK, "me", ("sync",))


@pytest.fixture
async def signals(rig: Rig) -> AsyncIterator[Signals]:
    """Signals that are waited for."""
    opened = Signals(rig.client, rig.globals, patience=timedelta(milliseconds=200), bound=BOUND)
    yield opened
    await opened.close()


def name(rig: Rig) -> str:
    return f"{rig.globals.collection}_signals"


async def is_capped(rig: Rig) -> bool:
    return (await rig.db[name(rig)].options()).get("capped") is True


async def heard(signals: Signals) -> list[Signal]:
    """The next that is said."""
    async with asyncio.timeout(10):
        while not (found := await signals.next()):
            pass
    return found


async def test_what_was_said_before_is_not_heard_and_what_is_said_then_is(signals: Signals) -> None:
    await signals.send(Signal(Topic.WORK, "me", ("before",)))
    await signals.open()
    await signals.send(WORK)
    assert await heard(signals) == [WORK]


async def test_an_empty_collection_is_waited_on(rig: Rig, signals: Signals) -> None:
    await rig.db.create_collection(name(rig), capped=True, size=65_536)
    await signals.open()
    assert await signals.next() == []
    await signals.send(WORK)
    assert await heard(signals) == [WORK]


async def test_a_collection_that_was_dropped_ends_the_wait_and_is_made_again(
    rig: Rig, signals: Signals
) -> None:
    await signals.open()
    await rig.db.drop_collection(name(rig))
    with pytest.raises(OperationFailure):
        await signals.next()
    await signals.open()
    assert await is_capped(rig)
    await signals.send(WORK)
    assert await heard(signals) == [WORK]


async def test_a_collection_that_an_insert_made_plain_is_made_capped(rig: Rig, signals: Signals) -> None:
    await signals.send(WORK)
    assert not await is_capped(rig)
    await signals.open()
    assert await is_capped(rig)
    await signals.send(WORK)
    assert await heard(signals) == [WORK]


async def test_several_that_open_at_once_share_one_collection(rig: Rig, signals: Signals) -> None:
    others = [
        Signals(rig.client, rig.globals, patience=timedelta(milliseconds=200), bound=BOUND) for _ in range(5)
    ]
    await asyncio.gather(*(other.open() for other in others))
    await signals.send(WORK)
    assert [await heard(other) for other in others] == [[WORK]] * 5
    for other in others:
        await other.close()


async def test_an_entry_that_is_no_signal_says_nothing(rig: Rig, signals: Signals) -> None:
    await signals.open()
    await rig.db[name(rig)].insert_many(
        [{"topic": "tomorrow's"}, {"x": 1}, {"topic": {"a": 1}}, {"topic": None}]
    )
    await signals.send(WORK)
    found: list[Signal] = []
    while not found:
        found = await heard(signals)
    assert found == [WORK]
