"""A task record as the engine and the operations see it: never a raw document."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from oplogue.model.states import Status


@dataclass(slots=True)
class ClaimedRecord:
    """A record that this instance owns, with what its run needs to know. ``token`` fences every write of it."""

    id: Any
    task: str
    doc_id: Any
    attempts: int
    values: dict[str, Any]
    token: Any
    first_error_at: datetime | None = None
    planned_under: str | None = None
    trace: str | None = None
    """Where the attempt that last failed is found in a tracing system."""


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One run in a record's history. A skip is kept as ``completed``."""

    at: datetime
    status: Status
    duration_ms: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class LastSuccess:
    """When a run last succeeded, and how long it took."""

    at: datetime
    duration_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecord:
    """One (task, source document) pair: its state, its times and its last runs."""

    id: Any
    collection: str
    task: str
    source_doc_id: Any
    status: Status
    next_run_at: datetime | None
    due_at: datetime | None
    attempts: int
    last_observed_values: dict[str, Any] | None
    last_error: str | None
    first_error_at: datetime | None
    created_at: datetime | None
    updated_at: datetime | None
    started_at: datetime | None
    completed_at: datetime | None
    last_finalized_at: datetime | None
    last_success: LastSuccess | None
    execution_history: tuple[HistoryEntry, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a listing, and how many there are in all."""

    items: tuple[TaskRecord, ...]
    total: int
