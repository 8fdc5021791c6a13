"""Is anything left to do? What an instance waits for that ends by itself (``oplogue worker --burst``).

Quiet: every write is planned, nothing waits for a reconciliation, and of the tasks that this instance may run, no
record runs (on any instance), is due, or soon will be. Soon is a debounce, so that what was written just before is
run, but not a retry's longer wait. Tasks that are paused, throttled, or left to newer code don't count.

The questions are asked one after the other while things go on: a record could be pending when the running ones are
counted, and run when the pending ones are. So it is only believed when nothing was claimed here in between; and it
is asked once more after the stream has been planned up to the time of the first answer, for what ran may have
written something.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta

from oplogue.clock import Clock
from oplogue.model.definition import Namespace, TaskDefinition
from oplogue.model.states import RUNNING
from oplogue.runtime.bus import Bus
from oplogue.runtime.parts import check_cancelled, report
from oplogue.store import Client, ClusterTime
from oplogue.store.backlog import Backlog
from oplogue.store.controls import Control
from oplogue.store.definitions import Definitions
from oplogue.store.faults import StoreError
from oplogue.store.stream import operation_time
from oplogue.store.tasks import TaskRecords

_LONGEST_DEBOUNCE = timedelta(minutes=1)
_LOOK = 0.1
_LOOK_AGAIN = 0.05


class Quiet:
    """Waits until nothing is left to do for one instance."""

    def __init__(
        self,
        *,
        client: Client,
        definitions: Definitions,
        backlog: Backlog,
        records: Mapping[Namespace, TaskRecords],
        own: Sequence[TaskDefinition],
        may_run: Callable[[], set[str]],
        claims: Callable[[], int],
        planned_to: Callable[[], Awaitable[ClusterTime | None]],
        bound: timedelta,
        bus: Bus,
        clock: Clock,
    ) -> None:
        self._client = client
        self._definitions = definitions
        self._backlog = backlog
        self._records = records
        self._own = list(own)
        self._may_run = may_run
        self._claims = claims
        self._planned_to = planned_to
        self._bound = bound
        self._bus = bus
        self._clock = clock

    async def reached(self) -> None:
        """Wait until it is quiet. While the database is out of reach nobody can tell: it is asked again."""
        while True:
            try:
                if not self._own or await self._is_quiet():
                    return
            except StoreError as error:
                check_cancelled()
                report(self._bus, "quiet", error)
            await self._clock.sleep(_LOOK)

    async def _is_quiet(self) -> bool:
        claims = self._claims()
        if not await self._is_idle():
            return False
        now = await operation_time(self._client, bound=self._bound)
        while (planned := await self._planned_to()) is None or planned < now:
            if self._claims() != claims:
                return False  # whatever is claimed may write something: later than this
            await self._clock.sleep(_LOOK_AGAIN)
        return await self._is_idle() and self._claims() == claims

    async def _is_idle(self) -> bool:
        names = {definition.task for definition in self._own}
        if any(not task.reconciled for task in await self._definitions.all() if task.name in names):
            return False
        may_run = self._may_run()
        own = [definition for definition in self._own if definition.task in may_run]
        depths = await self._backlog.all_depths((one.source, one.task) for one in own)
        if any(depths.counts.get((one.task, status)) for one in own for status in RUNNING):
            return False
        for source, records in self._records.items():
            theirs = [one for one in own if one.source == source]
            if theirs and await self._is_something_due(records, theirs):
                return False
        return True

    async def _is_something_due(self, records: TaskRecords, tasks: Sequence[TaskDefinition]) -> bool:
        look = await records.look([task.task for task in tasks], {})
        if look.now is None:
            return False
        for task in tasks:
            at, control = look.next_at.get(task.task), look.controls.get(task.task, Control())
            soon = look.now + min(task.debounce, _LONGEST_DEBOUNCE)
            if at is not None and at <= soon and control.allows(task.evolution.handler_version, look.now):
                return True
        return False
