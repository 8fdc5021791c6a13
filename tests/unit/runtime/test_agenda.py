"""What an instance leaves out of what it found due."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from oplogue.clock import Clock
from oplogue.runtime.agenda import Agenda
from oplogue.runtime.work import Kind
from oplogue.store.controls import Control
from oplogue.store.tasks import Look

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER, EARLIER = NOW + timedelta(seconds=3), NOW - timedelta(seconds=3)


def agenda() -> Agenda:
    kinds = [Kind("sync", 0, None, version=2), Kind("free", 0, None, version=2)]
    return Agenda(kinds=kinds, allowed=None, clock=Clock())


def a_look(**controls: Control) -> Look:
    due = {"sync": [1, 2], "free": [3]}
    reached = {"sync": NOW, "free": NOW}
    return Look(next_at={"sync": NOW, "free": NOW}, now=NOW, due=due, reached=reached, controls=controls)


@pytest.mark.parametrize(
    ("control", "is_held"),
    [
        (Control(), False),
        (Control(paused_until=LATER), True),
        (Control(paused_until=EARLIER), False),
        (Control(throttled_until=LATER), True),
        (Control(throttled_until=EARLIER), False),
        (Control(paused_until=EARLIER, throttled_until=LATER), True),
        (Control(version=2), False),
        (Control(version=3), True),
    ],
)
def test_what_is_held_back_in_the_whole_cluster_is_not_taken(control: Control, is_held: bool) -> None:
    choice = agenda().choose([a_look(sync=control)], 10)
    assert choice.shares == ({"free": 1} if is_held else {"sync": 2, "free": 1})


def test_the_end_of_a_pause_is_when_to_look_again() -> None:
    choice = agenda().choose([a_look(sync=Control(paused_until=LATER))], 10)
    assert choice.rest == 3


def test_claims_begun_before_a_task_was_held_back_come_too_late() -> None:
    mine, clock = agenda(), Clock()
    before = clock.monotonic()
    assert not mine.came_too_late("sync", before)
    mine.hold_back("sync")
    assert mine.came_too_late("sync", before)
    assert not mine.came_too_late("free", before)
    assert not mine.came_too_late("sync", clock.monotonic() + 1)
