"""Follows the change stream for one term in office: reads, lets the planner plan, saves the position.

What an error of the stream means:

========================  ===========================================================================
the history is gone       (286) a fresh start of the stream, and every task is reconciled
any other refusal         reopened by the cluster time of the last answer; inclusive, so nothing is lost;
                          refused again: a fresh start and a reconciliation. Never the same token twice
a passing failure         reopened where it broke, slower each time
silence                   an answer is due after each wait, with or without events; a stream that misses a few
                          is broken
========================  ===========================================================================

A position that is not usable as it is (another target, another pipeline) is used by its time; one from the
future is refused, because the server would accept it and wait silently.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from oplogue.clock import Clock
from oplogue.model.definition import Namespace
from oplogue.runtime.bus import Bus
from oplogue.runtime.office import Office
from oplogue.store import Client
from oplogue.store.faults import HISTORY_LOST, OperationFailure, StoreError, describe, is_passing
from oplogue.store.leadership import Leadership
from oplogue.store.stream import (
    ChangeStream,
    Position,
    operation_time,
    read_position,
    stream_pipeline,
)

if TYPE_CHECKING:
    from oplogue.runtime.planner import Planner

PATIENCE = timedelta(seconds=1)
_WHILE_BUSY, _WHILE_QUIET = 0.1, 10.0


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
        sources: Sequence[Namespace],
        office: Office,
        planner: Planner,
        leadership: Leadership,
        background: Background,
        history_lost: Callable[[str], Awaitable[None]],
        bound: timedelta,
        bus: Bus,
        clock: Clock,
    ) -> None:
        databases = {source.database for source in sources}
        self._client = client
        self._target = databases.pop() if len(databases) == 1 else None
        pipeline = stream_pipeline(sources, whole_cluster=self._target is None)
        self._pipeline_hash = hashlib.sha256(repr(pipeline).encode()).hexdigest()[:16]
        self._stream = ChangeStream(client, self._target, pipeline, patience=PATIENCE, bound=bound)
        self._office = office
        self._planner = planner
        self._leadership = leadership
        self._background = background
        self._history_lost = history_lost
        self._bound = bound
        self._bus = bus
        self._clock = clock
        self._read: Position | None = None
        self._saved_at = 0.0
        self._saving: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the stream at the saved position, or afresh where there is none that can be used."""
        stored = await self._leadership.saved()
        now = await operation_time(self._client, bound=self._bound)
        position = read_position(stored, self._target or "", self._pipeline_hash)
        if position is None or position.time > now:
            if stored is not None:
                await self._history_lost("the saved position can't be used")
            position = Position(now)
        self._read = position
        await self._reopen(None)

    async def follow(self) -> None:
        """Read and plan until the office is lost."""
        reading = asyncio.create_task(self._read_on(), name="oplogue-stream")
        planning = asyncio.create_task(self._plan_on(), name="oplogue-planner")
        try:
            await asyncio.wait({reading, planning}, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in (reading, planning):
                task.cancel()
            results = await asyncio.gather(reading, planning, return_exceptions=True)
            await self._stream.close()
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _read_on(self) -> None:
        while True:
            try:
                batch = await self._stream.next()
            except (StoreError, TimeoutError) as error:
                self._bus.emit("planner.stream_error", error=describe(error))
                await self._reopen(error)
                continue
            self._read = batch.position
            await self._planner.take(batch)

    async def _reopen(self, error: BaseException | None) -> None:
        """Open where reading broke off; by token while failures pass, then by time, then afresh."""
        pause = 0.05
        position = self._read
        assert position is not None  # open() came first
        if error is not None and not _may_resume(error):
            position = Position(position.time)
        while True:
            try:
                batch = await self._stream.open(position)
            except (StoreError, TimeoutError) as again:
                if not _may_resume(again):
                    position = await self._next_best(position, again)
                self._office.check()
                await self._clock.sleep(pause * (0.5 + self._clock.random()))
                pause = min(2 * pause, 2.0)
                continue
            self._read = batch.position
            await self._planner.take(batch)
            return

    async def _next_best(self, refused: Position, error: BaseException) -> Position:
        lost = isinstance(error, OperationFailure) and error.code == HISTORY_LOST
        if refused.token is not None and not lost:
            self._bus.emit("planner.stream_error", error=describe(error))
            return Position(refused.time)
        # First the new position, then the note that all must be reconciled from it: no event falls in between.
        now = await operation_time(self._client, bound=self._bound)
        await self._history_lost(describe(error))
        return Position(now)

    async def _plan_on(self) -> None:
        while True:
            self._office.check()
            self._office.beat()
            due_in = self._background.due_in()
            patience = PATIENCE.total_seconds() if due_in is None else min(due_in, PATIENCE.total_seconds())
            position = await self._planner.step(patience)
            if position is not None:
                await self._save_in_turn(position)
            if due_in is not None and self._background.due_in() == 0:
                await self._background.step()

    async def _save_in_turn(self, position: Position) -> None:
        """Save while the next batch is planned; often under load, now and then while nothing moves."""
        quiet = _WHILE_QUIET if self._planner.was_quiet else _WHILE_BUSY
        if self._clock.monotonic() - self._saved_at < quiet:
            return
        if self._saving is not None:
            await self._saving
        self._saved_at = self._clock.monotonic()
        self._saving = asyncio.create_task(self._save(position), name="oplogue-position")

    async def _save(self, position: Position) -> None:
        stored = position.stored(self._target or "", self._pipeline_hash, self._office.term.number)
        try:
            await self._leadership.save(self._office.term, stored)
        except StoreError as error:
            if not is_passing(error):
                raise
            self._saved_at = 0.0
            self._bus.emit("planner.stream_error", error=describe(error))


def _may_resume(error: BaseException) -> bool:
    """Whether the position itself is not what was refused."""
    return isinstance(error, TimeoutError) or is_passing(error)
