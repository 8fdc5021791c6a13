"""How the stream's reader rests and waits, by a clock that the test moves."""

from __future__ import annotations

from datetime import timedelta

from oplogue.clock import Clock
from oplogue.runtime.pace import REST, StreamPace
from oplogue.store import ClusterTime

LONG = timedelta(seconds=1)


class Moved(Clock):
    """A clock that stands still until it is moved."""

    at = 1_000.0

    def monotonic(self) -> float:
        return self.at


def after(
    seconds: float, writes: int, *, second: int = 7, before: int = 1, with_events: bool = False
) -> tuple[StreamPace, Moved]:
    """A pace that has seen two answers: so far apart, with so many writes between them."""
    clock = Moved()
    pace = StreamPace(clock, patience=LONG)
    pace.answered(ClusterTime(7, before), with_events=False)
    clock.at += seconds
    increment = before + writes if second == 7 else writes
    pace.answered(ClusterTime(second, increment), with_events=with_events)
    return pace, clock


def test_quiet_server_is_waited_for_without_rests() -> None:
    pace, _ = after(1.0, 50)
    assert (pace.rest, pace.patience) == (0.0, LONG)


def test_reader_rests_and_waits_no_more_while_the_server_takes_many_writes() -> None:
    pace, clock = after(0.1, 1_000)
    assert pace.rest == REST
    assert pace.patience < timedelta(seconds=REST)
    clock.at += 0.5
    assert (pace.rest, pace.patience) == (0.0, LONG)


def test_writes_are_counted_anew_in_each_second_of_the_servers_clock() -> None:
    busy, _ = after(0.1, 1_000, second=8, before=9_000)
    quiet, _ = after(0.1, 10, second=8, before=9_000)
    assert (busy.rest, quiet.rest) == (REST, 0.0)


def test_a_flood_that_follows_events_is_noticed_soon() -> None:
    pace, clock = after(1.0, 3, with_events=True)
    assert pace.patience < LONG
    assert pace.rest == 0.0
    clock.at += 60
    assert pace.patience == LONG


def test_a_few_writes_at_once_are_no_flood() -> None:
    pace, clock = after(0.002, 100)
    assert pace.rest == 0.0
    clock.at += 0.1
    pace.answered(ClusterTime(7, 110), with_events=False)
    assert pace.rest == 0.0
