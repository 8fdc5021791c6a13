"""What an instance does in office: it plans for all, by the definitions that are in force.

::

                     ┌───────── definitions have changed ─────────┐
                     ▼                                            │
    in office ──▶ definitions in force ──▶ Follower ──▶ Planner ──┤
                                              ├──▶ Reconciler     │
                                              └──▶ Reprocessor    └──▶ until the office is lost

A definition that the saved position does not cover (a leader on other code moved it) is reconciled, or followed from
the moment when it came into force. When definitions change, what is in hand is planned first; then all parts are
made anew. That they have changed is told by a signal, and found by looking where the signal was missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from oplogue.clock import Clock
from oplogue.model.definition import Namespace
from oplogue.runtime.bus import Bus
from oplogue.runtime.census import Census
from oplogue.runtime.follower import PATIENCE, Follower
from oplogue.runtime.janitor import Janitor
from oplogue.runtime.lag import StreamLag
from oplogue.runtime.office import Office
from oplogue.runtime.parts import check_cancelled, end, keep_running, report
from oplogue.runtime.planner import Planner
from oplogue.runtime.reconciler import Reconciler
from oplogue.runtime.reprocessor import Reprocessor
from oplogue.runtime.settings import Settings
from oplogue.store import Client, ClusterTime
from oplogue.store.definitions import Definitions, StoredTask
from oplogue.store.evolution import Evolution
from oplogue.store.faults import StoreError
from oplogue.store.fields import list_in
from oplogue.store.instances import Instances
from oplogue.store.leadership import Leadership
from oplogue.store.planning import Planning
from oplogue.store.ranges import Range
from oplogue.store.scans import Scans
from oplogue.store.stream import operation_time
from oplogue.store.tasks import TaskRecords

_DEFINITIONS_EVERY = 10.0


class Government:
    """Wires what works in office, for one term after the other."""

    def __init__(
        self,
        *,
        client: Client,
        globals_: Namespace,
        definitions: Definitions,
        leadership: Leadership,
        scans: Scans,
        instances: Instances,
        janitor: Janitor,
        wake: Callable[[Iterable[str]], None],
        settings: Settings,
        bus: Bus,
        clock: Clock,
    ) -> None:
        self._client = client
        self._globals = globals_
        self._definitions = definitions
        self._leadership = leadership
        self._scans = scans
        self._instances = instances
        self._janitor = janitor
        self._evolution = Evolution(client, globals_, bound=settings.bound)
        self._wake = wake
        self._settings = settings
        self._bus = bus
        self._clock = clock
        self._begun = asyncio.Event()
        self._redefined = asyncio.Event()
        self._since: ClusterTime | None = None
        self._lost_history = False
        self.lag: StreamLag | None = None
        """How far planning is behind; None out of office."""

    def redefine(self) -> None:
        """Definitions have changed, or a reconciliation was asked for: look at once."""
        self._redefined.set()

    async def begun(self, within: float) -> None:
        """Wait until the stream is open: what is written from then on is seen by it."""
        await self._clock.wait(self._begun, within)

    async def govern(self, office: Office) -> None:
        """Plan for all instances until the office is lost; start over when definitions change."""
        planning = Planning(self._client, office.term.number)
        self.lag = StreamLag(self._clock, patience=PATIENCE)
        self._lost_history = False
        self._bus.emit("planner.started", term=office.term.number)
        counting = self._keep_counting()
        try:
            while True:
                self._redefined.clear()
                await self._govern_by(await self._in_force(), planning, office)
        finally:
            await end(counting)
            self._begun.clear()
            self.lag = None
            self._bus.emit("planner.stopped", term=office.term.number)
            await planning.close()

    async def _in_force(self) -> list[StoredTask]:
        """The definitions of all instances. One that the saved position does not cover is to be reconciled."""
        stored = await self._definitions.all()
        position = await self._leadership.saved()
        covered = set(list_in((position or {}).get("covers")))
        uncovered = [task for task in stored if task.reconciled and task.planned.hash not in covered]
        # Where a user wants no backfill of a changed trigger, the events since the change are enough.
        self._since = min(filter(None, map(_unfilled_since, uncovered)), default=None)
        passed_over = [task.name for task in uncovered if _unfilled_since(task) is None]
        if passed_over:
            await self._definitions.to_be_reconciled(passed_over)
            stored = await self._definitions.all()
        return stored

    async def _govern_by(self, stored: Sequence[StoredTask], planning: Planning, office: Office) -> None:
        if not stored:
            self._begun.set()
            await self._clock.wait(self._redefined, None)
            return
        planner = Planner(
            tasks=[task.planned for task in stored],
            office=office,
            planning=planning,
            wake=self._wake,
            reconcile=self._reconcile,
            deleted=self._janitor.deleted,
            mend=self._mend,
            thorough=self._lost_history,
            bound=self._settings.bound,
            bus=self._bus,
            clock=self._clock,
        )
        assert self.lag is not None  # in office
        follower = Follower(
            lag=self.lag,
            client=self._client,
            tasks=[task.planned for task in stored],
            office=office,
            planner=planner,
            leadership=self._leadership,
            background=self._reconciler(stored, planner, office),
            history_lost=self._history_lost,
            bound=self._settings.bound,
            bus=self._bus,
            clock=self._clock,
        )
        await follower.open(self._since)
        self._begun.set()
        watching = asyncio.create_task(self._watch_definitions(stored), name="oplogue-definitions")
        reprocessing = self._keep_reprocessing(office)
        try:
            await follower.follow(self._redefined)
        finally:
            await end(watching, reprocessing)

    def _keep_reprocessing(self, office: Office) -> asyncio.Task[None]:
        reprocessor = Reprocessor(
            evolution=self._evolution,
            instances=self._instances,
            wake=self._wake,
            office=office,
            bus=self._bus,
            clock=self._clock,
        )
        return keep_running("reprocessing", reprocessor.run, bus=self._bus, clock=self._clock)

    def _keep_counting(self) -> asyncio.Task[None]:
        census = Census(
            definitions=self._definitions,
            instances=self._instances,
            lease=self._settings.lease,
            bus=self._bus,
            clock=self._clock,
        )
        return keep_running("census", census.run, bus=self._bus, clock=self._clock)

    async def _watch_definitions(self, known: Sequence[StoredTask]) -> None:
        """The net below the signal that definitions have changed."""
        while not self._redefined.is_set():
            await self._clock.sleep(_DEFINITIONS_EVERY)
            try:
                now = await self._definitions.all()
            except StoreError as error:
                check_cancelled()
                report(self._bus, "definitions", error)
                continue
            if _defined(now) != _defined(known) or _unreconciled(now) - _unreconciled(known):
                self._redefined.set()

    async def _mend(self, source: Namespace, names: Sequence[str]) -> None:
        """Somebody dropped the records: their indexes are made again, and all documents planned again."""
        records = TaskRecords(self._client, source, globals_=self._globals, bound=self._settings.bound)
        await records.ensure_indexes()
        await self._reconcile(names)

    async def _reconcile(self, names: Sequence[str]) -> None:
        await self._definitions.to_be_reconciled(names)
        self._redefined.set()

    def _reconciler(self, stored: Sequence[StoredTask], planner: Planner, office: Office) -> Reconciler:
        async def plan(tasks: Sequence[StoredTask], following: Range) -> None:
            source = tasks[0].planned.definition.source

            async def ids() -> list[Any]:
                return await self._scans.ranges.ids(source, following)

            now = await operation_time(self._client, bound=self._settings.bound)
            await planner.plan_range([task.planned for task in tasks], following.selection(), ids, now)

        return Reconciler(
            tasks=[task for task in stored if not task.reconciled],
            plan=plan,
            holds=planner.holds,
            scans=self._scans,
            definitions=self._definitions,
            finished=self._janitor.reconciled,
            overtaken=self._redefined.set,
            office=office,
            pace=self._settings.pace,
            bus=self._bus,
            clock=self._clock,
        )

    async def _history_lost(self, reason: str) -> None:
        self._lost_history = True
        self._bus.emit("planner.history_lost", error=reason)
        await self._definitions.to_be_reconciled()
        self._redefined.set()


def _unfilled_since(task: StoredTask) -> ClusterTime | None:
    wanted = task.planned.definition.evolution.reconcile_on_trigger_change
    return None if wanted else task.defined_at


def _defined(tasks: Iterable[StoredTask]) -> set[tuple[str, str]]:
    return {(task.name, task.revision) for task in tasks}


def _unreconciled(tasks: Iterable[StoredTask]) -> set[tuple[str, int]]:
    """What is to be met; a request that came while an older one is being met is another."""
    return {(task.name, task.epoch) for task in tasks if not task.reconciled}
