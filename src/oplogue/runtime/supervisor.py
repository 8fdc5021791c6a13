"""Wires the parts of one instance together, starts them in order and stops them in the reverse of it.

::

    Leader ── in office ──▶ Follower ──▶ Planner ──▶ records ──▶ Executor ──▶ handlers
                               └──▶ Reconciler                      └──▶ LeaseBook ◀── RenewalThread

No part knows another; what one tells the other goes through here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from oplogue.clock import Clock
from oplogue.errors import ConfigurationError
from oplogue.model.definition import Namespace, Task, TaskDefinition
from oplogue.runtime.bus import Bus
from oplogue.runtime.context import Moment, Run, Scope
from oplogue.runtime.executor import Executor
from oplogue.runtime.follower import Follower
from oplogue.runtime.leader import Leader
from oplogue.runtime.leases import LeaseBook
from oplogue.runtime.office import Office
from oplogue.runtime.planner import Planner
from oplogue.runtime.reactive import Controls, ReactiveSource
from oplogue.runtime.reconciler import Reconciler
from oplogue.runtime.renewal import LoopRenewal, Renewal, ThreadRenewal
from oplogue.runtime.settings import Settings
from oplogue.store import Client
from oplogue.store.definitions import Definitions, StoredTask, trigger_hash
from oplogue.store.documents import SourceDocuments
from oplogue.store.faults import OperationFailure, describe, is_refusal
from oplogue.store.leadership import Leadership
from oplogue.store.planning import Planning
from oplogue.store.scans import Range, Scans
from oplogue.store.stream import operation_time
from oplogue.store.tasks import TaskRecords

_PACE = 0.5


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
        bus: Bus,
        clock: Clock,
    ) -> None:
        self._client = client
        self._settings = settings
        self._bus = bus
        self._clock = clock
        self._tasks = tasks
        self._globals = Namespace(database, settings.globals_collection)
        self._definitions = Definitions(client, self._globals, bound=settings.bound)
        self._leadership = Leadership(client, self._globals, bound=settings.bound)
        self._scans = Scans(client, self._globals, bound=settings.bound)
        self._threads = ThreadPoolExecutor(
            max_workers=max(settings.concurrency, 1), thread_name_prefix="oplogue-handler"
        )
        self._leases = LeaseBook(settings.lease, clock)
        self._records: dict[Namespace, TaskRecords] = {}
        self._executor = Executor(
            sources=self._sources(), settings=settings, leases=self._leases, bus=bus, clock=clock
        )
        self._leader = Leader(
            leadership=self._leadership, govern=self._govern, settings=settings, bus=bus, clock=clock
        )
        self._governing = asyncio.Event()
        self._renewal = self._make_renewal(renewal_uri)

    # -- life cycle

    async def start(self) -> None:
        """Ready: definitions checked by the server, indexes there, leading or not."""
        for task in self._tasks:
            await self._check(task.definition)
        for records in self._records.values():
            await records.ensure_indexes()
        await self._definitions.announce([task.definition for task in self._tasks])
        self._renewal.start()
        await self._executor.start()
        await self._leader.start()
        if self._leader.leads:
            # What is written after start() is seen at once, not by the reconciliation.
            await self._clock.wait(self._governing, self._settings.lease.total_seconds())
        self._bus.emit("instance.started", instance_id=self._settings.instance_id)

    async def stop(self) -> None:
        """Stop planning, let another lead, finish what runs, write its outcomes."""
        await self._leader.stop()
        await self._executor.stop()
        await self._renewal.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._bus.emit("instance.stopped", instance_id=self._settings.instance_id)
        await self._bus.drain()

    async def _check(self, definition: TaskDefinition) -> None:
        documents = SourceDocuments(self._client, definition.source, bound=self._settings.bound)
        try:
            await documents.look(definition, [], with_document=False)
        except OperationFailure as error:
            if not is_refusal(error):
                raise
            raise ConfigurationError(
                f"the server refuses it: {describe(error)}",
                option="filter or watch_projection",
                value={"filter": definition.filter.raw, "watched": definition.projection.expression},
                expected="what $match and $project take",
                task=definition.task,
            ) from error

    # -- wiring

    def _sources(self) -> list[ReactiveSource]:
        by_source: dict[Namespace, list[Task]] = {}
        for task in self._tasks:
            by_source.setdefault(task.definition.source, []).append(task)
        return [self._source(source, tasks) for source, tasks in by_source.items()]

    def _source(self, source: Namespace, tasks: list[Task]) -> ReactiveSource:
        bound = self._settings.bound
        records = self._records[source] = TaskRecords(self._client, source, bound=bound)
        return ReactiveSource(
            tasks=tasks,
            hashes={task.name: trigger_hash(task.definition) for task in tasks},
            records=records,
            documents=SourceDocuments(self._client, source, bound=bound),
            settings=self._settings,
            controls=Controls(stop_renewal=self._stop_renewal, throttle=self._throttle),
            threads=self._threads,
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

    def _stop_renewal(self, run: Run) -> None:
        self._leases.drop(run)

    def _throttle(self, task: str, until: Moment, scope: Scope) -> None:
        self._executor.throttle(task, until)

    def _wake(self, names: Iterable[str]) -> None:
        self._executor.wake(names)

    # -- in office

    async def _govern(self, office: Office) -> None:
        """Plan for all instances until the office is lost."""
        stored = await self._definitions.all()
        planning = Planning(self._client, office.term.number)
        planner = Planner(
            tasks=[task.planned for task in stored],
            office=office,
            planning=planning,
            wake=self._wake,
            bound=self._settings.bound,
            bus=self._bus,
            clock=self._clock,
        )
        follower = Follower(
            client=self._client,
            sources=sorted({task.planned.definition.source for task in stored}),
            office=office,
            planner=planner,
            leadership=self._leadership,
            background=self._reconciler(stored, planning, office),
            history_lost=self._history_lost,
            bound=self._settings.bound,
            bus=self._bus,
            clock=self._clock,
        )
        try:
            await follower.open()
            self._governing.set()
            self._bus.emit("planner.started", term=office.term.number)
            await follower.follow()
        finally:
            self._governing.clear()
            self._bus.emit("planner.stopped", term=office.term.number)
            await planning.close()

    def _reconciler(self, stored: Sequence[StoredTask], planning: Planning, office: Office) -> Reconciler:
        async def plan(tasks: Sequence[StoredTask], following: Range) -> None:
            planned = [task.planned for task in tasks]
            event = await operation_time(self._client, bound=self._settings.bound)
            stamp = await planning.stamp(planned, event, self._settings.bound)
            await planning.plan_where(planned, following.selection(), stamp, self._settings.bound)
            self._wake(task.name for task in tasks)

        return Reconciler(
            tasks=[task for task in stored if not task.reconciled],
            plan=plan,
            scans=self._scans,
            definitions=self._definitions,
            office=office,
            pace=_PACE,
            bus=self._bus,
            clock=self._clock,
        )

    async def _history_lost(self, reason: str) -> None:
        self._bus.emit("planner.history_lost", error=reason)
        await self._definitions.to_be_reconciled()
