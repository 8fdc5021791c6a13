"""A look at the whole cluster, for operators: from the database alone, and cheap enough to be repeated.

Small documents of the globals collection, and what the metrics count by: no completed record is looked at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from oplogue.model.definition import Namespace
from oplogue.model.situation import InstanceState, LeaderState, Situation, TaskState
from oplogue.model.states import Status
from oplogue.runtime.lag import lag_of
from oplogue.store import Client
from oplogue.store.backlog import Backlog, Depths
from oplogue.store.cleanup import Cleanup
from oplogue.store.controls import Control, Controls
from oplogue.store.definitions import Definitions, StoredTask
from oplogue.store.documents import server_time
from oplogue.store.instances import Instances, LiveInstance
from oplogue.store.leadership import Leadership
from oplogue.store.scans import Scans


class Lookout:
    """Sees one cluster: that of one globals collection."""

    def __init__(self, client: Client, globals_: Namespace, *, bound: timedelta) -> None:
        self._client = client
        self._database = globals_.database
        self._bound = bound
        self._definitions = Definitions(client, globals_, bound=bound)
        self._controls = Controls(client, globals_, bound=bound)
        self._instances = Instances(client, globals_, bound=bound)
        self._leadership = Leadership(client, globals_, bound=bound)
        self._cleanup = Cleanup(client, globals_, bound=bound)
        self._scans = Scans(client, globals_, bound=bound)
        self._backlog = Backlog(client, "primary", bound=bound)

    async def look(self) -> Situation:
        """How it stands now."""
        stored, live, controls = await asyncio.gather(
            self._definitions.all(), self._instances.live(), self._controls.all()
        )
        names = ((task.planned.definition.source, task.name) for task in stored)
        reconciliations = await self._scans.progress(stored)
        depths, leader, progress, cleaned_up_at, now = await asyncio.gather(
            self._backlog.all_depths(names),
            self._leadership.leader(),
            self._leadership.progress(),
            self._cleanup.last(),
            server_time(self._client, bound=self._bound),
        )
        return Situation(
            at=now,
            database=self._database,
            leader=None if leader is None else LeaderState(leader.id, leader.term, leader.since),
            lag=lag_of(progress),
            instances=tuple(
                _instance(one, stored, leads=leader is not None and leader.id == one.id)
                for one in sorted(live, key=lambda one: one.id)
            ),
            tasks=tuple(
                self._task(task, depths, controls.get(task.name, Control()), live, now)
                for task in sorted(stored, key=lambda task: task.name)
            ),
            reconciliations=tuple(reconciliations),
            cleaned_up_at=cleaned_up_at,
        )

    def _task(
        self,
        stored: StoredTask,
        depths: Depths,
        control: Control,
        live: Iterable[LiveInstance],
        now: datetime,
    ) -> TaskState:
        def count(status: Status) -> int:
            return depths.counts.get((stored.name, status), 0)

        return TaskState(
            task=stored.name,
            collection=stored.planned.definition.source.within(self._database),
            pending=count(Status.PENDING),
            processing=count(Status.PROCESSING),
            processing_dirty=count(Status.PROCESSING_DIRTY),
            failed=count(Status.FAILED),
            waited=depths.waited.get(stored.name),
            paused_until=_coming(control.paused_until, now),
            throttled_until=_coming(control.throttled_until, now),
            gate=control.version,
            instances=sum(stored.name in one.carries for one in live),
            reconciled=stored.reconciled,
            reconciled_at=stored.reconciled_at,
        )


def _instance(live: LiveInstance, stored: Sequence[StoredTask], *, leads: bool) -> InstanceState:
    in_force = {task.name: task.revision for task in stored}
    return InstanceState(
        id=live.id,
        leads=leads,
        started_at=live.started_at,
        slots=live.load.slots,
        in_use=live.load.in_use,
        versions={name: carried.version for name, carried in sorted(live.carries.items())},
        outdated=tuple(
            name for name, carried in sorted(live.carries.items()) if in_force.get(name) != carried.revision
        ),
    )


def _coming(moment: datetime | None, now: datetime) -> datetime | None:
    return moment if moment is not None and moment > now else None
