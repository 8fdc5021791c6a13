"""What the engine reports: codes that stay, and the shapes of what they carry.

Codes are promises: one is never renamed, and its payload only grows. The page ``docs/reference/events.md`` says
when each is emitted; tests hold the page, this table and every ``emit`` against each other.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened on one instance."""

    code: str
    """What: one of the documented codes, as ``task.failed``."""
    at: datetime
    """When, by the instance's clock."""
    instance_id: str
    """Where."""

    @property
    def fields(self) -> Mapping[str, Any]:
        """Everything but ``code`` and ``at``, by name."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name not in ("code", "at")
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEvent(Event):
    """Something about one task."""

    task: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent(TaskEvent):
    """Something about one run of a task."""

    doc_id: Any
    """The ``_id`` of the source document."""
    attempt: int
    """The number of this attempt, from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded(RunEvent):
    """A run came to its end."""

    duration_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFailed(RunEnded):
    """A run failed."""

    error: str
    """What the record keeps: the exception's class and its message."""
    exception: BaseException | None
    """The exception itself, where there was one; in the log it is the line's ``exc_info``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRetried(RunFailed):
    """A run failed, and there will be another."""

    seconds: float
    """How long until then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDeferred(RunEvent):
    """A run asked for another one later."""

    seconds: float
    """How long until then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskThrottled(TaskEvent):
    """No run of the task starts for a while."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecords(TaskEvent):
    """Something was done to so many records of one task."""

    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReprocessed(TaskEvent):
    """Records of the task run again for a new version of its handler."""

    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentParked(TaskEvent):
    """A document that the server refuses to plan was put aside."""

    source: str
    """The collection of the document, as ``database.collection``."""
    doc_id: Any
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownTimeout(Event):
    """Handlers were still running when the instance had waited long enough."""

    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure(Event):
    """Something of the engine failed; it is tried again."""

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFailure(Failure):
    """Reading or writing the records of one source collection failed."""

    source: str
    """The source collection, as ``database.collection``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFailure(Failure):
    """Planning failed."""

    count: int
    """How many documents; 0 where the statement was about none in particular."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFailure(Failure):
    """A part of the instance failed."""

    part: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TermEvent(Event):
    """Something about one term in office."""

    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipLost(TermEvent):
    """The instance leads no more."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentsPlanned(Event):
    """A batch of changed documents was planned."""

    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceEvent(Event):
    """Something about one source collection."""

    source: str
    """The collection, as ``database.collection``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconciliationEvent(SourceEvent):
    """The documents of one collection are planned for these tasks."""

    tasks: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconciliationProgress(ReconciliationEvent):
    """So many documents were planned so far."""

    documents: int


@dataclass(frozen=True, slots=True)
class EventKind:
    """One code: how loud it is in the log, what it says there, and what it carries."""

    level: int
    message: str
    payload: type[Event] = Event

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the payload, without those that every event has."""
        every = {field.name for field in fields(Event)}
        return tuple(field.name for field in fields(self.payload) if field.name not in every)


EVENTS: Mapping[str, EventKind] = {
    "task.started": EventKind(logging.DEBUG, "task {task} started", RunEvent),
    "task.completed": EventKind(logging.DEBUG, "task {task} completed in {duration_ms} ms", RunEnded),
    "task.skipped": EventKind(logging.DEBUG, "task {task} skipped: its document moved on", RunEnded),
    "task.retried": EventKind(
        logging.WARNING,
        "task {task} failed at attempt {attempt} and runs again in {seconds:g} s: {error}",
        RunRetried,
    ),
    "task.failed": EventKind(
        logging.ERROR, "task {task} failed for good at attempt {attempt}: {error}", RunFailed
    ),
    "task.deferred": EventKind(logging.DEBUG, "task {task} put itself off for {seconds:g} s", RunDeferred),
    "task.lease_lost": EventKind(
        logging.WARNING, "task {task} lost its lease: nothing of this run is written", RunEvent
    ),
    "task.throttled": EventKind(logging.INFO, "task {task} is throttled for {seconds:g} s", TaskThrottled),
    "task.dead_letter": EventKind(
        logging.ERROR,
        "task {task}: {count} records failed for good, their process died or was cut off each time",
        TaskRecords,
    ),
    "instance.started": EventKind(logging.INFO, "instance {instance_id} started"),
    "instance.stopped": EventKind(logging.INFO, "instance {instance_id} stopped"),
    "instance.shutdown_timeout": EventKind(
        logging.WARNING, "{count} handlers did not end within the shutdown timeout", ShutdownTimeout
    ),
    "claim.failed": EventKind(logging.WARNING, "claiming from {source} failed: {error}", SourceFailure),
    "settle.failed": EventKind(
        logging.WARNING, "outcomes of {source} could not be written yet: {error}", SourceFailure
    ),
    "lease.renewed_in_loop": EventKind(
        logging.WARNING,
        "leases are renewed in the event loop: a handler that blocks it may lose its lease; "
        "give App(client=...) the uri= too, and a thread renews them",
    ),
    "lease.renewal_failed": EventKind(logging.WARNING, "leases could not be renewed: {error}", Failure),
    "leadership.gained": EventKind(logging.INFO, "instance {instance_id} leads, term {term}", TermEvent),
    "leadership.lost": EventKind(
        logging.INFO, "instance {instance_id} leads no more: {reason}", LeadershipLost
    ),
    "planner.started": EventKind(logging.INFO, "the planner follows the change stream", TermEvent),
    "planner.stopped": EventKind(logging.INFO, "the planner stopped", TermEvent),
    "planner.stream_error": EventKind(
        logging.WARNING, "the change stream broke and is reopened: {error}", Failure
    ),
    "planner.position_not_saved": EventKind(
        logging.WARNING, "the stream's position could not be saved yet: {error}", Failure
    ),
    "planner.history_lost": EventKind(
        logging.ERROR,
        "the server no longer has the stream's position: starting afresh, with a reconciliation",
        Failure,
    ),
    "planner.batch_failed": EventKind(
        logging.WARNING, "a batch of {count} could not be planned yet: {error}", BatchFailure
    ),
    "planner.parked": EventKind(
        logging.ERROR, "document {doc_id!r} of {source} could not be planned: {error}", DocumentParked
    ),
    "planner.planned": EventKind(logging.DEBUG, "planned {count} documents", DocumentsPlanned),
    "planner.source_gone": EventKind(
        logging.WARNING, "collection {source} was dropped or renamed", SourceEvent
    ),
    "signal.failed": EventKind(
        logging.DEBUG, "signals between instances don't work now, looks serve instead: {error}", Failure
    ),
    "reconciliation.started": EventKind(
        logging.INFO, "reconciling {source} for {tasks}", ReconciliationEvent
    ),
    "reconciliation.finished": EventKind(
        logging.INFO, "reconciled {source}: {documents} documents", ReconciliationProgress
    ),
    "cleanup.deleted": EventKind(
        logging.INFO, "deleted {count} orphaned records of task {task}", TaskRecords
    ),
    "evolution.reprocessed": EventKind(
        logging.INFO, "records of task {task} run again with handler version {version}", TaskReprocessed
    ),
    "part.failed": EventKind(logging.ERROR, "{part} failed and is started again: {error}", PartFailure),
}
"""Every event by its code."""


def codes_of(pattern: str) -> tuple[str, ...]:
    """The codes that a pattern stands for: a code, all of an area (``task.*``), or all (``*``); none if unknown.

    >>> codes_of("leadership.*")
    ('leadership.gained', 'leadership.lost')
    >>> codes_of("leadership.regained")
    ()
    """
    if pattern == "*":
        return tuple(EVENTS)
    area, _, rest = pattern.partition(".")
    return tuple(code for code in EVENTS if code == pattern or (rest == "*" and code.startswith(f"{area}.")))
