"""What the engine reports: every code, how loud it is in the log, what it says there, and what it carries.

Codes are promises: one is never renamed, and its payload only grows. The page ``docs/reference/events.md`` says
when each is emitted; tests hold the page, this table and every ``emit`` against each other.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields

from oplogue.model.payloads import (
    BatchFailure,
    CountEvent,
    DocumentParked,
    Event,
    Failure,
    LeadershipLost,
    PartFailure,
    ReconciliationEstimate,
    ReconciliationProgress,
    RunDeferred,
    RunEnded,
    RunEvent,
    RunFailed,
    RunRetried,
    SourceEvent,
    SourceFailure,
    StreamOpened,
    TaskEvent,
    TaskPaused,
    TaskRecords,
    TaskRolledBack,
    TasksCounted,
    TasksEvent,
    TaskThrottled,
    TaskVersion,
    TermEvent,
    WeakClient,
)


@dataclass(frozen=True, slots=True)
class EventKind:
    """One code."""

    level: int
    message: str
    payload: type[Event] = Event

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the payload, without those that every event has."""
        every = {field.name for field in fields(Event)}
        return tuple(field.name for field in fields(self.payload) if field.name not in every)


EVENTS: Mapping[str, EventKind] = {
    "task.started": EventKind(
        logging.DEBUG, "task {task} of {doc_id!r} started, attempt {attempt}", RunEvent
    ),
    "task.completed": EventKind(
        logging.DEBUG, "task {task} of {doc_id!r} completed in {duration_ms} ms", RunEnded
    ),
    "task.skipped": EventKind(
        logging.DEBUG, "task {task} of {doc_id!r} skipped: the document moved on", RunEnded
    ),
    "task.retried": EventKind(
        logging.WARNING,
        "task {task} of {doc_id!r} failed at attempt {attempt} and runs again in {seconds:g} s: {error}",
        RunRetried,
    ),
    "task.failed": EventKind(
        logging.ERROR, "task {task} of {doc_id!r} failed for good at attempt {attempt}: {error}", RunFailed
    ),
    "task.deferred": EventKind(
        logging.DEBUG, "task {task} of {doc_id!r} put itself off for {seconds:g} s", RunDeferred
    ),
    "task.lease_lost": EventKind(
        logging.WARNING,
        "task {task} of {doc_id!r} lost its lease: nothing of this run is written",
        RunEvent,
    ),
    "task.released": EventKind(
        logging.DEBUG, "task {task} of {doc_id!r} was cut short when the instance stopped", RunEvent
    ),
    "task.dead_letter": EventKind(
        logging.ERROR,
        "task {task}: {count} records failed for good, their process died or was cut off each time",
        TaskRecords,
    ),
    "task.throttled": EventKind(
        logging.INFO, "task {task} is throttled for {seconds:g} s ({scope})", TaskThrottled
    ),
    "task.paused": EventKind(logging.INFO, "task {task} is paused, until {until}", TaskPaused),
    "task.resumed": EventKind(logging.INFO, "task {task} may run again", TaskEvent),
    "task.superseded": EventKind(
        logging.INFO, "task {task} is left to instances with handler version {version}", TaskVersion
    ),
    "task.removed": EventKind(
        logging.WARNING,
        "no live instance has task {task} any more: its records are kept, and nobody runs them",
        TaskEvent,
    ),
    "records.retried": EventKind(logging.INFO, "{count} records of {tasks} retried by hand", TasksCounted),
    "records.deleted": EventKind(logging.INFO, "{count} records of {tasks} deleted by hand", TasksCounted),
    "instance.started": EventKind(logging.INFO, "instance {instance_id} started"),
    "instance.stopping": EventKind(
        logging.INFO, "instance {instance_id} stops; {count} handlers still run", TasksCounted
    ),
    "instance.stopped": EventKind(logging.INFO, "instance {instance_id} stopped"),
    "instance.shutdown_timeout": EventKind(
        logging.WARNING, "{count} handlers of {tasks} did not end within the shutdown timeout", TasksCounted
    ),
    "claim.failed": EventKind(logging.WARNING, "claiming from {source} failed: {error}", SourceFailure),
    "settle.failed": EventKind(
        logging.WARNING, "outcomes of {source} could not be written yet: {error}", SourceFailure
    ),
    "instance.weak_client": EventKind(
        logging.WARNING,
        "the client has settings that make outages longer, or writes less safe: {options}; "
        "`oplogue doctor` says what would be right",
        WeakClient,
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
    "planner.started": EventKind(logging.DEBUG, "the planner started, term {term}", TermEvent),
    "planner.stopped": EventKind(logging.DEBUG, "the planner stopped, term {term}", TermEvent),
    "planner.stream_opened": EventKind(logging.INFO, "the change stream is open, for {tasks}", StreamOpened),
    "planner.stream_error": EventKind(
        logging.WARNING, "the change stream broke and is reopened: {error}", Failure
    ),
    "planner.position_not_saved": EventKind(
        logging.WARNING, "the stream's position could not be saved yet: {error}", Failure
    ),
    "planner.history_lost": EventKind(
        logging.ERROR,
        "the server no longer has the stream's position, starting afresh with a reconciliation: {error}",
        Failure,
    ),
    "planner.planned": EventKind(logging.DEBUG, "planned {count} documents", CountEvent),
    "planner.batch_failed": EventKind(
        logging.WARNING, "planning failed and is tried again, {count} documents: {error}", BatchFailure
    ),
    "planner.parked": EventKind(
        logging.ERROR,
        "task {task}: document {doc_id!r} of {source} could not be planned: {error}",
        DocumentParked,
    ),
    "planner.source_gone": EventKind(
        logging.WARNING, "collection {source} was dropped or renamed", SourceEvent
    ),
    "signal.failed": EventKind(
        logging.DEBUG, "signals between instances don't work now, looks serve instead: {error}", Failure
    ),
    "reconciliation.requested": EventKind(
        logging.INFO, "a reconciliation of {tasks} was asked for", TasksEvent
    ),
    "reconciliation.started": EventKind(
        logging.INFO,
        "reconciling {source} for {tasks}, {documents} documents are done",
        ReconciliationProgress,
    ),
    "reconciliation.progress": EventKind(
        logging.INFO,
        "reconciling {source}: {documents} of about {estimate} documents, {per_second} per second",
        ReconciliationEstimate,
    ),
    "reconciliation.finished": EventKind(
        logging.INFO, "reconciled {source}: {documents} documents", ReconciliationProgress
    ),
    "cleanup.deleted": EventKind(
        logging.DEBUG, "deleted {count} orphaned records of task {task}", TaskRecords
    ),
    "cleanup.finished": EventKind(logging.INFO, "cleaned up: {count} orphaned records deleted", CountEvent),
    "evolution.reprocessed": EventKind(
        logging.INFO, "records of task {task} run again with handler version {version}", TaskVersion
    ),
    "evolution.rolled_back": EventKind(
        logging.WARNING,
        "the handler of task {task} went back from version {stored} to {version}: nothing is reprocessed",
        TaskRolledBack,
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
