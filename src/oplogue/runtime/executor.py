"""The engine that runs claimed work, whatever it is: reactive tasks today, jobs by the same interface.

Four loops and no state of their own beyond what stands here::

    claim loop     looks at all sources (what is due, when is the next), takes fair shares, fills the buffer
    runs           one coroutine per started run; as many as there are slots
    settle loop    per source: writes the outcomes of everything that has ended, in groups
    reclaim loop   a few times per lease: takes over records whose owner lost its lease

Claims run ahead of the slots, by about as much as is worked off in a tenth of a second, so that short handlers
don't wait for round trips; what is claimed and not started is given back when its task is throttled or the
instance stops. The claim loop sleeps until something stirs: a wake-up from the planner, a slot that came free, the
due time that the last look announced, or, as a net below all of these, an idle time that grows while nothing is
found.

Records whose lease was lost are *suspects*: their process may have died of them. They are claimed apart, one
small group at a time, so that the neighbours of a killer live.

A look, a claim or a settle that fails is reported and tried again; outcomes stay in memory until they are written
or their lease is lost.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from oplogue.clock import Clock
from oplogue.model.definition import Namespace
from oplogue.model.outcomes import Outcome, Raised, Released
from oplogue.model.shares import fair_shares
from oplogue.runtime.bus import Bus
from oplogue.runtime.context import Moment, Run
from oplogue.runtime.leases import LeaseBook
from oplogue.runtime.parts import end, keep_running
from oplogue.runtime.settings import Settings
from oplogue.runtime.work import Ended, Source
from oplogue.store.faults import StoreError, describe, is_passing
from oplogue.store.tasks import Look

_MOST_AHEAD = 1_000
_AHEAD_SECONDS = 0.1
_FEW_KINDS = 16
_IDLE_FIRST, _IDLE_LONGEST = 0.5, 5.0
_MOST_SETTLED = 1_000
_CANCEL_AGAIN = 0.5


class Executor:
    """Claims, runs and settles the work of several sources on one instance's slots."""

    def __init__(
        self, *, sources: Sequence[Source], settings: Settings, leases: LeaseBook, bus: Bus, clock: Clock
    ) -> None:
        self._sources = tuple(sources)
        self._settings = settings
        self._leases = leases
        self._bus = bus
        self._clock = clock
        self._kinds = {kind.name: kind for source in sources for kind in source.kinds}
        self._source_of = {kind.name: source for source in sources for kind in source.kinds}
        self._buffer: dict[int, deque[Run]] = defaultdict(deque)
        self._buffered = 0
        self._running: dict[Run, asyncio.Task[None]] = {}
        self._held: dict[str, int] = defaultdict(int)
        self._suspects: set[Run] = set()
        self._ended: dict[Namespace, list[Ended]] = {source.namespace: [] for source in sources}
        self._has_ended: dict[Namespace, asyncio.Event] = {}
        self._throttled_until: dict[str, float] = {}
        self._hot: set[str] = set()
        self._stirred = asyncio.Event()
        self._settled = asyncio.Event()
        self._unsettled = 0
        self._rate = 0.0
        self._settled_at = 0.0
        self._stopping = asyncio.Event()
        self._loops: list[asyncio.Task[None]] = []
        self._claiming: list[asyncio.Task[None]] = []

    # -- life cycle

    async def start(self) -> None:
        """Begin to claim."""
        self._stopping.clear()
        self._has_ended = {source.namespace: asyncio.Event() for source in self._sources}
        self._loops = [
            self._keep(f"outcomes of {source.namespace}", partial(self._settle_loop, source))
            for source in self._sources
        ]
        if self._settings.concurrency:
            self._claiming = [
                self._keep("claims", self._claim_loop),
                self._keep("reclaims", self._reclaim_loop),
            ]

    def _keep(self, part: str, run: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        return keep_running(part, run, bus=self._bus, clock=self._clock)

    async def stop(self) -> None:
        """Claim no more, give back what never started, let the rest finish within the shutdown timeout."""
        self._stopping.set()
        self._stirred.set()
        self._release()
        # A claim that is under way may still take records: they are given back when it has come home.
        await asyncio.gather(*self._claiming)
        if self._running:
            await asyncio.wait(
                self._running.values(), timeout=self._settings.shutdown_timeout.total_seconds()
            )
        if self._running:
            await self._cut_short()
        await self._until_settled()
        await end(*self._loops)
        self._loops = []

    async def _cut_short(self) -> None:
        self._bus.emit("instance.shutdown_timeout", count=len(self._running))
        until = self._clock.monotonic() + self._settings.bound.total_seconds()
        while self._running and self._clock.monotonic() < until:
            for run, task in list(self._running.items()):
                run.cancelled.set()
                # Again and again: one cancellation may be swallowed, see `end`.
                task.cancel()
            await asyncio.wait(self._running.values(), timeout=_CANCEL_AGAIN)

    async def _until_settled(self) -> None:
        """Outcomes are written as long as the leases could still hold; after that nothing can be."""
        deadline = self._clock.monotonic() + self._settings.lease.total_seconds()
        while self._unsettled and self._clock.monotonic() < deadline:
            self._settled.clear()
            await self._clock.wait(self._settled, deadline - self._clock.monotonic())

    # -- what others tell it

    def wake(self, names: Iterable[str]) -> None:
        """Records of these tasks are, or will soon be, due."""
        mine = self._kinds.keys() & set(names)
        if mine:
            self._hot |= mine
            self._stirred.set()

    def throttle(self, name: str, until: Moment) -> None:
        """Start no run of this task until then, on this instance. What is claimed and not started is given back."""
        seconds = _seconds(until, self._clock.now())
        self._throttled_until[name] = self._clock.monotonic() + seconds
        self._bus.emit("task.throttled", task=name, seconds=seconds)
        self._release(name)

    def lose(self, runs: Iterable[Run]) -> None:
        """These runs own their records no more: tell the handlers, and cancel them after a grace."""
        for run in runs:
            self._leases.drop(run)
            if run.lost or run.completed != "no":
                continue
            run.lost = True
            run.cancelled.set()
            self._report(run, "task.lease_lost")
            task = self._running.get(run)
            if task is not None:
                grace = self._settings.bound.total_seconds()
                asyncio.get_running_loop().call_later(grace, _cancel_if_running, task)

    @property
    def idle(self) -> bool:
        """Whether nothing is claimed, running or waiting to be written."""
        return not (self._buffered or self._running or self._unsettled)

    @property
    def slots_in_use(self) -> int:
        """How many handlers run now."""
        return len(self._running)

    # -- claiming

    async def _claim_loop(self) -> None:
        idle = _IDLE_FIRST
        while not self._stopping.is_set():
            room = self._room()
            if room <= 0:
                self._stirred.clear()
                await self._clock.wait(self._stirred, None)
                continue
            self._stirred.clear()
            found, rest = await self._claim_round(room)
            if found:
                idle = _IDLE_FIRST
                continue
            await self._clock.wait(self._stirred, min(idle, rest))
            idle = _IDLE_FIRST if self._stirred.is_set() else min(2 * idle, _IDLE_LONGEST)

    def _room(self) -> int:
        """How many records a claim may take now; 0 while it would be too few to be worth its round trips."""
        slots = self._settings.concurrency
        ahead = min(_MOST_AHEAD, int(self._rate * _AHEAD_SECONDS))
        room = slots + ahead - len(self._running) - self._buffered
        starving = not self._buffered and len(self._running) < slots
        return room if starving or room * 4 >= slots + ahead else 0

    async def _claim_round(self, room: int) -> tuple[bool, float]:
        """Look and claim once: whether anything was found, and how long until something will be due."""
        names = self._claimable()
        looks = await asyncio.gather(*(self._look(source, names, room) for source in self._sources))
        for look in looks:
            self._drop_held_back(look)
        offers = {name: len(ids) for look in looks for name, ids in look.due.items()}
        priorities = {name: self._kinds[name].priority for name in offers}
        shares = fair_shares(room, offers, priorities)
        rest = min(_until_next(looks), self._until_unthrottled())
        overdue = {name for look in looks for name in _overdue(look)}
        missed = overdue - self._hot - set(offers)
        self._hot = overdue
        claims = (
            self._claim(source, look, shares) for source, look in zip(self._sources, looks, strict=True)
        )
        taken = await asyncio.gather(*claims)
        return bool(missed) or any(taken), rest

    def _until_unthrottled(self) -> float:
        now = self._clock.monotonic()
        ends = (until - now for until in self._throttled_until.values() if until > now)
        return min(ends, default=_IDLE_LONGEST)

    def _claimable(self) -> list[str]:
        allowed = self._settings.task_filter
        now = self._clock.monotonic()
        names: list[str] = []
        for name, kind in self._kinds.items():
            if self._throttled_until.get(name, now) > now:
                continue
            if kind.concurrency is not None and self._held[name] >= kind.concurrency:
                continue
            if allowed is None or allowed(name):
                names.append(name)
        return names

    def _drop_held_back(self, look: Look) -> None:
        """Leave out what is paused, throttled or gated for the whole cluster."""
        for name, control in look.controls.items():
            kind = self._kinds.get(name)
            if kind is None or look.now is None or control.allows(kind.version, look.now):
                continue
            look.due.pop(name, None)
            look.next_at.pop(name, None)
            if control.held_until > look.now:
                look.next_at[name] = control.held_until

    async def _look(self, source: Source, names: Sequence[str], room: int) -> Look:
        mine = [kind for kind in source.kinds if kind.name in set(names)]
        if not mine:
            return Look()
        few = len(self._kinds) <= _FEW_KINDS
        wanted = {
            kind.name: min(
                room, (kind.concurrency or room) - (self._held[kind.name] if kind.concurrency else 0)
            )
            for kind in mine
            if few or kind.name in self._hot
        }
        try:
            return await source.look([kind.name for kind in mine], wanted)
        except StoreError as error:
            self._bus.emit("claim.failed", source=str(source.namespace), error=describe(error))
            return Look()

    async def _claim(self, source: Source, look: Look, shares: Mapping[str, int]) -> int:
        ids = [id_ for name, found in look.due.items() for id_ in found[: shares.get(name, 0)]]
        if not ids:
            return 0
        claimed_at = self._clock.monotonic()
        try:
            runs = await source.claim(ids)
        except StoreError as error:
            self._bus.emit("claim.failed", source=str(source.namespace), error=describe(error))
            return 0
        await self._take(source, runs, claimed_at)
        return len(runs)

    async def _take(self, source: Source, runs: Sequence[Run], claimed_at: float) -> None:
        self._leases.hold(runs, claimed_at)
        for run in runs:
            self._held[run.record.task] += 1
        try:
            needless = await source.prepare(runs)
        except StoreError as error:
            self._bus.emit("claim.failed", source=str(source.namespace), error=describe(error))
            needless = [Ended(run, Released()) for run in runs]
        done = {ended.run for ended in needless}
        for ended in needless:
            self._finish(ended)
        for run in runs:
            if run not in done:
                self._buffer[self._kinds[run.record.task].priority].append(run)
                self._buffered += 1
        if self._stopping.is_set():
            self._release()
        self._start_more()

    async def _reclaim_loop(self) -> None:
        pause = self._settings.lease.total_seconds() / 4
        while not self._stopping.is_set():
            if not self._suspects:
                await self._reclaim()
            await self._clock.wait(self._stopping, pause)

    async def _reclaim(self) -> None:
        names = self._claimable()
        for source in self._sources:
            mine = [kind.name for kind in source.kinds if kind.name in names]
            room = self._settings.concurrency - len(self._running)
            if not mine or room <= 0 or self._suspects:
                continue
            claimed_at = self._clock.monotonic()
            try:
                runs = await source.reclaim(mine, room)
            except StoreError as error:
                self._bus.emit("claim.failed", source=str(source.namespace), error=describe(error))
                continue
            self._suspects.update(runs)
            await self._take(source, runs, claimed_at)

    # -- running

    def _start_more(self) -> None:
        free = self._settings.concurrency - len(self._running)
        while free > 0 and self._buffered:
            run = self._next_buffered()
            if run.lost:
                self._forget(run)
                continue
            self._running[run] = asyncio.create_task(self._run(run))
            free -= 1

    def _next_buffered(self) -> Run:
        priority = max(priority for priority, runs in self._buffer.items() if runs)
        self._buffered -= 1
        return self._buffer[priority].popleft()

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
            else:
                self._finish(Ended(run, outcome))
            if self._buffered:
                self._start_more()
            self._stirred.set()

    def _finish(self, ended: Ended) -> None:
        if ended.run.lost:
            self._forget(ended.run)
            return
        namespace = ended.run.definition.source
        self._ended[namespace].append(ended)
        self._unsettled += 1
        self._has_ended[namespace].set()

    def _forget(self, run: Run) -> None:
        self._leases.drop(run)
        self._held[run.record.task] -= 1
        self._suspects.discard(run)

    def _release(self, task: str | None = None) -> None:
        """Give back claimed records that have not started, of one task or of all."""
        for runs in self._buffer.values():
            given_back = [run for run in runs if task is None or run.record.task == task]
            kept = [run for run in runs if task is not None and run.record.task != task]
            runs.clear()
            runs.extend(kept)
            self._buffered -= len(given_back)
            for run in given_back:
                self._finish(Ended(run, Released()))

    # -- settling

    async def _settle_loop(self, source: Source) -> None:
        event, waiting = self._has_ended[source.namespace], self._ended[source.namespace]
        pause = 0.05
        while True:
            await event.wait()
            event.clear()
            while waiting:
                group = waiting[:_MOST_SETTLED]
                if await self._settle(source, group):
                    del waiting[: len(group)]
                    pause = 0.05
                else:
                    await self._clock.sleep(pause)
                    pause = min(2 * pause, 2.0)

    async def _settle(self, source: Source, group: list[Ended]) -> bool:
        """Write a group; False to try again. Records whose lease is lost meanwhile are left to their new owner."""
        owned = [ended for ended in group if not ended.run.lost]
        try:
            await self._write(source, owned)
        except StoreError as error:
            self._bus.emit("settle.failed", source=str(source.namespace), error=describe(error))
            return False
        for ended in group:
            self._forget(ended.run)
        self._unsettled -= len(group)
        self._pace(len(group))
        self._settled.set()
        # What was settled may run again: dirty, retried, or given back.
        self._stirred.set()
        return True

    async def _write(self, source: Source, owned: list[Ended]) -> None:
        """What the server refuses is halved down to the one outcome that it refuses; that run has failed."""
        try:
            await source.settle(owned)
        except StoreError as error:
            if is_passing(error) or not owned:
                raise
            if len(owned) > 1:
                middle = len(owned) // 2
                await self._write(source, owned[:middle])
                await self._write(source, owned[middle:])
                return
            failed = Raised(0, f"its outcome could not be written: {describe(error)}")
            await source.settle([Ended(owned[0].run, failed)])

    def _pace(self, count: int) -> None:
        """How many runs end per second, smoothed: how far ahead of the slots it pays to claim."""
        now = self._clock.monotonic()
        elapsed = max(now - self._settled_at, 1e-3)
        self._settled_at = now
        self._rate = count / elapsed if elapsed > 1 else 0.7 * self._rate + 0.3 * count / elapsed

    def _report(self, run: Run, code: str, **fields: Any) -> None:
        record = run.record
        self._bus.emit(code, task=record.task, doc_id=record.doc_id, attempt=record.attempts, **fields)


def _cancel_if_running(task: asyncio.Task[None]) -> None:
    if not task.done():
        task.cancel()


def _seconds(until: Moment, now: datetime) -> float:
    rest = until if isinstance(until, timedelta) else until - now
    return max(rest.total_seconds(), 0.0)


def _overdue(look: Look) -> list[str]:
    now = look.now
    return [] if now is None else [name for name, at in look.next_at.items() if at <= now]


def _until_next(looks: Sequence[Look]) -> float:
    """Seconds until the first record that is not due yet."""
    waits = [
        (at - look.now).total_seconds()
        for look in looks
        if look.now is not None
        for at in look.next_at.values()
        if at > look.now
    ]
    return min(waits, default=_IDLE_LONGEST)
