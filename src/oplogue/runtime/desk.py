"""The operator's desk: what people ask of the records and tasks of the whole cluster.

It needs the database alone: which tasks there are, and where their records live, is known from the stored
definitions of all instances.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from oplogue.clock import Clock
from oplogue.errors import ConfigurationError, UnknownTaskError
from oplogue.model.checks import whole
from oplogue.model.definition import Namespace, TaskDefinition
from oplogue.model.durations import DurationLike, parse_duration
from oplogue.model.reconciliation import Reconciliation
from oplogue.model.record import Page
from oplogue.model.states import Status
from oplogue.runtime.bus import Bus
from oplogue.store.controls import Controls
from oplogue.store.definitions import Definitions
from oplogue.store.operations import Operations, Order, RecordFilter
from oplogue.store.records import FIELDS
from oplogue.store.scans import Scans, by_source
from oplogue.store.signals import Topic

_MOST = 500
_FURTHEST = 10_000_000
_LONGEST_MESSAGE = 8_000
"""The server takes patterns of 32,764 bytes; a character may be four."""

OneOrMany = str | Sequence[str] | None
SortLike = tuple[str, int] | Sequence[tuple[str, int]]
Progress = Callable[[int], None]
"""Told after each batch how many records have been changed so far."""


def _silent(_count: int) -> None: ...


class Desk:
    """Lists, counts, retries, deletions, pauses. ``tell`` lets all instances know at once what was changed."""

    def __init__(
        self,
        *,
        definitions: Definitions,
        operations: Operations,
        controls: Controls,
        scans: Scans,
        tell: Callable[[Topic, Iterable[str]], Awaitable[None]],
        bus: Bus,
        clock: Clock,
    ) -> None:
        self._definitions = definitions
        self._operations = operations
        self._controls = controls
        self._scans = scans
        self._tell = tell
        self._bus = bus
        self._clock = clock

    async def tasks(self) -> tuple[TaskDefinition, ...]:
        """The definitions in force, of all instances."""
        return tuple(stored.planned.definition for stored in await self._definitions.all())

    async def page(self, which: RecordFilter, *, limit: int, skip: int, sort: SortLike) -> Page:
        """One page of records."""
        whole(limit, option="limit", minimum=1, maximum=_MOST)
        whole(skip, option="skip", minimum=0, maximum=_FURTHEST)
        return await self._operations.list(await self._sources(which.tasks), which, _order(sort), skip, limit)

    async def count(self, which: RecordFilter) -> int:
        """How many records."""
        return await self._operations.count(await self._sources(which.tasks), which)

    async def retry(self, which: RecordFilter, progress: Progress = _silent) -> int:
        """Run records again; how many."""
        sources = await self._sources(which.tasks)
        names = _names(sources)
        total = 0
        try:
            async with aclosing(self._operations.retry(sources, which)) as batches:
                async for count in batches:
                    if count:
                        await self._tell(Topic.WORK, names)
                    total += count
                    progress(total)
        finally:
            # Also what was done before something failed.
            if total:
                self._bus.emit("records.retried", count=total, tasks=names)
        return total

    async def delete(self, which: RecordFilter, progress: Progress = _silent) -> int:
        """Delete records; how many."""
        sources = await self._sources(which.tasks)
        total = 0
        try:
            async with aclosing(self._operations.delete(sources, which)) as batches:
                async for count in batches:
                    total += count
                    progress(total)
        finally:
            if total:
                self._bus.emit("records.deleted", count=total, tasks=_names(sources))
        return total

    async def reconcile(self, tasks: OneOrMany) -> None:
        """Plan every document of these tasks, or of all, once more."""
        names = [definition.task for definition in await self._known(_many(tasks, "task"))]
        await self._definitions.to_be_reconciled(names)
        self._bus.emit("reconciliation.requested", tasks=names)
        await self._tell(Topic.DEFINITIONS, names)

    async def reconciliations(self) -> tuple[Reconciliation, ...]:
        """What is being reconciled, or waits for it, and how far it has come; nothing where all is done."""
        return tuple(await self._scans.progress(await self._definitions.all()))

    async def would_reconcile(self, tasks: OneOrMany) -> tuple[Reconciliation, ...]:
        """What `reconcile` would begin with the same tasks: which collections, about how many documents."""
        names = {definition.task for definition in await self._known(_many(tasks, "task"))}
        asked = [stored for stored in await self._definitions.all() if stored.name in names]
        return tuple(
            [
                Reconciliation(
                    source=source,
                    tasks=tuple(sorted(stored.name for stored in group)),
                    estimate=await self._scans.estimate(source),
                )
                for source, group in by_source(asked).items()
            ]
        )

    async def pause(self, task: str, until: DurationLike | datetime | None) -> None:
        """Start no run of the task on any instance, until then or until it is resumed."""
        await self._known([task])
        if until is None or isinstance(until, datetime):
            moment = until.replace(tzinfo=UTC) if until is not None and until.tzinfo is None else until
        else:
            moment = parse_duration(until, option="until")
        await self._controls.pause(task, moment)
        ends = self._clock.now() + moment if isinstance(moment, timedelta) else moment
        self._bus.emit("task.paused", task=task, until=ends)
        await self._tell(Topic.CONTROLS, [task])

    async def resume(self, task: str) -> None:
        """Let the task run again."""
        await self._known([task])
        await self._controls.resume(task)
        self._bus.emit("task.resumed", task=task)
        await self._tell(Topic.RESUMED, [task])

    async def _known(self, names: Sequence[str] | None) -> list[TaskDefinition]:
        definitions = {definition.task: definition for definition in await self.tasks()}
        for name in names or ():
            if name not in definitions:
                raise UnknownTaskError(name, tuple(sorted(definitions)))
        return [found for name, found in definitions.items() if names is None or name in names]

    async def _sources(self, names: Sequence[str] | None) -> Mapping[Namespace, list[str]]:
        sources: dict[Namespace, list[str]] = {}
        for definition in await self._known(names):
            sources.setdefault(definition.source, []).append(definition.task)
        return sources


def _names(sources: Mapping[Namespace, list[str]]) -> list[str]:
    return sorted(name for names in sources.values() for name in names)


def record_filter(
    task: OneOrMany,
    status: OneOrMany,
    source_doc_filter: Mapping[str, Any] | None,
    error_message: str | None,
    has_error: bool | None,
    ids: Sequence[Any] | None,
) -> RecordFilter:
    """Which records a caller means; ConfigurationError for what can't be meant."""
    statuses = _many(status, "status")
    for value in statuses or ():
        if value not in set(Status):
            raise ConfigurationError(
                "no such status",
                option="status",
                value=value,
                expected=" or ".join(map(repr, map(str, Status))),
            )
    _check(has_error, bool, "has_error", "True or False")
    _check(error_message, str, "error_message", "a part of the message")
    if error_message is not None and len(error_message) > _LONGEST_MESSAGE:
        raise ConfigurationError(
            "too long",
            option="error_message",
            value=f"{error_message[:20]}…",
            expected=f"a part of the message, of {_LONGEST_MESSAGE:,} characters at most",
        )
    _check(source_doc_filter, Mapping, "source_doc_filter", "a query on the source documents")
    if ids is not None and (isinstance(ids, (str, bytes)) or not isinstance(ids, Sequence)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError("not a list", option="ids", value=ids, expected="ids of records, in a list")
    return RecordFilter(
        tasks=_many(task, "task"),
        statuses=None if statuses is None else [Status(value) for value in statuses],
        error_message=error_message,
        has_error=has_error,
        ids=None if ids is None else list(ids),
        # What asks for nothing asks for all, also for records whose documents are gone.
        source_doc_filter=source_doc_filter or None,
    )


def _check(value: object, kind: type, option: str, expected: str) -> None:
    if value is not None and not isinstance(value, kind):
        raise ConfigurationError("of the wrong type", option=option, value=value, expected=expected)


def _many(value: OneOrMany, option: str) -> list[str] | None:
    if value is None:
        return None
    if isinstance(value, str):
        return [value]
    if not isinstance(value, Sequence) or not all(isinstance(one, str) for one in value):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError("not a name", option=option, value=value, expected="a text, or several")
    return list(value)


def _order(sort: SortLike) -> Order:
    one = not isinstance(sort, (tuple, list)) or (bool(sort) and isinstance(sort[0], str))  # pyright: ignore[reportUnnecessaryIsInstance] - users' input
    pairs: list[Any] = [sort] if one else list(sort)
    for pair in pairs:
        if not _is_order(pair):
            raise ConfigurationError(
                "not a sort order",
                option="sort",
                value=sort,
                expected=f"(field, 1 or -1), or several; the fields are {', '.join(FIELDS)}",
            )
    return [(pair[0], pair[1]) for pair in pairs]


def _is_order(pair: Any) -> bool:
    if not isinstance(pair, (tuple, list)) or len(cast(list[Any], pair)) != 2:
        return False
    name, direction = cast(list[Any], pair)
    # True is no direction, though it equals one.
    return isinstance(name, str) and name in FIELDS and type(direction) is int and direction in (1, -1)
