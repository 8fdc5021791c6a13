"""The planner: one ordered pipeline from the change stream to the task records.

::

    read a batch ──▶ plan it on the server ──▶ acknowledged by a majority ──▶ save the position
         ▲                 │ wake the workers
         └── reads on while a plan is under way

Invariants:

- The position is saved only after everything before it is planned. What could not be planned yet is *held back*:
  the position stays before the first event of it, and the rest goes on.
- No document is in two plan commands at once: what arrives while its plan is under way waits for the next round.
- A batch is whatever is there when the last one is done: a lone event is planned at once, a flood in thousands.

On failure: a statement with a passing failure is sent again; one that ran out of time may have waited for a
handler's open transaction, so documents with a running record are planned apart from then on; one that the
server refuses is halved, over documents and then over tasks, down to the one that it refuses, which is parked
visibly, and the rest goes on. Errors of the stream reopen it; a lost position ends in a fresh start and a
reconciliation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeVar

from oplogue.clock import Clock
from oplogue.model.definition import Namespace
from oplogue.runtime.bus import Bus
from oplogue.runtime.office import Office
from oplogue.runtime.parts import check_cancelled
from oplogue.store.documents import key_of
from oplogue.store.faults import (
    StoreError,
    describe,
    is_about_the_document,
    is_passing,
    is_stalled,
    misses_index,
)
from oplogue.store.planning import FEW, Change, Planning, Recorded
from oplogue.store.plans import PlannedTask, Stamp
from oplogue.store.stream import Batch, Event, Kind, Position

_MOST_IN_HAND = 20_000
_BATCH, _LEAST_BATCH = 2_000, 20
_WORTH_TWO = 200
_PATIENT = timedelta(seconds=1)
_PATIENT_PER_DOCUMENT = timedelta(milliseconds=2)
_REFUSALS = 3
_CAREFUL_FOR = 60.0
_RETRY_HELD = 0.5

Changes = dict[Any, Change]
Sent = TypeVar("Sent")


@dataclass(slots=True)
class InHand:
    """What has been read and not yet planned."""

    changes: dict[Namespace, Changes] = field(default_factory=dict[Namespace, Changes])
    disruptions: list[Event] = field(default_factory=list[Event])
    position: Position | None = None

    def __len__(self) -> int:
        return sum(map(len, self.changes.values()))

    def add(self, source: Namespace, change: Change) -> None:
        """Take in one document's change."""
        known = self.changes.setdefault(source, {})
        key = key_of(change.id)
        if key in known:
            known[key].later(change)
        else:
            known[key] = change


class Planner:
    """Plans what the stream reports, for one term in office."""

    def __init__(
        self,
        *,
        tasks: Sequence[PlannedTask],
        office: Office,
        planning: Planning,
        wake: Callable[[Iterable[str]], None],
        reconcile: Callable[[Sequence[str]], Awaitable[None]],
        deleted: Callable[[Namespace, Iterable[Any]], None],
        mend: Callable[[Namespace, Sequence[str]], Awaitable[None]],
        thorough: bool,
        bound: timedelta,
        bus: Bus,
        clock: Clock,
    ) -> None:
        self._tasks: dict[Namespace, list[PlannedTask]] = {}
        for task in tasks:
            self._tasks.setdefault(task.definition.source, []).append(task)
        self._office = office
        self._planning = planning
        self._wake = wake
        self._reconcile = reconcile
        self._deleted = deleted
        self._mend = mend
        self._thorough = thorough
        self._light: dict[Namespace, bool] = {}
        self._bound = bound
        self._bus = bus
        self._clock = clock
        self._in_hand = InHand()
        self._held = InHand()
        # Collections in whose ranges documents with records were met: the next range will have some too.
        self._met_before: set[Namespace] = set()
        self._held_until = 0.0
        self._careful_until = 0.0
        self._batch_size = _BATCH
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self.was_quiet: bool = True
        """Whether the last step found nothing to plan."""

    # -- reading

    async def take(self, batch: Batch) -> None:
        """Take in an answer of the stream; waits while too much is in hand."""
        for event in batch.events:
            if event.source not in self._tasks and event.kind is not Kind.DATABASE_GONE:
                continue
            if event.kind in (Kind.CHANGED, Kind.INSERTED):
                inserted = event.kind is Kind.INSERTED
                self._in_hand.add(event.source, Change(event.id, event.time, event.time, inserted=inserted))
            elif event.kind is Kind.DELETED:
                self._in_hand.add(
                    event.source, Change(event.id, event.time, event.time, deleted_at=event.time)
                )
            else:
                self._in_hand.disruptions.append(event)
        self._in_hand.position = batch.position
        self._arrived.set()
        if len(self._in_hand) >= _MOST_IN_HAND:
            self._room.clear()
            await self._room.wait()

    # -- planning

    async def step(self, patience: float) -> Position | None:
        """Plan everything in hand; the position up to which all is planned, None where nothing came."""
        if self._held.changes:
            patience = min(patience, max(self._held_until - self._clock.monotonic(), 0))
        await self._clock.wait(self._arrived, patience)
        self._arrived.clear()
        taken, self._in_hand = self._in_hand, InHand()
        self._room.set()
        self._take_back(taken)
        self.was_quiet = not (taken.changes or taken.disruptions)
        for event in taken.disruptions:
            await self._disrupted(event)
        for source, changes in taken.changes.items():
            await self._plan_source(source, changes)
        return self._planned_up_to(taken.position)

    async def plan_range(
        self,
        tasks: list[PlannedTask],
        selection: dict[str, Any],
        ids: Callable[[], Awaitable[list[Any]]],
        now: Any,
    ) -> None:
        """Plan a range of documents for a reconciliation, between batches; in parts where that fails."""
        stamp = await self._again(lambda: self._planning.stamp(tasks, now, self._bound))
        source = tasks[0].definition.source
        stamp = replace(stamp, lightly=await self._plans_lightly(source))
        all_new = source not in self._met_before
        try:
            as_new = await self._send(
                lambda: self._planning.plan_where(tasks, selection, stamp, self._bound, all_new=all_new)
            )
            if not as_new:
                self._met_before.add(source)
        except StoreError as error:
            changes = [Change(id_, now, now, inserted=True) for id_ in await self._again(ids)]
            if is_stalled(error):
                await self._stalled(error, len(changes), self._bound)
                middle = (len(changes) + 1) // 2
                await self._plan_carefully(tasks, changes[:middle], stamp)
                await self._plan_carefully(tasks, changes[middle:], stamp)
            else:
                self._bus.emit("planner.batch_failed", count=len(changes), error=describe(error))
                await self._plan_or_hold(tasks, changes, stamp, self._bound)
        self._wake(task.definition.task for task in tasks)

    async def _plans_lightly(self, source: Namespace) -> bool:
        if source not in self._light:
            # A collection that comes back with another collation is reconciled by another planner.
            to_the_letter = await self._again(
                lambda: self._planning.compares_to_the_letter(source, self._bound)
            )
            self._light[source] = to_the_letter and not self._thorough
        return self._light[source]

    def holds(self, source: Namespace) -> bool:
        """Whether documents of that collection are held back: not planned yet, and tried again."""
        return bool(self._held.changes.get(source))

    async def _disrupted(self, event: Event) -> None:
        """A whole collection went or came; events of its single documents are not to be had."""
        if event.kind is Kind.COLLECTION_CAME:
            names = [task.definition.task for task in self._tasks[event.source]]
            await self._again(lambda: self._reconcile(names))
            return
        for source, tasks in self._tasks.items():
            gone = (
                source == event.source
                if event.source.collection
                else source.database == event.source.database
            )
            if gone and event.kind in (Kind.COLLECTION_GONE, Kind.DATABASE_GONE):
                await self._mark_gone(source, tasks, event)

    async def _mark_gone(self, source: Namespace, tasks: list[PlannedTask], event: Event) -> None:
        names = [task.definition.task for task in tasks]
        stamp = await self._again(lambda: self._planning.stamp(tasks, event.time, self._bound))
        await self._again(lambda: self._planning.mark_gone(source, names, event.time, stamp, self._bound))
        self._bus.emit("planner.source_gone", source=str(source))

    def _take_back(self, taken: InHand) -> None:
        """Held documents come along when their time has come, or when more happened to them."""
        due = self._held_until <= self._clock.monotonic()
        held, self._held = self._held, InHand()
        for source, changes in held.changes.items():
            for key, change in changes.items():
                if due or key in taken.changes.get(source, {}):
                    taken.add(source, change)
                else:
                    self._held.add(source, change)

    def _planned_up_to(self, position: Position | None) -> Position | None:
        first = min((c.time for held in self._held.changes.values() for c in held.values()), default=None)
        if first is not None:
            return Position(first) if position is not None else None
        return position

    async def _plan_source(self, source: Namespace, changes: Changes) -> None:
        everything = list(changes.values())
        while everything:
            self._office.check()
            batch, everything = everything[: self._batch_size], everything[self._batch_size :]
            # Twice as large after each, up to the largest; a batch that runs out of time makes the next ones smaller.
            self._batch_size = min(2 * self._batch_size, _BATCH)
            await self._plan_batch(source, batch)
            self._office.beat()

    async def _plan_batch(self, source: Namespace, batch: list[Change]) -> None:
        tasks = self._tasks[source]
        names = [task.definition.task for task in tasks]
        stamp = await self._again(
            lambda: self._planning.stamp(tasks, max(change.last for change in batch), self._bound)
        )
        deleted = [change for change in batch if change.deleted_at is not None]
        if deleted and not await self._marked_deleted(source, names, deleted, stamp):
            batch = [change for change in batch if change.deleted_at is None]
        if batch:
            await self._plan_changes(tasks, batch, stamp)
        self._bus.emit("planner.planned", count=len(batch))

    async def _marked_deleted(
        self, source: Namespace, names: list[str], deleted: list[Change], stamp: Stamp
    ) -> bool:
        """Mark their records before the batch is planned; False where that stalled, and they are held back."""
        try:
            await self._again(
                lambda: self._planning.mark_deleted(source, names, deleted, stamp, _PATIENT), but=is_stalled
            )
        except StoreError as error:
            if not is_stalled(error):
                raise
            await self._stalled(error, len(deleted), _PATIENT)
            self._hold(source, deleted)
            return False
        self._deleted(source, [change.id for change in deleted])
        return True

    def _hold(self, source: Namespace, changes: Iterable[Change]) -> None:
        """Try these again later; the position stays before them."""
        for change in changes:
            self._held.add(source, change)
        self._held_until = self._clock.monotonic() + _RETRY_HELD

    async def _plan_changes(self, tasks: list[PlannedTask], batch: list[Change], stamp: Stamp) -> None:
        if self._careful_until > self._clock.monotonic():
            await self._plan_carefully(tasks, batch, stamp)
            return
        patience = self._patience(len(batch))
        try:
            await self._plan_group(tasks, batch, stamp, patience)
        except StoreError as error:
            if not is_stalled(error):
                raise
            await self._stalled(error, len(batch), patience)
            await self._plan_carefully(tasks, batch, stamp)

    def _patience(self, count: int) -> timedelta:
        """How long a statement over so many documents may take before somebody's transaction is suspected."""
        return min(max(_PATIENT, count * _PATIENT_PER_DOCUMENT), self._bound)

    async def _stalled(self, error: StoreError, count: int, waited: timedelta) -> None:
        self._bus.emit("planner.batch_failed", count=count, error=describe(error))
        self._careful_until = self._clock.monotonic() + _CAREFUL_FOR
        self._batch_size = max(min(self._batch_size, count) // 4, _LEAST_BATCH)
        # The statement may still be at work on the server, for as long as it was allowed to: an older read of
        # these documents must not land after the next.
        await self._clock.sleep(waited.total_seconds() / 4)

    async def _plan_carefully(self, tasks: list[PlannedTask], batch: list[Change], stamp: Stamp) -> None:
        """Documents with a running record apart from the others: a handler's transaction may hold it for long."""
        source = tasks[0].definition.source
        names, ids = [task.definition.task for task in tasks], [change.id for change in batch]
        if not batch:
            return
        # Unless this batch stalls too, the next one is planned as usual.
        self._careful_until = 0.0
        running = await self._again(lambda: self._planning.running_among(source, names, ids, self._bound))
        free = [change for change in batch if key_of(change.id) not in running]
        if free:
            await self._plan_or_hold(tasks, free, stamp, self._bound)
        for change in batch:
            if key_of(change.id) in running:
                await self._plan_or_hold(tasks, [change], stamp, _PATIENT / 4)

    async def _plan_or_hold(
        self, tasks: list[PlannedTask], group: list[Change], stamp: Stamp, bound: timedelta
    ) -> None:
        try:
            await self._plan_group(tasks, group, stamp, bound)
        except StoreError as error:
            if not is_stalled(error):
                raise
            await self._stalled(error, len(group), bound)
            self._office.beat()
            if len(group) > 1:
                # Too much for one statement, or one of them is held: the others need not wait for it.
                middle = len(group) // 2
                await self._plan_or_hold(tasks, group[:middle], stamp, bound)
                await self._plan_or_hold(tasks, group[middle:], stamp, bound)
                return
            self._hold(tasks[0].definition.source, group)
        else:
            # Many parts, each of which may take its time: a leader at work must stay in office.
            self._office.beat()

    async def _plan_group(
        self, tasks: list[PlannedTask], group: list[Change], stamp: Stamp, bound: timedelta
    ) -> None:
        """Plan documents for tasks; what the server refuses is halved until it is one of each, and parked."""
        try:
            await self._plan_statements(tasks, group, stamp, bound)
        except StoreError as error:
            if is_passing(error):
                raise
            if misses_index(error):
                await self._mend(tasks[0].definition.source, [task.definition.task for task in tasks])
                self._hold(tasks[0].definition.source, group)
                return
            await self._halve(tasks, group, stamp, bound, error)

    async def _plan_statements(
        self, tasks: list[PlannedTask], group: list[Change], stamp: Stamp, bound: timedelta
    ) -> None:
        """New records by one cheap statement, others by one that decides; then who has left."""
        names = [task.definition.task for task in tasks]
        new = [change.id for change in group if change.inserted]
        others = [change.id for change in group if not change.inserted]
        recorded: Recorded | None = None
        if len(others) > FEW:
            recorded = await self._send(lambda: self._planning.recorded(tasks, others, stamp, bound))
            known = {key_of(id_) for ids in recorded.values() for id_ in ids}
            new += [id_ for id_ in others if key_of(id_) not in known]
            others = [id_ for id_ in others if key_of(id_) in known]
        if new:
            await self._send(lambda: self._planning.plan(tasks, new, stamp, bound, all_new=True))
            await self._wake_first(names)
        if others:
            await self._plan_side_by_side(tasks, others, stamp, bound)
            await self._wake_first(names)
            if recorded is None:
                recorded = await self._send(lambda: self._planning.recorded(tasks, others, stamp, bound))
            await self._send(lambda: self._planning.mark_left(tasks, recorded, stamp, bound))

    async def _plan_side_by_side(
        self, tasks: list[PlannedTask], ids: list[Any], stamp: Stamp, bound: timedelta
    ) -> None:
        """Many in two statements at once, of different documents: the server decides for each record, one by one.

        Whatever becomes of one, both have ended when this returns.
        """
        middle = len(ids) // 2 if len(ids) >= _WORTH_TWO else 0
        sent = [
            self._send(
                lambda half=half, beside=beside: self._planning.plan(tasks, half, stamp, bound, beside=beside)
            )
            for half, beside in ((ids[:middle], True), (ids[middle:], False))
            if half
        ]
        ends = await asyncio.gather(*sent, return_exceptions=True)
        errors = [end for end in ends if end is not None]
        # A statement that stalled may still be at work: it is waited out before anything is sent again.
        for error in sorted(errors, key=is_stalled, reverse=True):
            raise error

    async def _wake_first(self, names: Iterable[str]) -> None:
        """The workers' look goes out before anything else is done here."""
        self._wake(names)
        await self._clock.sleep(0)

    async def _send(self, statement: Callable[[], Awaitable[Sent]]) -> Sent:
        """Send it until it goes through; one that stalls is not sent again here."""
        return await self._again(statement, but=is_stalled)

    async def _halve(
        self,
        tasks: list[PlannedTask],
        group: list[Change],
        stamp: Stamp,
        bound: timedelta,
        error: StoreError,
    ) -> None:
        self._office.check()
        if len(group) > 1:
            middle = len(group) // 2
            await self._plan_group(tasks, group[:middle], stamp, bound)
            await self._plan_group(tasks, group[middle:], stamp, bound)
        elif len(tasks) > 1:
            middle = len(tasks) // 2
            await self._plan_group(tasks[:middle], group, stamp, bound)
            await self._plan_group(tasks[middle:], group, stamp, bound)
        elif is_about_the_document(error) or group[0].refusals >= _REFUSALS:
            await self._park(tasks[0], group[0], stamp, error)
        else:
            # Perhaps it is the server's fault, and passes.
            group[0].refusals += 1
            self._hold(tasks[0].definition.source, group)

    async def _park(self, task: PlannedTask, change: Change, stamp: Stamp, error: StoreError) -> None:
        said = describe(error)
        await self._again(lambda: self._planning.park(task, change.id, said, stamp, self._bound))
        name, source = task.definition.task, str(task.definition.source)
        self._bus.emit("planner.parked", source=source, doc_id=change.id, task=name, error=said)

    async def _again(
        self, send: Callable[[], Awaitable[Sent]], but: Callable[[BaseException], bool] | None = None
    ) -> Sent:
        """Send a statement until it goes through, while its failures pass and this instance is in office."""
        pause = 0.02
        while True:
            try:
                return await send()
            except StoreError as error:
                check_cancelled()
                if not is_passing(error) or (but is not None and but(error)):
                    raise
                self._bus.emit("planner.batch_failed", count=0, error=describe(error))
            self._office.check()
            await self._clock.sleep(pause * (0.5 + self._clock.random()))
            pause = min(2 * pause, 1.0)
