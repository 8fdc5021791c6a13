"""Task records as operators see them, read from documents that anybody may have edited by hand."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any

from oplogue.model.record import HistoryEntry, LastSuccess, TaskRecord
from oplogue.model.states import Status
from oplogue.store.connection import Document
from oplogue.store.fields import aware_or_none, document_in, list_in

FIELDS: dict[str, str] = {
    "id": "_id",
    "task": "task",
    "source_doc_id": "sourceDocId",
    "status": "status",
    "next_run_at": "nextRunAt",
    "due_at": "dueAt",
    "attempts": "attempts",
    "last_error": "lastError",
    "first_error_at": "firstErrorAt",
    "created_at": "createdAt",
    "updated_at": "updatedAt",
    "started_at": "startedAt",
    "completed_at": "completedAt",
    "last_finalized_at": "lastFinalizedAt",
}
"""The fields that a listing may be sorted by, and what they are called in the database."""


def read_record(collection: str, document: Document) -> TaskRecord:
    """The record of a document; what cannot be read is shown as missing."""

    def date(name: str) -> datetime | None:
        return aware_or_none(document.get(name))

    last_success = document_in(document.get("lastSuccess"))
    succeeded_at = aware_or_none(last_success.get("at"))
    return TaskRecord(
        id=document["_id"],
        collection=collection,
        task=str(document.get("task")),
        source_doc_id=document.get("sourceDocId"),
        status=_status(document.get("status")),
        next_run_at=date("nextRunAt"),
        due_at=date("dueAt"),
        attempts=_whole(document.get("attempts")),
        last_observed_values=_values(document),
        last_error=_text(document.get("lastError")),
        first_error_at=date("firstErrorAt"),
        created_at=date("createdAt"),
        updated_at=date("updatedAt"),
        started_at=date("startedAt"),
        completed_at=date("completedAt"),
        last_finalized_at=date("lastFinalizedAt"),
        last_success=None
        if succeeded_at is None
        else LastSuccess(succeeded_at, _whole(last_success.get("durationMs"))),
        execution_history=tuple(_entries(document)),
    )


def _values(document: Document) -> dict[str, Any] | None:
    values = document.get("lastObservedValues")
    return document_in(values) if isinstance(values, dict) else None


def _entries(document: Document) -> list[HistoryEntry]:
    entries: list[HistoryEntry] = []
    for stored in map(document_in, list_in(document.get("executionHistory"))):
        at = aware_or_none(stored.get("at"))
        if at is not None:
            status = _status(stored.get("status"))
            error = _text(stored.get("error"))
            entries.append(HistoryEntry(at, status, _whole(stored.get("durationMs")), error))
    return entries


def _status(value: Any) -> Status:
    """A status edited by hand into nonsense is shown as failed: nothing will run it."""
    return Status(value) if isinstance(value, str) and value in set(Status) else Status.FAILED


def _whole(value: Any) -> int:
    """A number; other languages' drivers write whole ones as fractions too."""
    return int(value) if isinstance(value, (int, float)) and math.isfinite(value) else 0


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
