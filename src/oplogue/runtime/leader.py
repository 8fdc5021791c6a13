"""Leadership: one instance plans for all.

::

                    acquire                       lease trusted no more,
    candidate ────────────────────▶ leader ────── a newer term exists ─────▶ candidate
        │   ◀── vacancy: wait ──┘      │
        └────────── stop ──────────────┴── stop: resign, another takes over at once

Invariants:

- A leader trusts its lease from the moment *before* the last successful renewal was sent, and gives it up a sixth
  of a lease before its end: by the server's clock no two instances trust theirs at once.
- Trust is about not wasting work. Safety comes from the term: every write that only a leader may do carries it,
  and matches nothing once a newer term exists.
- Renewal does not depend on planning: it is done by the thread that renews leases (or by a coroutine of its own).
  But it is done only while the planner makes progress: a leader whose event loop is blocked, or whose planner
  hangs, must not stay in office.

On failure: an election or a renewal that fails is tried again; when trust ends, the planner is cancelled and the
instance is a candidate again. A crashed leader is followed when its lease has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from oplogue.clock import Clock
from oplogue.errors import LeadershipLostError
from oplogue.runtime.bus import Bus
from oplogue.runtime.office import Office
from oplogue.runtime.parts import end, keep_running, report
from oplogue.runtime.settings import Settings
from oplogue.store.faults import StoreError, describe
from oplogue.store.leadership import Leadership, Term

_SOON = 0.05


class Leader:
    """Stands for election, and lets the planner work while in office."""

    def __init__(
        self,
        *,
        leadership: Leadership,
        govern: Callable[[Office], Awaitable[None]],
        settings: Settings,
        bus: Bus,
        clock: Clock,
    ) -> None:
        self._leadership = leadership
        self._govern = govern
        self._settings = settings
        self._bus = bus
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._vacated = asyncio.Event()
        self._decided = asyncio.Event()
        self.office: Office | None = None

    async def start(self) -> None:
        """Stand for election; returns when it is known who leads, or that nobody can tell."""
        self._decided.clear()
        self._task = keep_running(
            "leader",
            self._loop,
            bus=self._bus,
            clock=self._clock,
            longest_pause=self._settings.lease.total_seconds() / 4,
        )
        decided = asyncio.create_task(self._decided.wait())
        await asyncio.wait({decided, self._task}, return_when=asyncio.FIRST_COMPLETED)
        await end(decided)

    async def stop(self) -> None:
        """Leave office, so that another instance takes over at once."""
        if self._task is None:
            return
        office = self.office
        await end(self._task)
        self._task = None
        if office is not None:
            await self._resign(office)

    def vacated(self) -> None:
        """Somebody resigned: stand for election now."""
        self._vacated.set()

    @property
    def leads(self) -> bool:
        """Whether this instance leads."""
        return self.office is not None

    async def _loop(self) -> None:
        while True:
            try:
                wait = await self._stand()
            finally:
                self._decided.set()
            self._vacated.clear()
            await self._clock.wait(self._vacated, wait)

    async def _stand(self) -> float:
        """Stand once, and govern if elected; how long to wait before the next time."""
        lease, asked_at = self._settings.lease, self._clock.monotonic()
        answer = await self._leadership.acquire(self._settings.instance_id, lease)
        if not isinstance(answer, Term):
            return min(answer.ends_in.total_seconds() + _SOON, lease.total_seconds() / 2)
        office = Office(answer, lease=lease, since=asked_at, clock=self._clock)
        self.office = office
        self._bus.emit("leadership.gained", term=answer.number)
        self._decided.set()
        reason = "the instance stops"
        try:
            await self._hold(office)
        except LeadershipLostError as error:
            reason = office.over = office.over or str(error)
        except Exception as error:
            reason = describe(error)
            await self._resign(office)
            raise
        finally:
            self.office = None
            self._bus.emit("leadership.lost", term=answer.number, reason=reason)
        return _SOON * (1 + self._clock.random())

    async def _hold(self, office: Office) -> None:
        governing = asyncio.ensure_future(self._govern(office))
        try:
            while not governing.done():
                office.check()
                await asyncio.wait({governing}, timeout=max(office.trusted_for, 0) + 0.001)
            governing.result()
        finally:
            await end(governing)

    async def _resign(self, office: Office) -> None:
        if office.over is not None:
            return
        try:
            await self._leadership.resign(office.term)
        except StoreError as error:
            report(self._bus, "resignation", error)
