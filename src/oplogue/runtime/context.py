"""What a handler gets: its record, its document, and the controls of its own run.

A `Run` is the engine's side of one execution, a `Context` the handler's side of the same. What the handler asked
for (a deferral, a completion) belongs to the run and is looked at when the handler has ended.
"""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, Protocol

from oplogue.errors import ConfigurationError, LeaseLostError, TaskConditionFailedError
from oplogue.model.definition import TaskDefinition
from oplogue.model.durations import DurationLike, parse_duration
from oplogue.model.outcomes import Deferred, Moved, Outcome, Raised, Skipped, Succeeded
from oplogue.model.record import ClaimedRecord

if TYPE_CHECKING:
    from oplogue.store import Session

Moment = timedelta | datetime
Scope = Literal["instance", "cluster"]
NOT_COMMITTED = "mark_completed(session=...) was called, but its transaction was not committed"


class RunStore(Protocol):
    """What a run needs of the database."""

    async def fetch(
        self, run: Run, session: Session | None, options: dict[str, Any]
    ) -> dict[str, Any] | None:
        """The document, if it meets the run's condition."""
        ...

    async def watched_now(self, run: Run) -> dict[str, Any] | None:
        """The document's watched values now; None where it is gone or outside the filter."""
        ...

    async def complete(self, run: Run, session: Session | None) -> bool:
        """Write the run's completion; whether the record was still owned."""
        ...


@dataclass(slots=True, eq=False)
class Run:
    """One execution of a claimed record."""

    record: ClaimedRecord
    definition: TaskDefinition
    instance_id: str
    store: RunStore
    elapsed_ms: Callable[[], int]
    stop_renewal: Callable[[Run], None]
    throttle: Callable[[str, Moment, Scope], None]
    document: Any = None
    shown: dict[str, Any] | None = None
    """The watched values as the handler has them."""
    claimed_at: float = 0.0
    deadline: float | None = None
    """When its task's timeout passes, once it runs: renewal ends then."""
    started: bool = False
    """Whether its handler was called."""
    lost: bool = False
    timed_out: bool = False
    deferral: Moment | None = None
    condition: Moved | Skipped | None = None
    raised: BaseException | None = None
    """What the handler raised, for those who want to see where."""
    completed: Literal["no", "in a transaction", "yes"] = "no"
    trace: str | None = None
    """Where this run is found in a tracing system."""
    on_document: Callable[[Any], None] | None = None
    """Told of the document when the handler has read it."""
    _cancelled: asyncio.Event | None = None

    @property
    def cancelled(self) -> asyncio.Event:
        """Set when the run should end; made for those who ask, which few handlers do."""
        if self._cancelled is None:
            self._cancelled = asyncio.Event()
        return self._cancelled

    @property
    def cut_short(self) -> bool:
        """Whether it was cancelled because the instance stops, or its lease is lost: it comes to nothing."""
        return self.cancelled.is_set() and not self.timed_out and self.completed != "yes"

    def ended(self, error: BaseException | None) -> Outcome | None:
        """What the run came to; None where its completion is durable already."""
        if self.completed == "yes":
            return None
        took = self.elapsed_ms()
        if self.timed_out:
            return Raised(took, f"TimeoutError: still running after {self.definition.timeout}")
        if self.completed == "in a transaction":
            return Raised(took, NOT_COMMITTED if error is None else describe_error(error))
        if self.condition is not None:
            return self.condition
        if isinstance(error, TaskConditionFailedError):
            return Skipped(took, outside=False)
        if error is not None:
            return Raised(took, describe_error(error))
        return Succeeded(took) if self.deferral is None else Deferred(self.deferral)


class Context:
    """The handler's view of its own run.

    In an ``async def`` handler ``get_document`` and ``mark_completed`` are awaited; a plain ``def`` handler, which
    runs in a thread, calls the same names without ``await``.
    """

    __slots__ = ("_run",)

    def __init__(self, run: Run) -> None:
        self._run = run

    @property
    def task(self) -> str:
        """The task's name."""
        return self._run.definition.task

    @property
    def doc_id(self) -> Any:
        """The ``_id`` of the source document."""
        return self._run.record.doc_id

    @property
    def watched_values(self) -> dict[str, Any]:
        """The watched values that this run was planned for; the handler's own copy of them."""
        run = self._run
        if run.shown is None:
            # What the document is verified against must not change with what a handler does to its values.
            run.shown = copy.deepcopy(run.record.values)
        return run.shown

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1. A deferral does not count."""
        return self._run.record.attempts

    @property
    def instance_id(self) -> str:
        """The instance that runs this."""
        return self._run.instance_id

    @property
    def cancelled(self) -> asyncio.Event:
        """Set when the lease is lost, the timeout passes, or shutdown gives up waiting."""
        return self._run.cancelled

    async def get_document(
        self, *, projection: Any = None, session: Session | None = None, **find_options: Any
    ) -> dict[str, Any]:
        """The source document, if it still exists, matches the filter and has the watched values of this run.

        Otherwise TaskConditionFailedError: the run is skipped, and planned anew where the values moved on.
        """
        return await _get_document(self._run, projection, session, find_options)

    def defer_current(self, until: DurationLike | datetime) -> None:
        """Run this document's task later instead; no attempt is counted. The last call wins."""
        self._run.deferral = _moment(until, "defer_current")

    def throttle_all(self, until: DurationLike | datetime, scope: Scope = "instance") -> None:
        """Start no other run of this task until then, on this instance or in the whole cluster."""
        _check_scope(scope)
        self._run.throttle(self.task, _moment(until, "throttle_all"), scope)

    async def mark_completed(self, *, session: Session | None = None) -> None:
        """Write the completion now; in a session's transaction, exactly when that commits.

        LeaseLostError when the record is no longer owned: in a transaction, let it abort.
        """
        await _mark_completed(self._run, session)


class BlockingContext(Context):
    """The same context for a handler in a thread: what it awaits runs in the app's event loop.

    A plain function may return a coroutine, as a decorator around an ``async def`` does. That runs in the event loop,
    which must not be blocked by what only it can do: there these are awaited like those of `Context`.
    """

    __slots__ = ("_loop", "_loop_thread")

    def __init__(self, run: Run, loop: asyncio.AbstractEventLoop) -> None:
        """Made in the loop's own thread."""
        super().__init__(run)
        self._loop = loop
        self._loop_thread = threading.get_ident()

    def get_document(  # type: ignore[override]  # a plain handler calls it without await
        self, *, projection: Any = None, session: Session | None = None, **find_options: Any
    ) -> dict[str, Any]:
        """As `Context.get_document`, blocking this thread."""
        return self._block_on(_get_document(self._run, projection, session, find_options))

    def mark_completed(  # type: ignore[override]  # a plain handler calls it without await
        self, *, session: Session | None = None
    ) -> None:
        """As `Context.mark_completed`, blocking this thread."""
        return self._block_on(_mark_completed(self._run, session))

    def throttle_all(self, until: DurationLike | datetime, scope: Scope = "instance") -> None:
        """As `Context.throttle_all`."""
        _check_scope(scope)
        moment = _moment(until, "throttle_all")
        if self._is_in_loop:
            super().throttle_all(moment, scope)
        else:
            self._loop.call_soon_threadsafe(lambda: Context.throttle_all(self, moment, scope))

    @property
    def _is_in_loop(self) -> bool:
        return threading.get_ident() == self._loop_thread

    def _block_on(self, work: Coroutine[Any, Any, Any]) -> Any:
        if self._is_in_loop:
            return work
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def run_of(context: Context) -> Run:
    """The run that a context shows: for what stands around handlers and sees how they end."""
    return context._run  # pyright: ignore[reportPrivateUsage] - of this module


def describe_error(error: BaseException) -> str:
    """An exception as it is kept in the record: its class and its message."""
    try:
        text = str(error)
    except Exception as failure:  # noqa: BLE001 - an exception whose text raises is a failed attempt like others
        text = f"(its text raised {type(failure).__name__})"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


async def _get_document(
    run: Run, projection: Any, session: Session | None, find_options: dict[str, Any]
) -> dict[str, Any]:
    if run.lost:
        raise LeaseLostError(f"task {run.definition.task!r}: the lease of this run is lost")
    options = find_options if projection is None else {"projection": projection, **find_options}
    document = await run.store.fetch(run, session, options)
    if document is not None:
        run.condition = None
        if run.on_document is not None:
            run.on_document(document)
        return document
    values = await run.store.watched_now(run)
    took = run.elapsed_ms()
    run.condition = Skipped(took) if values is None else Moved(took, values)
    reason = "the document is gone or outside the filter" if values is None else "its watched values moved on"
    raise TaskConditionFailedError(run.definition.task, run.record.doc_id, reason)


async def _mark_completed(run: Run, session: Session | None) -> None:
    if run.completed == "yes":
        return
    # Renewal stops first: its write would conflict with the transaction's, or follow the completion.
    run.stop_renewal(run)
    if run.lost or not await run.store.complete(run, session):
        raise LeaseLostError(f"task {run.definition.task!r}: the lease of this run is lost")
    run.completed = "yes" if session is None or not session.in_transaction else "in a transaction"


def _check_scope(scope: str) -> None:
    if scope not in ("instance", "cluster"):
        raise ConfigurationError(
            "unknown scope", option="scope", value=scope, expected="'instance' or 'cluster'"
        )


def _moment(value: DurationLike | datetime, option: str) -> Moment:
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value
    return parse_duration(value, option=option)
