"""How far planning is behind the database: what the change stream's lag is measured by.

Each answer of the stream says two times: up to where it has read (its position), and how late the cluster has it.
Where the two are equal nothing is unread, so a quiet database has no lag, however old its last write is. From then
on the lag grows with this instance's own clock, until an answer that is planned says otherwise: also when no
answer comes.
"""

from __future__ import annotations

from collections import deque
from datetime import timedelta

from oplogue.clock import Clock
from oplogue.store import ClusterTime
from oplogue.store.leadership import Progress
from oplogue.store.stream import Position

SAVED_WHILE_QUIET = timedelta(seconds=10)
"""How often the position is saved while nothing is written."""
_SILENCE = SAVED_WHILE_QUIET + timedelta(seconds=2)
"""A leader that is well saves its position so often: shorter silence is no lag."""
_MOST_ANSWERS = 1_000


def lag_of(progress: Progress) -> timedelta | None:
    """The lag as somebody else than the leader knows it: by the position that was last saved."""
    if progress.behind is None:
        return None
    return progress.behind + max(progress.silent - _SILENCE, timedelta())


class StreamLag:
    """The lag of one term in office."""

    def __init__(self, clock: Clock, *, patience: timedelta) -> None:
        self._clock = clock
        # An answer may take so long with nothing to tell: its silence is no lag.
        self._patience = patience.total_seconds()
        self._read: deque[tuple[ClusterTime, float]] = deque(maxlen=_MOST_ANSWERS)
        self._as_of: float | None = None
        self.planned_to: ClusterTime | None = None
        """Every change before it is planned; None until that is known."""

    def opened(self, position: Position, cluster_time: ClusterTime) -> None:
        """Reading begins at a position that was planned before."""
        if self._as_of is None:
            self._as_of = self._moment(position, cluster_time)

    def answered(self, position: Position, cluster_time: ClusterTime) -> None:
        """The stream has been read up to this position, when the cluster's time was that."""
        if self._read and self._read[-1][0] == position.time:
            self._read.pop()
        self._read.append((position.time, self._moment(position, cluster_time)))

    def planned(self, position: Position) -> None:
        """Everything before this position is planned."""
        self.planned_to = position.time
        while self._read and self._read[0][0] <= position.time:
            _, self._as_of = self._read.popleft()

    @property
    def behind(self) -> timedelta:
        """How old the state of the database is that is planned."""
        if self._as_of is None:
            return timedelta()
        seconds = self._clock.monotonic() - self._as_of - self._patience
        return timedelta(seconds=max(seconds, 0.0))

    def _moment(self, position: Position, cluster_time: ClusterTime) -> float:
        """When, by this instance's clock, the position was the newest. Cluster times have whole seconds."""
        seconds = cluster_time.time - position.time.time
        return self._clock.monotonic() - max(seconds - 1, 0)
