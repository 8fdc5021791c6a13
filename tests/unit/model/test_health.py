"""What speaks for and against an instance."""

from __future__ import annotations

from datetime import timedelta

import pytest

from oplogue.model.health import Phase, Vitals, judge_health

LEASE = timedelta(seconds=60)


def test_an_instance_of_which_everything_is_heard_is_live_and_ready() -> None:
    health = judge_health(Vitals(Phase.STARTED, 60.0, 60.0, 60.0), LEASE)
    assert (health.live, health.ready, health.reasons) == (True, True, ())


@pytest.mark.parametrize(
    "vitals", [Vitals(Phase.STARTED, loop_silent=60.1), Vitals(Phase.STARTED, renewal_silent=61)]
)
def test_silence_of_a_part_for_longer_than_a_lease_is_neither_live_nor_ready(vitals: Vitals) -> None:
    health = judge_health(vitals, LEASE)
    assert (health.live, health.ready) == (False, False)
    assert len(health.reasons) == 1


def test_a_silent_database_is_no_reason_for_a_restart() -> None:
    health = judge_health(Vitals(Phase.STARTED, 0, 0, 61), LEASE)
    assert (health.live, health.ready) == (True, False)


@pytest.mark.parametrize("phase", set(Phase) - {Phase.STARTED})
def test_only_a_started_instance_is_ready(phase: Phase) -> None:
    health = judge_health(Vitals(phase, 0, 0, 0), LEASE)
    assert (health.live, health.ready, health.reasons) == (True, False, (f"the instance is {phase}",))


def test_every_reason_is_given() -> None:
    assert len(judge_health(Vitals(Phase.STOPPING, 61, 61, 61), LEASE).reasons) == 4
