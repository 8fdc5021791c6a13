"""Instances whose parts are strands: the library's planner, source of work and store, driven by hand.

What the library's loops do with timers is done here one turn at a time: a leader stands for election, plans some of
the events and saves the position; a worker claims, runs and settles; leases are renewed. The stream itself is not
here (other rows break it): a leader is given the events since the saved position, in order, as a stream would.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor
from datetime import timedelta
from typing import Any

from pymongo.errors import PyMongoError

from interleaving.strands import Strand, current
from interleaving.world import Call, Document, World
from oplogue.clock import Clock
from oplogue.errors import LeadershipLostError, LeaseLostError
from oplogue.events import RunEvent
from oplogue.model.definition import Namespace, Task
from oplogue.model.outcomes import Released
from oplogue.model.policies import Monitoring
from oplogue.runtime.bus import Bus
from oplogue.runtime.context import Context, Run
from oplogue.runtime.meter import Meter
from oplogue.runtime.office import Office
from oplogue.runtime.planner import Planner
from oplogue.runtime.reactive import Controls, ReactiveSource
from oplogue.runtime.settings import Settings
from oplogue.runtime.work import Ended
from oplogue.store.connection import Client
from oplogue.store.definitions import planned
from oplogue.store.documents import SourceDocuments
from oplogue.store.leadership import Leadership, Term
from oplogue.store.leadership import renew as renew_leadership
from oplogue.store.planning import Planning
from oplogue.store.renewals import renew
from oplogue.store.stream import Batch, Following, Position, operation_time, read_position
from oplogue.store.tasks import TaskRecords, Wanted

LEASE = timedelta(minutes=10)
BOUND = timedelta(seconds=20)
FOLLOWS = Following(target="", pipeline="", covers=())


class StillClock(Clock):
    """Time passes when somebody sleeps, and when the stage says so."""

    def __init__(self) -> None:
        self.time = 1_000.0

    def monotonic(self) -> float:
        """Seconds."""
        return self.time

    def random(self) -> float:
        """Always the same."""
        return 0.5

    async def sleep(self, seconds: float) -> None:
        """At once."""
        self.time += seconds
        await super().sleep(0)

    async def wait(self, event: asyncio.Event, timeout: float | None) -> bool:
        """Whether it is set."""
        return event.is_set()


class Instance:
    """One process: a leader or a candidate, a worker, and the renewal of leases."""

    def __init__(
        self,
        name: str,
        client: Client,
        world: World,
        globals_: Namespace,
        make_tasks: Callable[[], Sequence[Task]],
        threads: Executor,
    ) -> None:
        self.name = name
        self.world = world
        self.clock = StillClock()
        self.strands: list[Strand] = []
        self.some_events: int | None = None
        """How many events the next turn of the leader gets; None: all."""
        self.scans = False
        """Whether the next turn of the leader reconciles the example's documents instead."""
        self._client = client
        self._globals = globals_
        self._bus = Bus(self.clock, name)
        self._told: set[tuple[str, Any, int]] = set()
        self._bus.subscribe("task.lease_lost", self._tell)
        self._leadership = Leadership(client, globals_, bound=BOUND)
        self._tasks = make_tasks()
        self._names = [task.name for task in self._tasks]
        self._planned = [planned(task.definition) for task in self._tasks]
        self._source = self._make_source(threads)
        self._held: dict[Any, dict[Any, Run]] = defaultdict(dict)
        self._taken: dict[Run, int] = {}
        self._tray: list[Ended] = []
        self._office: Office | None = None
        self.spawn("leader", self._lead())
        self.spawn("claims", self._claim())
        self.spawn("suspects", self._reclaim())
        self.spawn("outcomes", self._settle())
        self.spawn("leases", self._renew())

    def _make_source(self, threads: Executor) -> ReactiveSource:
        settings = Settings(
            instance_id=self.name,
            concurrency=10,
            lease=LEASE,
            shutdown_timeout=BOUND,
            cleanup_interval=timedelta(days=1),
            globals_collection=self._globals.collection,
            monitoring=Monitoring(),
            pace=0.5,
        )
        source = self.world.source
        return ReactiveSource(
            tasks=self._tasks,
            hashes={task.definition.task: task.hash for task in self._planned},
            records=TaskRecords(self._client, source, globals_=self._globals, bound=BOUND),
            documents=SourceDocuments(self._client, source, bound=BOUND),
            settings=settings,
            controls=Controls(stop_renewal=self._drop, throttle=_nothing),
            threads=threads,
            meter=Meter(self._bus),
            bus=self._bus,
            clock=self.clock,
        )

    @property
    def has_outcomes(self) -> bool:
        """Whether it has something to write, or writes."""
        return bool(self._tray)

    def spawn(self, part: str, coroutine: Coroutine[Any, Any, None]) -> Strand:
        """A strand more."""
        self.strands.append(Strand(part, coroutine))
        return self.strands[-1]

    async def kill(self) -> list[Strand]:
        """End it as ``kill -9`` does; its strands."""
        strands, self.strands = self.strands, []
        for strand in strands:
            strand.dead = True
        for strand in strands:
            await strand.kill()
        return strands

    # -- the leader

    async def _lead(self) -> None:
        while True:
            await current().rest("a candidate")
            try:
                answer = await self._leadership.acquire(self.name, LEASE)
            except PyMongoError:
                continue
            if isinstance(answer, Term):
                await self._govern(Office(answer, lease=LEASE, since=self.clock.time, clock=self.clock))

    async def _govern(self, office: Office) -> None:
        planning = Planning(self._client, office.term.number)
        planner = self._make_planner(planning, office)
        self._office = office
        try:
            stored = await self._leadership.saved()
            position = read_position(stored, FOLLOWS)
            reached = 0 if position is None else self._events_before(position)
            while True:
                await current().rest("in office")
                office.beat()
                if self.scans:
                    self.scans = False
                    await self._scan(planner)
                else:
                    reached = await self._plan(planner, office, reached)
        except (LeadershipLostError, PyMongoError):
            return  # the office is lost, or its part failed: a candidate again
        finally:
            self._office = None
            # A statement of the dead that is on its way has this session still.
            if not current().dead:
                await planning.close()

    def _make_planner(self, planning: Planning, office: Office) -> Planner:
        async def reconcile(_: Sequence[str]) -> None:
            raise AssertionError("no collection came or went")

        async def mend(*_: Any) -> None:
            raise AssertionError("the indexes are there")

        return Planner(
            tasks=self._planned,
            office=office,
            planning=planning,
            wake=_nothing,
            reconcile=reconcile,
            deleted=_nothing,
            mend=mend,
            # Every other instance scans as after a lost history, with records that are unchanged too.
            thorough=self.name.endswith(("1", "3", "5")),
            bound=BOUND,
            bus=self._bus,
            clock=self.clock,
        )

    def _events_before(self, position: Position) -> int:
        return sum(event.time < position.time for event in self.world.events)

    async def _plan(self, planner: Planner, office: Office, reached: int) -> int:
        """Some events, and their position saved beside what follows."""
        events = self.world.events[reached:]
        events = events[: self.some_events]
        if events:
            await planner.take(Batch(events, Position(events[-1].time), events[-1].time))
        position = await planner.step(0)
        if position is not None and not self._is_saving():
            strand = self.spawn("position", self._save(office, position))
            strand.free = current().free
        return reached + len(events)

    def _is_saving(self) -> bool:
        return any(strand.part == "position" and not strand.ended for strand in self.strands)

    async def _save(self, office: Office, position: Position) -> None:
        term = office.term
        try:
            await self._leadership.save(term, position.stored(FOLLOWS, term.number))
        except LeadershipLostError as error:
            office.over = str(error)
        except PyMongoError:
            return
        else:
            self.world.planned(term.number, position.time)

    async def _scan(self, planner: Planner) -> None:
        ids = sorted(self.world.stories)

        async def of_range() -> list[Any]:
            return ids

        now = await operation_time(self._client, bound=BOUND)
        await planner.plan_range(self._planned, {"_id": {"$gte": ids[0], "$lte": ids[-1]}}, of_range, now)

    # -- the worker

    async def _claim(self) -> None:
        while True:
            await current().rest("with free slots")
            began = self.world.now()
            try:
                look = await self._source.look(self._names, dict.fromkeys(self._names, Wanted(10)))
                ids = [id_ for found in look.due.values() for id_ in found]
                runs = await self._source.claim(ids) if ids else []
            except PyMongoError:
                continue
            await self._take(runs, began)

    async def _reclaim(self) -> None:
        while True:
            await current().rest("looking for suspects")
            began = self.world.now()
            try:
                mine = {id_ for runs in self._held.values() for id_ in runs}
                runs = await self._source.reclaim(dict.fromkeys(self._names, 10), 10, held=mine)
            except PyMongoError:
                continue
            await self._take(runs, began)

    async def _take(self, runs: Sequence[Run], began: int) -> None:
        for run in runs:
            self._held[run.record.token][run.record.id] = run
            self.world.claims[run.record.id].append(began)
            self._taken[run] = self.world.now()
        try:
            needless = await self._source.prepare(runs)
        except PyMongoError:
            needless = [Ended(run, Released()) for run in runs]
        done = {ended.run for ended in needless}
        self._tray += needless
        for run in runs:
            if run not in done:
                strand = self.spawn("run", self._run(run))
                strand.free = current().free

    async def _run(self, run: Run) -> None:
        outcome = await self._source.execute(run)
        if outcome is None or run.lost:
            self._drop(run)
        else:
            self._tray.append(Ended(run, outcome))

    async def _settle(self) -> None:
        while True:
            await current().rest("with outcomes to write")
            group = [ended for ended in self._tray if not ended.run.lost]
            if not group:
                continue
            lost = [ended.run for ended in group if not self._owns(ended.run)]
            try:
                await self._source.settle(group)
            except PyMongoError:
                continue
            self._check_told(lost)
            self._tray = [ended for ended in self._tray if ended not in group]
            for ended in group:
                self._drop(ended.run)

    def _owns(self, run: Run) -> bool:
        """False where it is certain: somebody began to claim the record after this run had it, and got it."""
        return max(self.world.claims[run.record.id]) < self._taken[run]

    def _check_told(self, lost: Sequence[Run]) -> None:
        """Whose record somebody else has claimed meanwhile is told that nothing of its run was written."""
        for run in lost:
            key = (run.record.task, run.record.doc_id, run.record.attempts)
            assert key in self._told, f"{key} was settled by a run that had lost its lease"
            self.world.fenced += 1

    # -- leases

    async def _renew(self) -> None:
        while True:
            await current().rest("between renewals")
            try:
                await self._renew_office()
                owned = {token: list(runs) for token, runs in self._held.items() if runs}
                if owned:
                    lost = await renew(self._client, self.world.source, owned, LEASE, BOUND)
                    self._lose(lost)
            except PyMongoError:
                continue

    async def _renew_office(self) -> None:
        office = self._office
        if office is not None:
            asked_at = self.clock.time
            kept = await renew_leadership(self._client, self._globals, office.term, LEASE, BOUND)
            office.answered(kept, asked_at)

    def _lose(self, lost: Sequence[tuple[Any, Any]]) -> None:
        for token, id_ in lost:
            run = self._held[token].get(id_)
            if run is not None and run.completed == "no":
                run.lost = True
                run.cancelled.set()
                self._drop(run)

    def _tell(self, event: RunEvent) -> None:
        self._told.add((event.task, event.doc_id, event.attempt))

    def _drop(self, run: Run) -> None:
        self._held[run.record.token].pop(run.record.id, None)


class Handlers:
    """What the tasks of the model do: what the world wishes, or they succeed."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def plain(self, ctx: Context) -> None:
        """Takes its word for the values that were planned."""
        await self._handle(ctx, ctx.watched_values["total"])

    async def verified(self, order: Document, ctx: Context) -> None:
        """Gets the document itself."""
        assert ctx.watched_values == {"total": order["total"]}
        await self._handle(ctx, order["total"])

    async def _handle(self, ctx: Context, total: str) -> None:
        world = self._world
        run = world.began(ctx.task, ctx.doc_id, total)
        wish = world.wishes.pop(ctx.doc_id, "succeed")
        await current().halt("in the handler")
        if wish == "fetch":
            order = await ctx.get_document()
            assert order["total"] == total
        if wish == "raise":
            raise ValueError("as it was told")
        if wish == "defer":
            ctx.defer_current("1h")
            return
        # Before the mark: a process that is killed when it is written has handled the document.
        run.handled = True
        if wish.startswith("mark"):
            await self._mark(ctx, run)
        if wish == "mark, raise":
            raise ValueError("as it was told")

    async def _mark(self, ctx: Context, run: Call) -> None:
        try:
            await ctx.mark_completed()
        except LeaseLostError:
            run.handled = False
            raise
        await current().halt("in the handler, when it is completed")


def _nothing(*_: Any) -> None: ...
