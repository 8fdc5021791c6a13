"""Reactive background tasks on MongoDB: a task runs because data changed."""

from oplogue.app import App
from oplogue.errors import (
    ConfigurationError,
    DocumentConversionError,
    EmbeddedServerError,
    LeadershipLostError,
    LeaseLostError,
    LockNotAcquiredError,
    NotStartedError,
    OplogueError,
    TaskConditionFailedError,
    UnknownTaskError,
)
from oplogue.model.definition import TaskDefinition
from oplogue.model.events import Event
from oplogue.model.health import Health
from oplogue.model.policies import CleanupPolicy, Evolution, Monitoring
from oplogue.model.record import HistoryEntry, LastSuccess, Page, TaskRecord
from oplogue.model.retry import CronRetry, Exponential, Fixed, Linear, RetryPolicy, Series
from oplogue.model.states import Status
from oplogue.runtime.context import Context
from oplogue.runtime.lock import Lock
from oplogue.store.transactions import on_commit

__all__ = [
    "App",
    "CleanupPolicy",
    "ConfigurationError",
    "Context",
    "CronRetry",
    "DocumentConversionError",
    "EmbeddedServerError",
    "Event",
    "Evolution",
    "Exponential",
    "Fixed",
    "Health",
    "HistoryEntry",
    "LastSuccess",
    "LeadershipLostError",
    "LeaseLostError",
    "Linear",
    "Lock",
    "LockNotAcquiredError",
    "Monitoring",
    "NotStartedError",
    "OplogueError",
    "Page",
    "RetryPolicy",
    "Series",
    "Status",
    "TaskConditionFailedError",
    "TaskDefinition",
    "TaskRecord",
    "UnknownTaskError",
    "on_commit",
]
