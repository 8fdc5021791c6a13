"""Wires the parts of one instance together, starts them in order and stops them in the reverse of it.

::

    Leader ── in office ──▶ Government ──▶ records ──▶ Executor ──▶ handlers
                                                          └──▶ LeaseBook ◀── RenewalThread

No part knows another; what one tells the other goes through here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from datetime import timedelta
from typing import Any

from oplogue.clock import Clock
from oplogue.model.definition import Namespace, Task
from oplogue.model.findings import weak_settings
from oplogue.model.health import Phase, Vitals
from oplogue.runtime.bus import Bus
from oplogue.runtime.context import Moment, Run, Scope
from oplogue.runtime.desk import Desk
from oplogue.runtime.executor import Executor
from oplogue.runtime.government import Government
from oplogue.runtime.janitor import Janitor
from oplogue.runtime.leader import Leader
from oplogue.runtime.leases import LeaseBook
from oplogue.runtime.lock import Lock
from oplogue.runtime.messenger import Messenger
from oplogue.runtime.meter import Meter
from oplogue.runtime.monitor import Here, Monitor
from oplogue.runtime.overview import Overview
from oplogue.runtime.parts import report
from oplogue.runtime.presence import Presence
from oplogue.runtime.pulse import Pulse
from oplogue.runtime.quiet import Quiet
from oplogue.runtime.reactive import Controls, ReactiveSource
from oplogue.runtime.renewal import LoopRenewal, Renewal, ThreadRenewal
from oplogue.runtime.settings import Settings
from oplogue.runtime.threads import HandlerThreads
from oplogue.store import Client, ClusterTime
from oplogue.store.announcements import trigger_hash
from oplogue.store.backlog import Backlog
from oplogue.store.checkup import settings_of
from oplogue.store.cleanup import Cleanup
from oplogue.store.connection import check_server
from oplogue.store.controls import Controls as StoredControls
from oplogue.store.definitions import Definitions
from oplogue.store.documents import SourceDocuments
from oplogue.store.faults import StoreError, persisting
from oplogue.store.instances import Instances, Load
from oplogue.store.leadership import Leadership
from oplogue.store.locks import Locks
from oplogue.store.operations import Operations
from oplogue.store.privileges import check_stream, permitted
from oplogue.store.scans import Scans
from oplogue.store.signals import Signal, Signals, Topic
from oplogue.store.tasks import TaskRecords
from oplogue.store.totals import Totals

_PATIENCE = timedelta(seconds=5)
_START_PATIENCE = _PATIENCE.total_seconds()


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
        self._government = Government(
            client=client,
            globals_=self._globals,
            definitions=self._definitions,
            leadership=self._leadership,
            scans=self._scans,
            instances=self._instances,
            janitor=self.janitor,
            wake=self._wake,
            settings=settings,
            bus=bus,
            clock=clock,
        )
        self._leader = Leader(
            leadership=self._leadership,
            govern=self._government.govern,
            settings=settings,
            bus=bus,
            clock=clock,
        )
        self.monitor: Monitor = self._make_monitor()
        """What is measured."""
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
            await self._patiently(self._check)
            await self._patiently(self._ensure_indexes)
            await self._patiently(self._presence.start)
        await self._messenger.start(self._settings.bound.total_seconds())
        self._messenger.say(Topic.PRESENCE)
        await self.janitor.start()
        self._renewal.start()
        await self._executor.start()
        await self.monitor.start()
        await self._leader.start()
        if self._leader.leads:
            # What is written after start() is seen at once, not by the reconciliation.
            await self._government.begun(self._settings.lease.total_seconds())
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

    async def _patiently(self, step: Callable[[], Awaitable[None]]) -> None:
        """No lease runs yet: what took longer than a lease would allow is tried again."""
        deadline = self._clock.monotonic() + _START_PATIENCE
        await persisting(step, self._clock, until=lambda: self._clock.monotonic() >= deadline)

    async def _check(self) -> None:
        """What only the server can say; and of the client what is weaker than ours."""
        bound = self._settings.bound
        weak = [f"{option}={value}" for option, value, _ in weak_settings(settings_of(self._client))]
        if weak:
            self._bus.emit("instance.weak_client", options=weak)
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
        lag = self._government.lag
        if lag is not None and lag.planned_to is not None:
            return lag.planned_to
        return await self._leadership.saved_time()

    def _here(self) -> Here:
        load = Load(self._settings.concurrency, self._executor.slots_in_use)
        lag = self._government.lag
        return Here(load, self._leader.leads, None if lag is None else lag.behind)

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
        self._government.redefine()
        self._messenger.say(Topic.DEFINITIONS)

    def _missed_signals(self) -> None:
        """Anything may have been said: look once, stand for election once."""
        self._executor.wake(task.name for task in self._tasks)
        self._government.redefine()
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
                self._government.redefine()
            case Topic.PRESENCE:
                self._presence.alone = False
            case Topic.LOAD:
                self._run_errand(self._presence.note_load(), "presence")
            case Topic.VACANCY:
                self._leader.vacated()

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
