"""The engine that runs claimed work, whatever it is: reactive tasks today, jobs by the same interface.

Three loops, and a settler that writes what has ended::

    claim loop     looks at all sources (what is due, when is the next), takes fair shares, fills the buffer
    runs           one coroutine per started run; as many as there are slots
    reclaim loop   a few times per lease: takes over records whose owner lost its lease

Claims run ahead of the slots, by about as much as is worked off while a few claims are under way (0.1 s to 1 s),
so that short handlers don't wait for round trips; what is claimed and not started is given back when its task is
throttled, when the instance stops, or when the runs before it get so slow that it would wait for seconds. The claim
loop sleeps until something stirs: a wake-up from the planner, a slot that came free, the due time that the last look
announced, or, as a net below all of these, an idle time that grows while nothing is found.

Records whose lease was lost are *suspects*: their process may have died of them. They are claimed apart, one
small group at a time, so that the neighbours of a killer live.

A look or a claim that fails is reported and tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from oplogue.clock import Clock
from oplogue.model.outcomes import Outcome, Released, Succeeded
from oplogue.runtime.agenda import LONGEST_REST, Agenda
from oplogue.runtime.buffer import Buffer
from oplogue.runtime.bus import Bus
from oplogue.runtime.context import Moment, Run, Scope
from oplogue.runtime.leases import LeaseBook
from oplogue.runtime.meter import Meter
from oplogue.runtime.parts import keep_running
from oplogue.runtime.settings import Settings
from oplogue.runtime.settler import Settler
from oplogue.runtime.work import Ended, Source
from oplogue.store.faults import StoreError, describe
from oplogue.store.tasks import Look

_MOST_AHEAD = 1_000
_MOST_AT_ONCE = 1_000
"""Larger claims come home later, and save nothing: the next is on its way while this one's handlers run."""
_LEAST_AHEAD, _FURTHEST_AHEAD = 0.1, 1.0
_FIRST_IDLE = 0.5
_CANCEL_AGAIN = 0.5


class Executor:
    """Claims and runs the work of several sources on one instance's slots."""

    def __init__(
        self,
        *,
        sources: Sequence[Source],
        settings: Settings,
        leases: LeaseBook,
        meter: Meter,
        bus: Bus,
        clock: Clock,
    ) -> None:
        self._sources = tuple(sources)
        self._settings = settings
        self._leases = leases
        self._meter = meter
        self._bus = bus
        self._clock = clock
        kinds = [kind for source in sources for kind in source.kinds]
        self._agenda = Agenda(kinds=kinds, allowed=settings.task_filter, clock=clock)
        self._settler = Settler(sources=sources, settled=self._settled, meter=meter, bus=bus, clock=clock)
        self._source_of = {kind.name: source for source in sources for kind in source.kinds}
        self._buffer = Buffer()
        self._running: dict[Run, asyncio.Task[None]] = {}
        self._suspects: set[Run] = set()
        self._ahead = _LEAST_AHEAD
        self._checked_at = 0.0
        """When the buffer was last looked through for what waits too long."""
        self._crowded = False
        self._stirred = asyncio.Event()
        self._cleared = asyncio.Event()
        self._stopping = asyncio.Event()
        self._loops: list[asyncio.Task[None]] = []
        self.claims: int = 0
        """How many claims of pending records were begun."""

    # -- life cycle

    async def start(self) -> None:
        """Begin to claim."""
        self._stopping.clear()
        self._settler.start()
        if self._settings.concurrency:
            self._loops = [
                keep_running("claims", self._claim_loop, bus=self._bus, clock=self._clock),
                keep_running("reclaims", self._reclaim_loop, bus=self._bus, clock=self._clock),
            ]

    async def stop(self) -> None:
        """Claim no more, give back what never started, let the rest finish within the shutdown timeout."""
        self._stopping.set()
        self._stirred.set()
        self._cleared.set()
        self._release()
        # A claim that is under way may still take records: they are given back when it has come home.
        await asyncio.gather(*self._loops)
        if self._running:
            await asyncio.wait(
                self._running.values(), timeout=self._settings.shutdown_timeout.total_seconds()
            )
        if self._running:
            await self._cut_short()
        # Outcomes can be written as long as the leases hold; after that nothing can be.
        await self._settler.stop(self._settings.lease.total_seconds())

    async def _cut_short(self) -> None:
        self._bus.emit("instance.shutdown_timeout", count=len(self._running), tasks=self.running_tasks)
        until = self._clock.monotonic() + self._settings.bound.total_seconds()
        while self._running and self._clock.monotonic() < until:
            for run, task in list(self._running.items()):
                run.cancelled.set()
                # Again and again: one cancellation may be swallowed, see `parts.end`.
                task.cancel()
            await asyncio.wait(self._running.values(), timeout=_CANCEL_AGAIN)

    # -- what others tell it

    def wake(self, names: Iterable[str]) -> None:
        """Records of these tasks are, or will soon be, due."""
        if self._agenda.warm(names):
            self._meter.woken()
            self._stirred.set()

    def throttle(self, name: str, until: Moment, scope: Scope) -> None:
        """Start no run of this task until then, on this instance. What is claimed and not started is given back."""
        seconds = _seconds(until, self._clock.now())
        # Handlers that run side by side meet the same limit: the first one's word for it is enough.
        if not self._agenda.is_throttled(name):
            self._bus.emit("task.throttled", task=name, seconds=seconds, scope=scope)
        self._agenda.throttle(name, seconds)
        self._release(name)

    def hold_back(self, names: Iterable[str]) -> None:
        """These tasks are paused or throttled for the whole cluster: give back what has not started."""
        for name in names:
            self._agenda.hold_back(name)
            self._release(name)

    def resume(self, names: Iterable[str]) -> None:
        """These tasks may run again."""
        for name in names:
            self._agenda.unthrottle(name)
        self.wake(names)

    def lose(self, runs: Iterable[Run]) -> None:
        """These runs own their records no more: tell the handlers, and cancel them after a grace."""
        for run in runs:
            self._leases.drop(run)
            if run.lost or run.completed != "no":
                continue
            run.lost = True
            run.cancelled.set()
            record = run.record
            self._bus.emit("task.lease_lost", task=record.task, doc_id=record.doc_id, attempt=record.attempts)
            task = self._running.get(run)
            if task is not None:
                grace = self._settings.bound.total_seconds()
                asyncio.get_running_loop().call_later(grace, _cancel_if_running, task)

    def may_run(self) -> set[str]:
        """The tasks that this instance may run now, or runs as many of as may be."""
        if not self._settings.concurrency:
            return set()
        return self._agenda.claimable() | {name for name in self._agenda.kinds if self._agenda.is_full(name)}

    @property
    def slots_in_use(self) -> int:
        """How many handlers run now."""
        return len(self._running)

    @property
    def running_tasks(self) -> list[str]:
        """The names of the tasks whose handlers run now."""
        return sorted({run.record.task for run in self._running})

    # -- claiming

    async def _claim_loop(self) -> None:
        idle = _FIRST_IDLE
        while not self._stopping.is_set():
            self._release_late()
            room = self._room()
            self._stirred.clear()
            self._crowded = room <= 0
            if self._crowded:
                late = self._settings.bound.total_seconds() / 4 if self._buffer else None
                await self._clock.wait(self._stirred, late)
                continue
            asked_at = self._clock.monotonic()
            found, rest = await self._claim_round(room)
            if found:
                # What is claimed ahead must last until the next claim has come home, and then some.
                took = self._clock.monotonic() - asked_at
                self._ahead = min(max(0.5 * self._ahead + 2 * took, _LEAST_AHEAD), _FURTHEST_AHEAD)
                idle = _FIRST_IDLE
                continue
            await self._clock.wait(self._stirred, min(idle, rest))
            idle = _FIRST_IDLE if self._stirred.is_set() else min(2 * idle, LONGEST_REST)

    def _room(self) -> int:
        """How many records a claim may take now; 0 while it would be too few to be worth its round trips."""
        slots = self._settings.concurrency
        ahead = min(_MOST_AHEAD, int(self._settler.rate * self._ahead))
        room = slots + ahead - len(self._running) - len(self._buffer)
        starving = not self._buffer and len(self._running) < slots
        return min(room, _MOST_AT_ONCE) if starving or room * 4 >= slots + ahead else 0

    async def _claim_round(self, room: int) -> tuple[bool, float]:
        """Look and claim once: whether anything was found, and how long until something will be due."""
        asked_at = self._clock.monotonic()
        names = self._agenda.claimable()
        looks = await asyncio.gather(*(self._look(source, names, room) for source in self._sources))
        choice = self._agenda.choose(looks, room)
        # Only where slots are what is missing does a slot that comes free call for another look.
        self._crowded = sum(choice.shares.values()) >= room
        taken = await asyncio.gather(
            *(
                self._claim(source, look, choice.shares, asked_at)
                for source, look in zip(self._sources, looks, strict=True)
            )
        )
        # All claims of the round are in the buffer before the first of them starts: priority first.
        self._start_more()
        return choice.missed or any(taken), choice.rest

    async def _look(self, source: Source, names: set[str], room: int) -> Look:
        mine = [kind.name for kind in source.kinds if kind.name in names]
        if not mine:
            return Look()
        try:
            return await source.look(mine, self._agenda.wanted(mine, room))
        except StoreError as error:
            self._bus.emit("claim.failed", source=str(source.namespace), error=describe(error))
            return Look()

    async def _claim(self, source: Source, look: Look, shares: Mapping[str, int], asked_at: float) -> int:
        ids: list[Any] = []
        for name, found in look.due.items():
            ids += found[: shares.get(name, 0)]
        if not ids:
            return 0
        claimed_at = self._clock.monotonic()
        self.claims += 1
        try:
            runs = await source.claim(ids)
        except StoreError as error:
            self._bus.emit("claim.failed", source=str(source.namespace), error=describe(error))
            return 0
        self._meter.claimed(len(runs), self._clock.monotonic() - claimed_at)
        await self._take(source, runs, claimed_at, asked_at)
        return len(runs)

    async def _take(self, source: Source, runs: Sequence[Run], claimed_at: float, asked_at: float) -> None:
        self._agenda.held.update(run.record.task for run in runs)
        for run in runs:
            run.claimed_at = claimed_at
        if self._clock.monotonic() - claimed_at > self._settings.lease.total_seconds() / 2:
            # The loop was blocked while the answer waited: nobody has renewed these.
            for run in runs:
                self._finish(Ended(run, Released()))
            return
        self._leases.hold(runs, claimed_at)
        try:
            needless = await source.prepare(runs)
        except StoreError as error:
            self._bus.emit("claim.failed", source=str(source.namespace), error=describe(error))
            needless = [Ended(run, Released()) for run in runs]
        done = {ended.run for ended in needless}
        for ended in needless:
            self._finish(ended)
        for run in runs:
            if run in done:
                continue
            if self._agenda.came_too_late(run.record.task, asked_at):
                self._finish(Ended(run, Released()))
            else:
                self._buffer.add(run, self._agenda.kinds[run.record.task].priority)
        if self._stopping.is_set():
            self._release()

    async def _reclaim_loop(self) -> None:
        pause = self._settings.lease.total_seconds() / 4
        while not self._stopping.is_set():
            self._cleared.clear()
            for source in self._sources:
                if not self._suspects:
                    await self._reclaim(source)
            # While there are suspects the next group follows the last; else a look a few times in a lease will do.
            await self._clock.wait(self._cleared, None if self._suspects else pause)

    async def _reclaim(self, source: Source) -> None:
        names = self._agenda.claimable()
        room = self._settings.concurrency - len(self._running)
        rooms = {
            kind.name: self._agenda.room_of(kind.name, room) for kind in source.kinds if kind.name in names
        }
        if not rooms or room <= 0:
            return
        claimed_at = self._clock.monotonic()
        try:
            runs = await source.reclaim(rooms, room, held=self._leases.held_of(source.namespace))
        except StoreError as error:
            self._bus.emit("claim.failed", source=str(source.namespace), error=describe(error))
            return
        self._suspects.update(runs)
        await self._take(source, runs, claimed_at, claimed_at)
        self._start_more()

    # -- running

    def _start_more(self) -> None:
        free = self._settings.concurrency - len(self._running)
        while free > 0 and self._buffer:
            run = self._buffer.pop()
            if run.lost:
                self._forget(run)
                continue
            self._running[run] = asyncio.create_task(self._run(run))
            free -= 1

    async def _run(self, run: Run) -> None:
        outcome: Outcome | None = None
        try:
            outcome = await self._source_of[run.record.task].execute(run)
        except asyncio.CancelledError:
            # Only this engine cancels its runs: the lease is lost, or the instance has waited long enough.
            outcome = Released()
        finally:
            del self._running[run]
            if outcome is None:
                self._forget(run)
                if self._was_planned_since(run):
                    self._stirred.set()
            else:
                self._finish(Ended(run, outcome))
            if self._buffer:
                self._start_more()
            if self._crowded:
                self._stirred.set()

    def _finish(self, ended: Ended) -> None:
        if ended.run.lost:
            self._forget(ended.run)
        else:
            self._settler.add(ended)

    def _settled(self, group: Sequence[Ended]) -> None:
        for ended in group:
            self._forget(ended.run)
        if self._crowded or any(map(self._may_run_again, group)):
            self._stirred.set()

    def _may_run_again(self, ended: Ended) -> bool:
        """Retried, deferred, given back; or dirty: then its task was planned after the record was claimed."""
        return not isinstance(ended.outcome, Succeeded) or self._was_planned_since(ended.run)

    def _was_planned_since(self, run: Run) -> bool:
        return self._agenda.warmed_at.get(run.record.task, 0.0) >= run.claimed_at

    def _forget(self, run: Run) -> None:
        self._leases.drop(run)
        if self._agenda.is_full(run.record.task):
            self._stirred.set()
        self._agenda.held[run.record.task] -= 1
        if run in self._suspects:
            self._suspects.discard(run)
            if not self._suspects:
                self._cleared.set()

    def _release(self, task: str | None = None) -> None:
        """Give back claimed records that have not started, of one task or of all."""
        self._give_back(lambda run: task is None or run.record.task == task)

    def _release_late(self) -> None:
        """Give back what was claimed ahead and has not started in time: the runs before it got slower.

        Other instances may have slots for it, and what was read for it gets old.
        """
        now, patience = self._clock.monotonic(), self._settings.bound.total_seconds()
        if not self._buffer or now - self._checked_at < patience / 4:
            return
        self._checked_at = now
        # A suspect that was given back would be claimed among fresh ones.
        self._give_back(lambda run: run.claimed_at < now - patience and run not in self._suspects)

    def _give_back(self, unwanted: Callable[[Run], bool]) -> None:
        for run in self._buffer.take_back(unwanted):
            self._finish(Ended(run, Released()))


def _cancel_if_running(task: asyncio.Task[None]) -> None:
    if not task.done():
        task.cancel()


def _seconds(until: Moment, now: datetime) -> float:
    rest = until if isinstance(until, timedelta) else until - now
    return max(rest.total_seconds(), 0.0)
