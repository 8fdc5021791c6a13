"""What the engine reports: codes that stay, each with the fields that it carries."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, as subscribers get it and as the log's ``extra`` keys."""

    code: str
    at: datetime
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EventKind:
    """One code: how loud it is, what it says, and which fields it has."""

    level: int
    message: str
    fields: tuple[str, ...]


_RUN = ("task", "doc_id", "attempt")

EVENTS: Mapping[str, EventKind] = {
    "task.started": EventKind(logging.DEBUG, "task {task} started", _RUN),
    "task.completed": EventKind(
        logging.DEBUG, "task {task} completed in {duration_ms} ms", (*_RUN, "duration_ms")
    ),
    "task.skipped": EventKind(
        logging.DEBUG, "task {task} skipped: its document moved on", (*_RUN, "duration_ms")
    ),
    "task.retried": EventKind(
        logging.WARNING,
        "task {task} failed at attempt {attempt} and runs again: {error}",
        (*_RUN, "duration_ms", "error"),
    ),
    "task.failed": EventKind(
        logging.ERROR,
        "task {task} failed for good at attempt {attempt}: {error}",
        (*_RUN, "duration_ms", "error"),
    ),
    "task.deferred": EventKind(logging.DEBUG, "task {task} put itself off", _RUN),
    "task.lease_lost": EventKind(
        logging.WARNING, "task {task} lost its lease: nothing of this run is written", _RUN
    ),
    "task.throttled": EventKind(
        logging.INFO, "task {task} is throttled for {seconds} s", ("task", "seconds")
    ),
    "task.dead_letter": EventKind(
        logging.ERROR,
        "task {task}: {count} records failed for good, their process died or was cut off each time",
        ("task", "count"),
    ),
    "instance.started": EventKind(logging.INFO, "instance {instance_id} started", ("instance_id",)),
    "instance.stopped": EventKind(logging.INFO, "instance {instance_id} stopped", ("instance_id",)),
    "instance.shutdown_timeout": EventKind(
        logging.WARNING, "{count} handlers did not end within the shutdown timeout", ("count",)
    ),
    "claim.failed": EventKind(logging.WARNING, "claiming from {source} failed: {error}", ("source", "error")),
    "settle.failed": EventKind(
        logging.WARNING, "outcomes of {source} could not be written yet: {error}", ("source", "error")
    ),
    "lease.renewed_in_loop": EventKind(
        logging.WARNING,
        "leases are renewed in the event loop: a handler that blocks it may lose its lease; "
        "give App(client=...) the uri= too, and a thread renews them",
        (),
    ),
    "lease.renewal_failed": EventKind(logging.WARNING, "leases could not be renewed: {error}", ("error",)),
    "leadership.gained": EventKind(
        logging.INFO, "instance {instance_id} leads, term {term}", ("instance_id", "term")
    ),
    "leadership.lost": EventKind(
        logging.INFO, "instance {instance_id} leads no more: {reason}", ("instance_id", "term", "reason")
    ),
    "planner.started": EventKind(logging.INFO, "the planner follows the change stream", ("term",)),
    "planner.stopped": EventKind(logging.INFO, "the planner stopped", ("term",)),
    "planner.stream_error": EventKind(
        logging.WARNING, "the change stream broke and is reopened: {error}", ("error",)
    ),
    "planner.position_not_saved": EventKind(
        logging.WARNING, "the stream's position could not be saved yet: {error}", ("error",)
    ),
    "planner.history_lost": EventKind(
        logging.ERROR,
        "the server no longer has the stream's position: starting afresh, with a reconciliation",
        ("error",),
    ),
    "planner.batch_failed": EventKind(
        logging.WARNING, "a batch of {count} could not be planned yet: {error}", ("count", "error")
    ),
    "planner.parked": EventKind(
        logging.ERROR,
        "document {doc_id!r} of {source} could not be planned: {error}",
        ("source", "doc_id", "task", "error"),
    ),
    "planner.planned": EventKind(logging.DEBUG, "planned {count} documents", ("count",)),
    "planner.source_gone": EventKind(
        logging.WARNING, "collection {source} was dropped or renamed", ("source",)
    ),
    "signal.failed": EventKind(
        logging.DEBUG, "signals between instances don't work now, looks serve instead: {error}", ("error",)
    ),
    "reconciliation.started": EventKind(
        logging.INFO, "reconciling {source} for {tasks}", ("source", "tasks")
    ),
    "reconciliation.finished": EventKind(
        logging.INFO, "reconciled {source}: {documents} documents", ("source", "tasks", "documents")
    ),
    "cleanup.deleted": EventKind(
        logging.INFO, "deleted {count} orphaned records of task {task}", ("task", "count")
    ),
    "evolution.reprocessed": EventKind(
        logging.INFO, "records of task {task} run again with handler version {version}", ("task", "version")
    ),
    "part.failed": EventKind(logging.ERROR, "{part} failed and is started again: {error}", ("part", "error")),
}
"""Every event by its code."""
