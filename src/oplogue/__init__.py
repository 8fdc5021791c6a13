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
from oplogue.model.events import Event
from oplogue.model.policies import CleanupPolicy, Evolution, Monitoring
from oplogue.model.retry import CronRetry, Exponential, Fixed, Linear, RetryPolicy, Series
from oplogue.runtime.context import Context

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
    "LeadershipLostError",
    "LeaseLostError",
    "Linear",
    "LockNotAcquiredError",
    "Monitoring",
    "NotStartedError",
    "OplogueError",
    "RetryPolicy",
    "Series",
    "TaskConditionFailedError",
    "UnknownTaskError",
]
