"""Wires the parts of one instance together, starts them in order and stops them in the reverse of it.

::

    Leader ── in office ──▶ Follower ──▶ Planner ──▶ records ──▶ Executor ──▶ handlers
                               └──▶ Reconciler                      └──▶ LeaseBook ◀── RenewalThread

No part knows another; what one tells the other goes through here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from datetime import timedelta
from typing import Any

from oplogue.clock import Clock
from oplogue.model.definition import Namespace, Task
from oplogue.model.health import Phase, Vitals
from oplogue.runtime.bus import Bus
from oplogue.runtime.census import Census
from oplogue.runtime.context import Moment, Run, Scope
from oplogue.runtime.desk import Desk
from oplogue.runtime.executor import Executor
from oplogue.runtime.follower import PATIENCE, Follower
from oplogue.runtime.janitor import Janitor
from oplogue.runtime.lag import StreamLag
from oplogue.runtime.leader import Leader
from oplogue.runtime.leases import LeaseBook
from oplogue.runtime.lock import Lock
from oplogue.runtime.messenger import Messenger
from oplogue.runtime.meter import Meter
from oplogue.runtime.monitor import Here, Monitor
from oplogue.runtime.office import Office
from oplogue.runtime.overview import Overview
from oplogue.runtime.parts import check_cancelled, end, keep_running, report
from oplogue.runtime.planner import Planner
from oplogue.runtime.presence import Presence
from oplogue.runtime.pulse import Pulse
from oplogue.runtime.quiet import Quiet
from oplogue.runtime.reactive import Controls, ReactiveSource
from oplogue.runtime.reconciler import Reconciler
from oplogue.runtime.renewal import LoopRenewal, Renewal, ThreadRenewal
from oplogue.runtime.reprocessor import Reprocessor
from oplogue.runtime.settings import Settings
from oplogue.runtime.threads import HandlerThreads
from oplogue.store import Client, ClusterTime
from oplogue.store.announcements import trigger_hash
from oplogue.store.backlog import Backlog
from oplogue.store.cleanup import Cleanup
from oplogue.store.connection import check_server
from oplogue.store.controls import Controls as StoredControls
from oplogue.store.definitions import Definitions, StoredTask
from oplogue.store.documents import SourceDocuments
from oplogue.store.evolution import Evolution
from oplogue.store.faults import StoreError
from oplogue.store.fields import list_in
from oplogue.store.instances import Instances, Load
from oplogue.store.leadership import Leadership
from oplogue.store.locks import Locks
from oplogue.store.operations import Operations
from oplogue.store.planning import Planning
from oplogue.store.privileges import check_stream, permitted
from oplogue.store.ranges import Range
from oplogue.store.scans import Scans
from oplogue.store.signals import Signal, Signals, Topic
from oplogue.store.stream import operation_time
from oplogue.store.tasks import TaskRecords
from oplogue.store.totals import Totals

_PATIENCE = timedelta(seconds=5)
_DEFINITIONS_EVERY = 10.0


class Supervisor:
    """One running instance."""

    def __init__(
        self,
        *,
        client: Client,
        renewal_uri: str | None,
        database: str,
        tasks: Sequence[Task],
        settings: Settings,
        meter: Meter,
        bus: Bus,
        clock: Clock,
    ) -> None:
        self._client = client
        self._settings = settings
        self._meter = meter
        self._bus = bus
        self._clock = clock
        self._tasks = tasks
        self._globals = Namespace(database, settings.globals_collection)
        self._definitions = Definitions(client, self._globals, bound=settings.bound)
        self._leadership = Leadership(client, self._globals, bound=settings.bound)
        self._scans = Scans(client, self._globals, bound=settings.bound)
        self._threads = HandlerThreads()
        self._leases = LeaseBook(settings.lease, clock)
        self._records: dict[Namespace, TaskRecords] = {}
        self._executor = Executor(
            sources=self._sources(),
            settings=settings,
            leases=self._leases,
            meter=meter,
            bus=bus,
            clock=clock,
        )
        self._leader = Leader(
            leadership=self._leadership, govern=self._govern, settings=settings, bus=bus, clock=clock
        )
        self._governing = asyncio.Event()
        self._redefined = asyncio.Event()
        self._since: ClusterTime | None = None
        self._lost_history = False
        self._lag: StreamLag | None = None
        self._instances = Instances(client, self._globals, bound=settings.bound)
        self._controls = StoredControls(client, self._globals, bound=settings.bound)
        self._presence = Presence(
            instances=self._instances,
            definitions=self._definitions,
            controls=self._controls,
            own=[task.definition for task in tasks],
            instance_id=settings.instance_id,
            lease=settings.lease,
            load=lambda: self._here().load,
            redefined=self._tell_redefined,
            gated=self._tell_gated,
            ensure_indexes=self._ensure_indexes,
            bus=bus,
            clock=clock,
        )
        self._messenger = Messenger(
            signals=Signals(client, self._globals, patience=_PATIENCE, bound=settings.bound),
            instance_id=settings.instance_id,
            heard=self._heard,
            missed=self._missed_signals,
            bus=bus,
            clock=clock,
        )
        self.desk: Desk = Desk(
            definitions=self._definitions,
            operations=Operations(client, database),
            controls=self._controls,
            scans=self._scans,
            tell=self._tell,
            bus=bus,
            clock=clock,
        )
        """What operators ask for."""
        self.janitor: Janitor = Janitor(
            cleanup=Cleanup(client, self._globals, bound=settings.bound),
            definitions=self._definitions,
            interval=settings.cleanup_interval,
            instance_id=settings.instance_id,
            bus=bus,
            clock=clock,
        )
        self.monitor: Monitor = self._make_monitor()
        """What is measured."""
        self._evolution = Evolution(client, self._globals, bound=settings.bound)
        self._errands: set[asyncio.Task[None]] = set()
        self._throttling = asyncio.Lock()
        self._renewal = self._make_renewal(renewal_uri)
        self._pulse = Pulse(lease=settings.lease, bus=bus, clock=clock)
        self._phase = Phase.NOT_STARTED

    # -- life cycle

    async def start(self) -> None:
        """Ready: definitions checked by the server, indexes there, leading or not."""
        self._phase = Phase.STARTING
        self._pulse.start()
        with permitted():
            await self._check()
            await self._ensure_indexes()
            await self._presence.start()
        await self._messenger.start(self._settings.bound.total_seconds())
        self._messenger.say(Topic.PRESENCE)
        await self.janitor.start()
        self._renewal.start()
        await self._executor.start()
        await self.monitor.start()
        await self._leader.start()
        if self._leader.leads:
            # What is written after start() is seen at once, not by the reconciliation.
            await self._clock.wait(self._governing, self._settings.lease.total_seconds())
        self._phase = Phase.STARTED
        self._bus.emit("instance.started")

    async def stop(self) -> None:
        """Stop planning, let another lead, finish what runs, write its outcomes."""
        self._phase = Phase.STOPPING
        self._bus.emit(
            "instance.stopping", count=self._executor.slots_in_use, tasks=self._executor.running_tasks
        )
        led = self._leader.leads
        await self._leader.stop()
        if led:
            self._messenger.say(Topic.VACANCY)
        await self._executor.stop()
        await self._renewal.stop()
        await self.monitor.stop()
        await self.janitor.stop()
        await self._presence.stop()
        await self._messenger.stop()
        await asyncio.gather(*self._errands)
        self._threads.shutdown()
        self._bus.emit("instance.stopped")
        await self._bus.drain(self._settings.bound.total_seconds())
        await self._pulse.stop()

    @property
    def vitals(self) -> Vitals:
        """What speaks for and against this instance. May be read by any thread."""
        now = self._clock.monotonic()

        def since(moment: float | None) -> float | None:
            return None if moment is None else now - moment

        return Vitals(
            self._phase,
            loop_silent=since(self._pulse.beat_at),
            renewal_silent=since(self._renewal.round_at),
            database_silent=since(self._presence.answered_at),
        )

    async def _check(self) -> None:
        """What only the server can say."""
        bound = self._settings.bound
        await check_server(self._client, bound=bound)
        for task in self._tasks:
            await SourceDocuments(self._client, task.definition.source, bound=bound).check(task.definition)
        await check_stream(
            self._client, {task.definition.source.database for task in self._tasks}, bound=bound
        )

    async def _ensure_indexes(self) -> None:
        for records in self._records.values():
            await records.ensure_indexes()

    # -- wiring

    def _sources(self) -> list[ReactiveSource]:
        by_source: dict[Namespace, list[Task]] = {}
        for task in self._tasks:
            by_source.setdefault(task.definition.source, []).append(task)
        return [self._source(source, tasks) for source, tasks in by_source.items()]

    def _source(self, source: Namespace, tasks: list[Task]) -> ReactiveSource:
        bound = self._settings.bound
        records = self._records[source] = TaskRecords(
            self._client, source, globals_=self._globals, bound=bound
        )
        return ReactiveSource(
            tasks=tasks,
            hashes={task.name: trigger_hash(task.definition) for task in tasks},
            records=records,
            documents=SourceDocuments(self._client, source, bound=bound),
            settings=self._settings,
            controls=Controls(stop_renewal=self._stop_renewal, throttle=self._throttle),
            threads=self._threads,
            meter=self._meter,
            bus=self._bus,
            clock=self._clock,
        )

    def _make_renewal(self, uri: str | None) -> Renewal:
        def lost(runs: list[Run]) -> None:
            self._executor.lose(runs)

        kind = ThreadRenewal if uri is not None else LoopRenewal
        return kind(
            uri=uri,
            client=self._client,
            book=self._leases,
            office=lambda: self._leader.office,
            globals_=self._globals,
            settings=self._settings,
            lost=lost,
            bus=self._bus,
            clock=self._clock,
        )

    def _make_monitor(self) -> Monitor:
        settings, bound = self._settings, self._settings.bound
        return Monitor(
            meter=self._meter,
            totals=Totals(self._client, self._globals, bound=bound),
            overview=Overview(
                definitions=self._definitions,
                backlog=Backlog(self._client, settings.monitoring.read_preference, bound=bound),
                leadership=self._leadership,
                instances=self._instances,
                scans=self._scans,
                bus=self._bus,
                clock=self._clock,
            ),
            instances=self._instances,
            here=self._here,
            instance_id=settings.instance_id,
            tasks=[task.name for task in self._tasks],
            options=settings.monitoring,
            bus=self._bus,
            clock=self._clock,
        )

    async def quiet(self) -> None:
        """Wait until nothing is left to do here; see `oplogue.runtime.quiet`."""
        await Quiet(
            client=self._client,
            definitions=self._definitions,
            backlog=Backlog(self._client, "primary", bound=self._settings.bound),
            records=self._records,
            own=[task.definition for task in self._tasks],
            may_run=self._executor.may_run,
            claims=lambda: self._executor.claims,
            planned_to=self._planned_to,
            bound=self._settings.bound,
            bus=self._bus,
            clock=self._clock,
        ).reached()

    async def _planned_to(self) -> ClusterTime | None:
        if self._lag is not None and self._lag.planned_to is not None:
            return self._lag.planned_to
        return await self._leadership.saved_time()

    def _here(self) -> Here:
        load = Load(self._settings.concurrency, self._executor.slots_in_use)
        return Here(load, self._leader.leads, None if self._lag is None else self._lag.behind)

    def _stop_renewal(self, run: Run) -> None:
        self._leases.drop(run)

    def _throttle(self, task: str, until: Moment, scope: Scope) -> None:
        self._executor.throttle(task, until, scope)
        if scope == "cluster":
            self._run_errand(self._throttle_cluster(task, until), "throttle")

    async def _throttle_cluster(self, task: str, until: Moment) -> None:
        # One after the other, in the order of the calls: the last one wins.
        async with self._throttling:
            await self._controls.throttle(task, until)
        await self._tell(Topic.CONTROLS, [task])

    async def _tell(self, topic: Topic, names: Iterable[str]) -> None:
        """Do what a signal asks for, and let the other instances hear it."""
        told = tuple(names)
        self._heard(Signal(topic, self._settings.instance_id, told))
        self._messenger.say(topic, told)

    def _run_errand(self, errand: Coroutine[Any, Any, None], part: str) -> None:
        """Something that a plain call asked for and nobody waits for."""

        async def run() -> None:
            try:
                await errand
            except StoreError as error:
                report(self._bus, part, error)

        task = asyncio.create_task(run(), name=f"oplogue-{part}")
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    def _wake(self, names: Iterable[str]) -> None:
        told = set(names)
        self._executor.wake(told)
        if not self._presence.alone:
            self._messenger.say(Topic.WORK, told)

    async def _tell_gated(self, names: list[str]) -> None:
        """Claims that older code has begun come too late."""
        await self._tell(Topic.CONTROLS, names)

    def _tell_redefined(self) -> None:
        self._redefined.set()
        self._messenger.say(Topic.DEFINITIONS)

    def _missed_signals(self) -> None:
        """Anything may have been said: look once, stand for election once."""
        self._executor.wake(task.name for task in self._tasks)
        self._redefined.set()
        self._leader.vacated()

    def _heard(self, signal: Signal) -> None:
        match signal.topic:
            case Topic.WORK:
                self._executor.wake(signal.tasks)
            case Topic.CONTROLS:
                self._executor.hold_back(signal.tasks)
            case Topic.RESUMED:
                self._executor.resume(signal.tasks)
            case Topic.DEFINITIONS:
                self._redefined.set()
            case Topic.PRESENCE:
                self._presence.alone = False
            case Topic.LOAD:
                self._run_errand(self._presence.note_load(), "presence")
            case Topic.VACANCY:
                self._leader.vacated()

    # -- in office

    async def _govern(self, office: Office) -> None:
        """Plan for all instances until the office is lost; start over when definitions change."""
        planning = Planning(self._client, office.term.number)
        self._lag = StreamLag(self._clock, patience=PATIENCE)
        self._lost_history = False
        self._bus.emit("planner.started", term=office.term.number)
        counting = self._keep_counting()
        try:
            while True:
                self._redefined.clear()
                await self._govern_by(await self._in_force(), planning, office)
        finally:
            await end(counting)
            self._governing.clear()
            self._lag = None
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
            self._governing.set()
            await self._clock.wait(self._redefined, None)
            return
        planner = Planner(
            tasks=[task.planned for task in stored],
            office=office,
            planning=planning,
            wake=self._wake,
            reconcile=self._reconcile,
            deleted=self.janitor.deleted,
            mend=self._mend,
            thorough=self._lost_history,
            bound=self._settings.bound,
            bus=self._bus,
            clock=self._clock,
        )
        assert self._lag is not None  # in office
        follower = Follower(
            lag=self._lag,
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
        self._governing.set()
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

    def lock(self, key: str, expire_in: timedelta, max_wait: timedelta) -> Lock:
        """A named lock of the whole cluster."""
        return Lock(
            locks=Locks(self._client, self._globals, bound=self._settings.bound),
            key=key,
            owner=self._settings.instance_id,
            expire_in=expire_in,
            max_wait=max_wait,
            clock=self._clock,
        )

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
            finished=self.janitor.reconciled,
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
