"""Follows the change stream for one term in office: reads, lets the planner plan, saves the position.

What an error of the stream means:

========================  ===========================================================================
the history is gone       (286) a fresh start of the stream, and every task is reconciled
any other refusal         reopened by the cluster time of that position; inclusive, so nothing is lost;
                          refused again: a fresh start and a reconciliation. Never the same token twice
no privilege, or a        reported and tried again, slower each time: nothing is lost by it, and nothing
fresh start is refused    would be won by another position
a passing failure         reopened at the last position that was acknowledged, slower each time
silence                   an answer is due after each wait, with or without events; a stream that misses a few
                          is broken
========================  ===========================================================================

It is never reopened where reading broke off. A plan reads what its primary has, and where it finds nothing to write
nobody acknowledges what it read. Should that primary fall, and what it read be rolled back with it, the event
must come again. The position lies behind all that in the same oplog: once a majority has it, a majority has what
the plans before it read. Events that come twice change nothing.

A position that is not usable as it is (another target, another pipeline) is used by its time; one from the
future is refused, because the server would accept it and wait silently.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from oplogue.clock import Clock
from oplogue.errors import LeadershipLostError
from oplogue.model.definition import Namespace
from oplogue.model.paths import merge_patterns
from oplogue.runtime.bus import Bus
from oplogue.runtime.lag import SAVED_WHILE_QUIET, StreamLag
from oplogue.runtime.office import Office
from oplogue.runtime.pace import StreamPace
from oplogue.runtime.parts import check_cancelled, end
from oplogue.store import Client, ClusterTime
from oplogue.store.faults import (
    FELL_BEHIND,
    HISTORY_LOST,
    OperationFailure,
    StoreError,
    describe,
    is_forbidden,
    is_passing,
)
from oplogue.store.leadership import Leadership
from oplogue.store.plans import PlannedTask
from oplogue.store.stream import (
    Batch,
    ChangeStream,
    Following,
    Position,
    operation_time,
    read_position,
    stream_pipeline,
)

if TYPE_CHECKING:
    from oplogue.runtime.planner import Planner

PATIENCE = timedelta(seconds=1)
_WHILE_BUSY, _WHILE_QUIET = 1.0, SAVED_WHILE_QUIET.total_seconds()


class Background(Protocol):
    """Work of the same ordered pipeline that is done between batches."""

    def due_in(self) -> float | None:
        """Seconds until its next step; None where there is nothing to do."""
        ...

    async def step(self) -> None:
        """Do a bounded piece of it."""
        ...


class Follower:
    """One stream, from the saved position on."""

    def __init__(
        self,
        *,
        client: Client,
        tasks: Sequence[PlannedTask],
        office: Office,
        planner: Planner,
        leadership: Leadership,
        lag: StreamLag,
        background: Background,
        history_lost: Callable[[str], Awaitable[None]],
        bound: timedelta,
        bus: Bus,
        clock: Clock,
    ) -> None:
        watched = watched_keys(tasks)
        databases = {source.database for source in watched}
        target = databases.pop() if len(databases) == 1 else None
        pipeline = stream_pipeline(watched, whole_cluster=target is None)
        self._client = client
        self._follows = Following(
            target=target or "",
            pipeline=hashlib.sha256(repr(pipeline).encode()).hexdigest()[:16],
            covers=tuple(sorted(task.hash for task in tasks)),
        )
        self._stream = ChangeStream(client, target, pipeline, bound=bound)
        self._pace = StreamPace(clock, patience=PATIENCE)
        # A leader whose planner makes no progress is not renewed: it beats several times in a lease.
        self._patience = min(PATIENCE, bound / 2).total_seconds()
        self._names = sorted(task.definition.task for task in tasks)
        self._office = office
        self._planner = planner
        self._leadership = leadership
        self._lag = lag
        self._background = background
        self._history_lost = history_lost
        self._bound = bound
        self._bus = bus
        self._clock = clock
        self._acknowledged: Position | None = None
        self._fresh: Position | None = None
        self._saved_at = 0.0
        self._behind = False
        self._saving: asyncio.Task[None] | None = None
        self._until = asyncio.Event()

    async def open(self, since: ClusterTime | None = None) -> None:
        """Open the stream at the saved position, or afresh where there is none that can be used.

        ``since``: a trigger that came into force then is not covered by the position.
        """
        stored = await self._leadership.saved()
        now = await operation_time(self._client, bound=self._bound)
        position = read_position(stored, self._follows)
        if position is None or position.time > now:
            position = (
                Position(now) if stored is None else await self._afresh("the saved position can't be used")
            )
        if since is not None:
            position = position.not_after(since)
        self._acknowledged = position
        self._lag.opened(position, now)
        await self._reopen(None)

    async def follow(self, until: asyncio.Event) -> None:
        """Read and plan until the office is lost, or until told to end: then what is in hand is planned first.

        A plan that is under way must not be cut off in office: the next one could meet it on the server.
        """
        self._until = until
        reading = asyncio.create_task(self._read_on(), name="oplogue-stream")
        planning = asyncio.create_task(self._plan_on(), name="oplogue-planner")
        try:
            await asyncio.wait({reading, planning}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(reading, planning)
            await self._stream.close()
        for task in (planning, reading):
            if not task.cancelled():
                task.result()

    async def _read_on(self) -> None:
        while True:
            try:
                batch = await self._stream.next(self._pace.patience)
            except (StoreError, TimeoutError) as error:
                check_cancelled()
                self._bus.emit("planner.stream_error", error=describe(error))
                await self._reopen(error)
                continue
            await self._take(batch)
            # At the least the planner's turn: its statement goes out before the next read is built.
            await self._clock.sleep(0 if batch.is_full else self._pace.rest)

    async def _reopen(self, error: BaseException | None) -> None:
        """Open at the acknowledged position; by token while failures pass, then by time, then afresh."""
        pause = 0.05
        position = self._acknowledged
        assert position is not None  # open() came first
        if error is not None and not _may_resume(error):
            position = Position(position.time)
        while True:
            try:
                batch = await self._stream.open(position)
            except (StoreError, TimeoutError) as again:
                check_cancelled()
                if _may_resume(again):
                    self._bus.emit("planner.stream_error", error=describe(again))
                else:
                    position = await self._next_best(position, again)
                self._office.check()
                await self._clock.sleep(pause * (0.5 + self._clock.random()))
                pause = min(2 * pause, 2.0)
                continue
            self._bus.emit("planner.stream_opened", term=self._office.term.number, tasks=self._names)
            await self._take(batch)
            return

    async def _take(self, batch: Batch) -> None:
        self._lag.answered(batch.position, batch.cluster_time)
        self._pace.answered(batch.cluster_time, with_events=bool(batch.events))
        await self._planner.take(batch)

    async def _next_best(self, refused: Position, error: BaseException) -> Position:
        if isinstance(error, OperationFailure) and error.code == HISTORY_LOST:
            return await self._afresh(describe(error))
        # A privilege that is missing, or a refusal of a fresh start: it is not the position that is wrong.
        if is_forbidden(error) or refused is self._fresh:
            self._bus.emit("planner.stream_error", error=describe(error))
            return refused
        if refused.token is None:
            return await self._afresh(describe(error))
        self._bus.emit("planner.stream_error", error=describe(error))
        return Position(refused.time)

    async def _afresh(self, reason: str) -> Position:
        """Begin anew, now; all is to be reconciled. Noted before the position is saved: a crash repeats the note."""
        now = await operation_time(self._client, bound=self._bound)
        await self._history_lost(reason)
        fresh = Position(now)
        await self._leadership.save(self._office.term, fresh.stored(self._follows, self._office.term.number))
        self._acknowledged = self._fresh = fresh
        return fresh

    async def _plan_on(self) -> None:
        while not self._until.is_set():
            self._office.check()
            self._office.beat()
            due_in = self._background.due_in()
            patience = self._patience if due_in is None else min(due_in, self._patience)
            position = await self._planner.step(patience)
            if position is not None:
                self._lag.planned(position)
                await self._save_in_turn(position)
            if due_in is not None and self._background.due_in() == 0:
                await self._background.step()
        if self._saving is not None:
            await self._saving

    async def _save_in_turn(self, position: Position) -> None:
        """Save while the next batch is planned; soon after events were planned, now and then while nothing moves."""
        if self._acknowledged is not None and position.time < self._acknowledged.time:
            return  # events that come again after a reopening
        self._behind = self._behind or not self._planner.was_quiet
        pace = _WHILE_BUSY if self._behind else _WHILE_QUIET
        if self._clock.monotonic() - self._saved_at < pace:
            return
        self._behind = False
        if self._saving is not None:
            await self._saving
        self._saved_at = self._clock.monotonic()
        self._saving = asyncio.create_task(self._save(position), name="oplogue-position")

    async def _save(self, position: Position) -> None:
        stored = position.stored(self._follows, self._office.term.number)
        try:
            await self._leadership.save(self._office.term, stored, self._lag.behind)
        except LeadershipLostError as error:
            self._office.over = str(error)
        except StoreError as error:
            # Saved again with the next batch: what was planned twice changes nothing.
            self._saved_at = 0.0
            self._bus.emit("planner.position_not_saved", error=describe(error))
        else:
            self._acknowledged = position


def watched_keys(tasks: Iterable[PlannedTask]) -> dict[Namespace, str | None]:
    """For each collection, the keys of updates that can matter to any of its tasks; None: all can."""
    paths: dict[Namespace, set[str] | None] = {}
    for task in tasks:
        source, known = task.definition.source, task.definition.inputs
        before = paths.setdefault(source, set())
        paths[source] = None if known is None or before is None else before | known
    return {
        source: None if found is None else merge_patterns(found) or "^$" for source, found in paths.items()
    }


def _may_resume(error: BaseException) -> bool:
    """Whether the position itself is not what was refused."""
    fell_behind = isinstance(error, OperationFailure) and error.code == FELL_BEHIND
    return not fell_behind and (isinstance(error, TimeoutError) or is_passing(error))
