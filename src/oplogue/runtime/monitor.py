"""Metrics of one instance and of the cluster: what is counted here, what others counted, what the database says.

==========  ==========================================  =========================================
scrape mode  what instances count                        the cluster's own metrics
==========  ==========================================  =========================================
cluster     all instances' together, from any of them   from every instance
local       this instance's                             from the leader only, so they come once
==========  ==========================================  =========================================
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import timedelta

from oplogue.clock import Clock
from oplogue.model import metrics
from oplogue.model.figures import Figures, Histogram
from oplogue.model.metrics import METRICS, Kind, Metric, Reading
from oplogue.model.policies import Monitoring
from oplogue.runtime.bus import Bus
from oplogue.runtime.lag import lag_of
from oplogue.runtime.meter import OPERATIONS, PARTS, RUN_STATUSES, Meter
from oplogue.runtime.overview import Overview, State
from oplogue.runtime.parts import end, keep_running, report
from oplogue.runtime.shared_figures import SharedFigures
from oplogue.store.backlog import COUNTED
from oplogue.store.faults import StoreError
from oplogue.store.instances import Instances, Load
from oplogue.store.totals import Totals

_ORDER = {name: place for place, name in enumerate(METRICS)}


@dataclass(frozen=True, slots=True)
class Here:
    """What only this instance knows."""

    load: Load
    leads: bool
    behind: timedelta | None
    """How far its planning is behind the database; None where it does not plan."""


class Monitor:
    """Shares what this instance counts, and reads every metric."""

    def __init__(
        self,
        *,
        meter: Meter,
        totals: Totals,
        overview: Overview,
        instances: Instances,
        here: Callable[[], Here],
        instance_id: str,
        tasks: Collection[str],
        options: Monitoring,
        bus: Bus,
        clock: Clock,
    ) -> None:
        self._meter = meter
        self._shared = SharedFigures(meter, totals)
        self._overview = overview
        self._instances = instances
        self._here = here
        self._instance_id = instance_id
        self._tasks = frozenset(tasks)
        self._of_all = options.scrape_mode == "cluster"
        self._pushes = options.enabled and self._of_all
        self._interval = options.push_interval.total_seconds()
        self._bus = bus
        self._clock = clock
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to share, where others are to answer for this instance."""
        if self._pushes:
            self._task = keep_running("metrics", self._loop, bus=self._bus, clock=self._clock)

    async def stop(self) -> None:
        """Share what is left."""
        if self._task is not None:
            await end(self._task)
            self._task = None
            await self._totals()

    async def read(self) -> tuple[Reading, ...]:
        """Every metric, as the scrape mode has it."""
        if self._of_all:
            figures, state = await asyncio.gather(self._totals(), self._overview.read())
            tasks = self._tasks.union(state.tasks if state else ())
        else:
            state = await self._overview.read() if self._here().leads else None
            figures, tasks = self._meter.read(), self._tasks
        here = self._here()
        readings = [*_counted(figures, tasks), *self._instance(here, state), *_cluster(here, state)]
        return tuple(sorted(readings, key=lambda reading: _ORDER[reading.metric.name]))

    async def _loop(self) -> None:
        while True:
            await self._clock.sleep(self._interval)
            await self._shared.share()
            await self._instances.note_load(self._instance_id, self._here().load)

    async def _totals(self) -> Figures:
        try:
            return await self._shared.share()
        except StoreError as error:
            report(self._bus, "metrics", error)
            return self._shared.estimate()

    def _instance(self, here: Here, state: State | None) -> Iterator[Reading]:
        """Gauges of this instance, or of all of them together."""
        if not self._of_all:
            loads, leads = [here.load], here.leads
        elif state is not None:
            loads = [load for id_, load in state.loads.items() if id_ != self._instance_id]
            loads, leads = [here.load, *loads], here.leads or state.progress.led
        else:
            return
        yield Reading(metrics.LEADER, (), float(leads))
        yield Reading(metrics.SLOTS, (), sum(load.slots for load in loads))
        yield Reading(metrics.SLOTS_IN_USE, (), sum(load.in_use for load in loads))


def _counted(figures: Figures, tasks: Collection[str]) -> Iterator[Reading]:
    for metric in METRICS.values():
        if metric.kind is Kind.COUNTER:
            values = {
                series[1:]: value for series, value in figures.counters.items() if series[0] == metric.name
            }
            zero: float | Histogram = 0
        elif metric.kind is Kind.HISTOGRAM:
            values = {
                series[1:]: one for series, one in figures.histograms.items() if series[0] == metric.name
            }
            zero = Histogram(metric.bounds)
        else:
            continue
        for labels in sorted({*values, *_known(metric, tasks)}):
            yield Reading(metric, labels, values.get(labels, zero))


def _known(metric: Metric, tasks: Collection[str]) -> Iterator[tuple[str, ...]]:
    """Labels that are there from the start: a rate needs a first value to rise from."""
    match metric.labels:
        case ():
            yield ()
        case ("task_name",):
            yield from ((task,) for task in tasks)
        case ("task_name", "status"):
            yield from ((task, status) for task in tasks for status in RUN_STATUSES)
        case ("operation",):
            yield from ((operation,) for operation in OPERATIONS)
        case ("part",):
            yield from ((part,) for part in PARTS)
        case _:
            return


def _cluster(here: Here, state: State | None) -> Iterator[Reading]:
    """What the database says. Where it says nothing, the metrics are missing rather than old."""
    behind = here.behind
    if behind is None and state is not None:
        behind = lag_of(state.progress)
    if behind is not None:
        yield Reading(metrics.STREAM_LAG, (), behind.total_seconds())
    if state is None:
        return
    for task in sorted(state.tasks):
        for status in COUNTED:
            yield Reading(metrics.QUEUE_DEPTH, (task, status), state.depths.counts.get((task, status), 0))
        waited = state.depths.waited.get(task, timedelta())
        yield Reading(metrics.GLOBAL_LAG, (task,), max(waited.total_seconds(), 0.0))
    if state.reconciled_at is not None:
        yield Reading(metrics.LAST_RECONCILIATION, (), state.reconciled_at.timestamp())
    yield Reading(metrics.UNRECONCILED, (), state.unreconciled)
    for source, one in state.reconciliations.items():
        yield Reading(metrics.RECONCILED_DOCUMENTS, (str(source),), one.documents if one else 0)
        yield Reading(metrics.DOCUMENTS_TO_RECONCILE, (str(source),), one.estimate if one else 0)
    yield Reading(metrics.INSTANCES, (), len(state.loads))
