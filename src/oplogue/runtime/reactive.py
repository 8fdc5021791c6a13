"""Reactive tasks as a source of work: the records beside one source collection, and the handlers for them."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

from oplogue.clock import Clock
from oplogue.model import states
from oplogue.model.definition import Namespace, Task, TaskDefinition
from oplogue.model.outcomes import Moved, Outcome, Raised, Skipped, decide
from oplogue.model.record import ClaimedRecord
from oplogue.model.states import Reason, Transition
from oplogue.runtime.bus import Bus
from oplogue.runtime.context import BlockingContext, Context, Moment, Run, Scope
from oplogue.runtime.fetches import Fetches
from oplogue.runtime.meter import Meter
from oplogue.runtime.settings import Settings
from oplogue.runtime.work import Ended, Kind
from oplogue.store import Session
from oplogue.store.documents import Seen, SourceDocuments, key_of
from oplogue.store.faults import StoreError, describe, is_refusal
from oplogue.store.tasks import Look, Suspect, TaskRecords, Wanted

_SHORT = timedelta(milliseconds=250)
_GROUPS = (32, 4, 1)
"""How many suspects are claimed together, by how often they lost their lease."""


@dataclass(frozen=True, slots=True)
class Controls:
    """What a run may ask of the engine."""

    stop_renewal: Callable[[Run], None]
    throttle: Callable[[str, Moment, Scope], None]


class ReactiveSource:
    """The tasks of one collection that this instance runs."""

    def __init__(
        self,
        *,
        tasks: Sequence[Task],
        hashes: Mapping[str, str],
        records: TaskRecords,
        documents: SourceDocuments,
        settings: Settings,
        controls: Controls,
        threads: Executor,
        meter: Meter,
        bus: Bus,
        clock: Clock,
    ) -> None:
        self.namespace: Namespace = tasks[0].definition.source
        self.kinds: tuple[Kind, ...] = tuple(
            Kind(
                task.name,
                task.definition.priority,
                task.definition.concurrency,
                task.definition.evolution.handler_version,
            )
            for task in tasks
        )
        self._tasks = {task.name: task for task in tasks}
        self._hashes = dict(hashes)
        self._records = records
        self._documents = documents
        self._fetches = Fetches(documents)
        self._settings = settings
        self._controls = controls
        self._threads = threads
        self._meter = meter
        self._bus = bus
        self._clock = clock

    # -- claiming

    async def look(self, names: Sequence[str], wanted: Mapping[str, Wanted]) -> Look:
        """The agenda, and the first due records."""
        return await self._records.look(names, wanted)

    async def claim(self, ids: Sequence[Any]) -> list[Run]:
        """Take those that are still due."""
        claimed = await self._records.claim(ids, owner=self._settings.instance_id, lease=self._settings.lease)
        return [self._new_run(record) for record in claimed]

    async def reclaim(self, rooms: Mapping[str, int], limit: int, *, held: Set[Any]) -> list[Run]:
        """Take a group of suspects, or fail those for good that lost their lease alone at their last attempt."""
        # Where the event loop was blocked, our own are renewed in a moment.
        suspects = [suspect for suspect in await self._suspects(list(rooms)) if suspect.id not in held]
        dead = [suspect for suspect in suspects if self._is_dead(suspect)]
        await self._bury(dead)
        alive = [suspect for suspect in suspects if suspect not in dead]
        if not alive:
            return []
        least = min(suspect.lost for suspect in alive)
        size = min(limit, _GROUPS[min(least, len(_GROUPS) - 1)])
        group = _with_room([suspect for suspect in alive if suspect.lost == least], rooms)[:size]
        return [self._new_run(record) for record in await self._claim_suspects(group)]

    async def _suspects(self, names: Sequence[str]) -> list[Suspect]:
        """The oldest, but of tasks that are paused, throttled or left to newer code."""
        found = await self._records.suspects(names, _GROUPS[0])
        if found:
            versions = {kind.name: kind.version for kind in self.kinds}
            held_back = await self._records.held_back(versions)
            if held_back & {suspect.task for suspect in found}:
                free = [name for name in names if name not in held_back]
                return await self._records.suspects(free, _GROUPS[0])
        return found

    async def _claim_suspects(self, group: list[Any]) -> list[ClaimedRecord]:
        """A killed handler's open transaction may hold one of them for a minute: then the others one by one."""
        owner, lease = self._settings.instance_id, self._settings.lease
        claimed = await self._records.claim(group, owner=owner, lease=lease, suspects=True)
        if len(group) > 1:
            for id_ in set(group) - {record.id for record in claimed}:
                claimed += await self._records.claim(
                    [id_], owner=owner, lease=lease, suspects=True, patience=_SHORT
                )
        return claimed

    def _is_dead(self, suspect: Suspect) -> bool:
        most = self._tasks[suspect.task].definition.retry_policy.max_attempts
        return suspect.alone and most != -1 and suspect.attempts >= most

    async def _bury(self, dead: Sequence[Suspect]) -> None:
        by_task: dict[str, list[Any]] = defaultdict(list)
        for suspect in dead:
            by_task[suspect.task].append(suspect.id)
        for name, ids in by_task.items():
            limit = self._tasks[name].definition.execution_history_limit
            error = "LeaseLost: the process died or was cut off each time this ran"
            count = await self._records.fail_suspects(ids, error, limit)
            if count:
                self._bus.emit("task.dead_letter", task=name, count=count)

    def _new_run(self, record: ClaimedRecord) -> Run:
        return Run(
            record=record,
            definition=self._tasks[record.task].definition,
            instance_id=self._settings.instance_id,
            store=self,
            elapsed_ms=_zero,
            stop_renewal=self._controls.stop_renewal,
            throttle=self._controls.throttle,
        )

    # -- verifying

    async def prepare(self, runs: Sequence[Run]) -> list[Ended]:
        """One query per task for all its records that must be verified, or whose handler takes the document."""
        groups: dict[str, list[Run]] = defaultdict(list)
        for run in runs:
            name = run.record.task
            if self._tasks[name].handler.wants_document or run.record.planned_under != self._hashes[name]:
                groups[name].append(run)
        needless: list[Ended] = []
        for name, group in groups.items():
            needless += await self._verify(self._tasks[name], group)
        return needless

    async def _verify(self, task: Task, group: list[Run]) -> list[Ended]:
        """What the server refuses for one document (an expression that fails on it) is halved down to that."""
        try:
            seen = await self._documents.look(
                task.definition,
                [run.record.doc_id for run in group],
                with_document=task.handler.wants_document,
            )
        except StoreError as error:
            if not is_refusal(error):
                raise
            if len(group) == 1:
                return [Ended(group[0], Raised(0, describe(error)))]
            middle = len(group) // 2
            return await self._verify(task, group[:middle]) + await self._verify(task, group[middle:])
        outcomes = ((run, _verified(run, seen.get(key_of(run.record.doc_id)))) for run in group)
        return [Ended(run, outcome) for run, outcome in outcomes if outcome is not None]

    # -- running

    async def execute(self, run: Run) -> Outcome | None:
        """Run the handler inside the middleware; the outcome is what the run came to, whatever was raised."""
        record, timer = run.record, None
        run.started, run.elapsed_ms = True, _stopwatch(self._clock)
        self._bus.emit("task.started", task=record.task, doc_id=record.doc_id, attempt=record.attempts)
        if run.definition.timeout is not None:
            timer = self._time_out(run, run.definition.timeout.total_seconds())
        error: BaseException | None = None
        try:
            await self._call(self._tasks[record.task], run)
        except asyncio.CancelledError as cancelled:
            if run.cut_short:
                raise
            error = cancelled
        except (Exception, SystemExit, GeneratorExit) as raised:  # noqa: BLE001 - a failed attempt, whatever it is
            error = raised
        finally:
            if timer is not None:
                timer.cancel()
        run.raised = error
        outcome = run.ended(error)
        if outcome is None:
            self._report(run, self._completion(run))
        return outcome

    async def _call(self, task: Task, run: Run) -> None:
        handler = task.handler
        loop = asyncio.get_running_loop()
        # Middleware is asynchronous whatever the handler is: a blocking call would stop the loop for good.
        outer = Context(run)
        context = outer if handler.is_async else BlockingContext(run, loop)

        async def call() -> None:
            # Inside the middleware, which sees what a document that does not convert raises.
            document = handler.convert(run.document) if handler.wants_document else None
            arguments = handler.arguments(document, context)
            if handler.is_async:
                await handler.function(*arguments)
                return
            copied = contextvars.copy_context()
            answer = await loop.run_in_executor(
                self._threads, partial(copied.run, handler.function, *arguments)
            )
            if inspect.isawaitable(answer):  # a plain function that wraps a coroutine
                await answer

        await _wrapped(call, outer, self._settings.middleware)()

    def _time_out(self, run: Run, seconds: float) -> asyncio.TimerHandle:
        task = asyncio.current_task()
        run.deadline = self._clock.monotonic() + seconds

        def expire() -> None:
            run.timed_out = True
            run.cancelled.set()
            if task is not None:
                task.cancel()

        return asyncio.get_running_loop().call_later(seconds, expire)

    # -- settling

    async def settle(self, ended: Sequence[Ended]) -> None:
        """Write outcomes in groups by claim; those whose completion hangs on a transaction one by one."""
        now = self._clock.now()
        groups: dict[Any, dict[Any, Transition]] = defaultdict(dict)
        grouped: list[tuple[Run, Transition]] = []
        for one in ended:
            record = one.run.record
            transition = decide(one.outcome, record, one.run.definition, now)
            if transition.error is not None and one.run.trace is not None:
                transition = replace(transition, trace=one.run.trace)
            if one.run.completed == "in a transaction":
                await self._settle_transaction(one.run, transition)
                continue
            groups[record.token][record.id] = transition
            grouped.append((one.run, transition))
        if not groups:
            return
        lost = await self._records.settle_all(groups)
        for run, transition in grouped:
            is_lost = bool(lost) and run.record.id in lost.get(run.record.token, ())
            self._report(run, None if is_lost else transition)

    async def _settle_transaction(self, run: Run, transition: Transition) -> None:
        """Its completion may have been committed: then the fence matches nothing, and the record has our token."""
        record = run.record
        applied = await self._records.settle_one(record.token, record.id, transition)
        if applied == "settled before":
            transition = self._completion(run)
        self._report(run, None if applied == "lost" else transition)

    def _report(self, run: Run, transition: Transition | None) -> None:
        emit, task, doc_id, attempt = self._bus.emit, run.record.task, run.record.doc_id, run.record.attempts
        if transition is None:
            emit("task.lease_lost", task=task, doc_id=doc_id, attempt=attempt)
            return
        self._meter.run_ended(task, transition)
        took, error, raised = transition.duration_ms, transition.error, run.raised
        match transition.reason:
            case Reason.COMPLETED:
                emit("task.completed", task=task, doc_id=doc_id, attempt=attempt, duration_ms=took)
            case Reason.SKIPPED | Reason.MOVED:
                emit("task.skipped", task=task, doc_id=doc_id, attempt=attempt, duration_ms=took)
            case Reason.RETRIED:
                emit(
                    "task.retried",
                    task=task,
                    doc_id=doc_id,
                    attempt=attempt,
                    duration_ms=took,
                    error=error,
                    exception=raised,
                    seconds=self._seconds_until(transition),
                )
            case Reason.FAILED:
                emit(
                    "task.failed",
                    task=task,
                    doc_id=doc_id,
                    attempt=attempt,
                    duration_ms=took,
                    error=error,
                    exception=raised,
                )
            case Reason.DEFERRED:
                seconds = self._seconds_until(transition)
                emit("task.deferred", task=task, doc_id=doc_id, attempt=attempt, seconds=seconds)
            case Reason.RELEASED if run.started:
                emit("task.released", task=task, doc_id=doc_id, attempt=attempt)
            case Reason.RELEASED:
                pass  # claimed, and given back: nothing has happened to it

    def _seconds_until(self, transition: Transition) -> float:
        if transition.run_at is not None:
            return max((transition.run_at - self._clock.now()).total_seconds(), 0.0)
        return (transition.run_in or timedelta()).total_seconds()

    # -- what a run asks of the database

    async def fetch(
        self, run: Run, session: Session | None, options: dict[str, Any]
    ) -> dict[str, Any] | None:
        """The document, if it meets the run's condition; with those that other handlers ask for meanwhile."""
        record = run.record
        if session is None and not options:
            answer = await self._fetches.ask(run.definition, record)
            if answer != "alone":
                return answer
        return await self._documents.fetch(
            run.definition, record.doc_id, record.values, session=session, **options
        )

    async def watched_now(self, run: Run) -> dict[str, Any] | None:
        """The document's watched values now; None where it is gone or outside the filter."""
        seen = await self._documents.look(run.definition, [run.record.doc_id], with_document=False)
        found = seen.get(key_of(run.record.doc_id))
        return None if found is None else found.values

    async def complete(self, run: Run, session: Session | None) -> bool:
        """Write the completion; whether the record was still owned."""
        record = run.record
        return await self._records.complete(record.token, record.id, self._completion(run), session)

    def _completion(self, run: Run) -> Transition:
        definition: TaskDefinition = run.definition
        return states.completed(
            duration_ms=run.elapsed_ms(),
            debounce=definition.debounce,
            history_limit=definition.execution_history_limit,
        )


def _with_room(suspects: Sequence[Suspect], rooms: Mapping[str, int]) -> list[Any]:
    left = Counter(rooms)
    ids: list[Any] = []
    for suspect in suspects:
        if left[suspect.task] > 0:
            left[suspect.task] -= 1
            ids.append(suspect.id)
    return ids


def _verified(run: Run, seen: Seen | None) -> Outcome | None:
    if seen is None:
        return Skipped(0)
    if not seen.holds(run.record.values):
        return Moved(0, seen.values)
    run.document = seen.document
    return None


def _wrapped(
    call: Callable[[], Awaitable[None]], context: Context, middleware: Sequence[Any]
) -> Callable[[], Awaitable[None]]:
    for layer in reversed(middleware):
        call = partial(layer, context, call)
    return call


def _zero() -> int:
    return 0


def _stopwatch(clock: Clock) -> Callable[[], int]:
    started = clock.monotonic()
    return lambda: int((clock.monotonic() - started) * 1000)
