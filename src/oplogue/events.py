"""The events that subscribers get: one class for each shape of payload.

>>> from oplogue import App
>>> from oplogue.events import RunFailed
>>> app = App("mongodb://localhost:27017/shop")
>>> @app.on("task.failed")
... def page_somebody(event: RunFailed) -> None:
...     print(f"{event.task} of {event.doc_id} failed for good: {event.error}")
"""

from oplogue.model.payloads import (
    BatchFailure,
    CountEvent,
    DocumentParked,
    Event,
    Failure,
    LeadershipLost,
    PartFailure,
    ReconciliationEstimate,
    ReconciliationEvent,
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

__all__ = [
    "BatchFailure",
    "CountEvent",
    "DocumentParked",
    "Event",
    "Failure",
    "LeadershipLost",
    "PartFailure",
    "ReconciliationEstimate",
    "ReconciliationEvent",
    "ReconciliationProgress",
    "RunDeferred",
    "RunEnded",
    "RunEvent",
    "RunFailed",
    "RunRetried",
    "SourceEvent",
    "SourceFailure",
    "StreamOpened",
    "TaskEvent",
    "TaskPaused",
    "TaskRecords",
    "TaskRolledBack",
    "TaskThrottled",
    "TaskVersion",
    "TasksCounted",
    "TasksEvent",
    "TermEvent",
    "WeakClient",
]
