"""Reactive background tasks on MongoDB: a task runs because data changed.

A name is imported when it is first asked for: the command line answers ``--help`` without the driver.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from oplogue.model.checkup import Finding
    from oplogue.model.definition import TaskDefinition
    from oplogue.model.deployment import Deployment
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
    "Deployment",
    "DocumentConversionError",
    "EmbeddedServerError",
    "Event",
    "Evolution",
    "Exponential",
    "Finding",
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

_HOMES = {
    "oplogue.app": ("App",),
    "oplogue.errors": (
        "ConfigurationError",
        "DocumentConversionError",
        "EmbeddedServerError",
        "LeadershipLostError",
        "LeaseLostError",
        "LockNotAcquiredError",
        "NotStartedError",
        "OplogueError",
        "TaskConditionFailedError",
        "UnknownTaskError",
    ),
    "oplogue.model.checkup": ("Finding",),
    "oplogue.model.definition": ("TaskDefinition",),
    "oplogue.model.deployment": ("Deployment",),
    "oplogue.model.events": ("Event",),
    "oplogue.model.health": ("Health",),
    "oplogue.model.policies": (
        "CleanupPolicy",
        "Evolution",
        "Monitoring",
    ),
    "oplogue.model.record": (
        "HistoryEntry",
        "LastSuccess",
        "Page",
        "TaskRecord",
    ),
    "oplogue.model.retry": (
        "CronRetry",
        "Exponential",
        "Fixed",
        "Linear",
        "RetryPolicy",
        "Series",
    ),
    "oplogue.model.states": ("Status",),
    "oplogue.runtime.context": ("Context",),
    "oplogue.runtime.lock": ("Lock",),
    "oplogue.store.transactions": ("on_commit",),
}
_PLACES = {name: module for module, names in _HOMES.items() for name in names}
_MODULES = ("embedded", "errors", "events")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"oplogue.{name}")
    if name not in _PLACES:
        raise AttributeError(f"module 'oplogue' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_PLACES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
