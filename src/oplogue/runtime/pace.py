"""How the stream is read: at once while little is written, with a rest between two reads while much is.

A change stream that waits at its server is woken by *every* write that the server takes, also by those that its
filter drops, and each time costs about as much as the write (20 µs of the server's processor time, measured on
6.0). Claims and outcomes are writes too: a leader that waited through a flood would nearly double what each task
costs. So while the server takes many writes the reader does not wait there; it rests here, and reads what has
gathered, for which the server scans its oplog once.

How much is written is told by the answers themselves: a cluster time is a second and the number of the write in it.
"""

from __future__ import annotations

from datetime import timedelta

from oplogue.clock import Clock
from oplogue.store import ClusterTime

REST = 0.02
_MANY = 4_000
"""Writes per second from which on a read each 20 ms is cheaper than being woken by each of them."""
_WINDOW = 0.05
"""How long is counted for a rate: a few writes at once are no flood."""
_LATELY = 0.3
_AFTER_EVENTS = 5.0
_BRIEF, _SHORT = timedelta(milliseconds=1), timedelta(milliseconds=100)


class StreamPace:
    """The pace of one stream's reader."""

    def __init__(self, clock: Clock, *, patience: timedelta) -> None:
        self._clock = clock
        self._longest = patience
        self._counted_from: tuple[ClusterTime, float] | None = None
        self._busy_until = 0.0
        self._alert_until = 0.0

    def answered(self, cluster_time: ClusterTime, *, with_events: bool) -> None:
        """The server has answered, as of that time."""
        now = self._clock.monotonic()
        before, at = self._counted_from or (cluster_time, now)
        if self._counted_from is None or now - at >= _WINDOW:
            self._counted_from = (cluster_time, now)
            if now > at and _writes_between(before, cluster_time) >= _MANY * (now - at):
                self._busy_until = now + _LATELY
        if with_events:
            self._alert_until = now + _AFTER_EVENTS

    @property
    def rest(self) -> float:
        """Seconds until the next read."""
        return REST if self._is_busy() else 0.0

    @property
    def patience(self) -> timedelta:
        """How long the next read may wait at the server for a first event.

        After events it is short, so that a flood which brings none (their claims, their outcomes) is noticed.
        """
        if self._is_busy():
            return _BRIEF
        return min(_SHORT, self._longest) if self._clock.monotonic() < self._alert_until else self._longest

    def _is_busy(self) -> bool:
        return self._clock.monotonic() < self._busy_until


def _writes_between(before: ClusterTime, after: ClusterTime) -> int:
    """At least so many: where a second has passed, those of the last one."""
    return after.inc - before.inc if after.time == before.time else after.inc
