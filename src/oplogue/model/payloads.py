"""What events carry: one class for each shape, shared by the codes that carry the same."""

from __future__ import annotations

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
    """How long."""
    scope: str
    """``instance``, or ``cluster``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPaused(TaskEvent):
    """No run of the task starts in the whole cluster."""

    until: datetime | None
    """Until when; None: until the task is resumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecords(TaskEvent):
    """Something was done to so many records of one task."""

    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskVersion(TaskEvent):
    """Something about one version of the task's handler."""

    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRolledBack(TaskVersion):
    """The task's handler has a lower version than before."""

    stored: int
    """The highest version that there has been."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentParked(TaskEvent):
    """A document that the server refuses to plan was put aside."""

    source: str
    """The collection of the document, as ``database.collection``."""
    doc_id: Any
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksEvent(Event):
    """Something about several tasks."""

    tasks: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksCounted(TasksEvent):
    """Something about so many records, or runs, of these tasks."""

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
    exception: BaseException | None
    """What was raised, where it was not the database that failed: report it to us. In the log a traceback."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TermEvent(Event):
    """Something about one term in office."""

    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipLost(TermEvent):
    """The instance leads no more."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOpened(TermEvent):
    """The change stream is open; it is followed for these tasks."""

    tasks: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CountEvent(Event):
    """Something was done to so many documents or records."""

    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WeakClient(Event):
    """The settings of a client that make an outage longer, or an acknowledgement worth less."""

    options: list[str]
    """Each with its value, as ``heartbeatFrequencyMS=10000``."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconciliationEstimate(ReconciliationProgress):
    """How long the rest will take."""

    estimate: int
    """About how many documents there are."""
    per_second: float
    """How fast it goes, its rests included."""
    seconds_left: float | None
    """How long the rest takes at that speed; None while that is not known."""
