"""The change stream's lag, by a clock that the test moves."""

from __future__ import annotations

from datetime import timedelta

from oplogue.clock import Clock
from oplogue.runtime.lag import StreamLag
from oplogue.store import ClusterTime
from oplogue.store.stream import Position

PATIENCE = timedelta(seconds=1)


class Moved(Clock):
    """A clock that stands still until it is moved."""

    at = 1_000.0

    def monotonic(self) -> float:
        return self.at


def time(seconds: int) -> ClusterTime:
    return ClusterTime(seconds, 1)


def position(seconds: int) -> Position:
    return Position(time(seconds))


def lag(clock: Clock, *, of: int, at: int) -> StreamLag:
    """A stream that was opened at a position when the cluster's time was that."""
    made = StreamLag(clock, patience=PATIENCE)
    made.opened(position(of), time(at))
    return made


def test_quiet_database_has_no_lag_however_old_its_last_write_is() -> None:
    clock = Moved()
    measured = lag(clock, of=100, at=100)
    for _ in range(60):
        # An answer without events: what was read is all there is.
        clock.at += 1
        measured.answered(position(100), time(100))
        measured.planned(position(100))
        assert measured.behind == timedelta()


def test_lag_grows_while_no_answer_comes() -> None:
    clock = Moved()
    measured = lag(clock, of=100, at=100)
    clock.at += 31
    assert measured.behind == timedelta(seconds=30)
    clock.at += 10
    assert measured.behind == timedelta(seconds=40)


def test_lag_grows_while_answers_stand_still_and_the_cluster_goes_on() -> None:
    clock = Moved()
    measured = lag(clock, of=100, at=100)
    for passed in range(1, 31):
        clock.at += 1
        measured.answered(position(100), time(100 + passed))
        measured.planned(position(100))
    assert measured.behind == timedelta(seconds=28)


def test_what_is_read_and_not_planned_is_lag() -> None:
    clock = Moved()
    measured = lag(clock, of=100, at=100)
    for passed in range(1, 21):
        clock.at += 1
        measured.answered(position(100 + passed), time(100 + passed))
    assert measured.behind == timedelta(seconds=19)
    # Held back at an event of the fifth second, whatever else is planned.
    measured.planned(position(105))
    assert measured.behind == timedelta(seconds=14)
    measured.planned(position(120))
    assert measured.behind == timedelta()


def test_position_of_long_ago_is_lag_from_the_start() -> None:
    clock = Moved()
    assert lag(clock, of=100, at=4_000).behind > timedelta(minutes=50)
    # Opened again in the same term, by other definitions: what was known still holds.
    measured = lag(clock, of=100, at=100)
    measured.opened(position(90), time(100))
    assert measured.behind == timedelta()


def test_times_within_a_second_are_no_lag() -> None:
    clock = Moved()
    measured = lag(clock, of=100, at=101)
    clock.at += 1
    assert measured.behind == timedelta()
