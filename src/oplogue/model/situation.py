"""How a cluster stands at one moment, as operators are told. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from oplogue.model.reconciliation import Reconciliation


@dataclass(frozen=True, slots=True)
class InstanceState:
    """A live instance."""

    id: str
    leads: bool
    started_at: datetime | None
    slots: int
    in_use: int
    """By its own last word, with its heartbeat."""
    versions: Mapping[str, int]
    """The handler's version of each task that it runs."""
    outdated: tuple[str, ...]
    """Tasks of which it carries another definition than the one in force."""


@dataclass(frozen=True, slots=True)
class LeaderState:
    """Who plans for all."""

    id: str
    term: int
    since: datetime | None


@dataclass(frozen=True, slots=True)
class TaskState:
    """A task: what of it waits, runs and has failed, and what holds it back."""

    task: str
    collection: str
    pending: int
    processing: int
    processing_dirty: int
    failed: int
    waited: timedelta | None
    """Since when the oldest pending record is due, negative where it is not yet; None where nothing is pending."""
    paused_until: datetime | None
    throttled_until: datetime | None
    gate: int
    """Instances with a lower handler version don't run it; 0: all do."""
    instances: int
    """How many live instances run it."""
    reconciled: bool
    reconciled_at: datetime | None


@dataclass(frozen=True, slots=True)
class Situation:
    """All of it."""

    at: datetime
    """The server's time."""
    database: str
    leader: LeaderState | None
    lag: timedelta | None
    """How far planning is behind the database; None before anything was planned."""
    instances: tuple[InstanceState, ...]
    tasks: tuple[TaskState, ...]
    reconciliations: tuple[Reconciliation, ...]
    """What is being reconciled, or waits for it."""
    cleaned_up_at: datetime | None
    """When the last cleanup by schedule began."""

    @property
    def slots(self) -> int:
        """The slots of all instances."""
        return sum(instance.slots for instance in self.instances)

    @property
    def in_use(self) -> int:
        """How many of them are in use."""
        return sum(instance.in_use for instance in self.instances)

    @property
    def reconciled_at(self) -> datetime | None:
        """When a collection was last reconciled."""
        return max((task.reconciled_at for task in self.tasks if task.reconciled_at), default=None)
