"""The facts that a check-up collects of a deployment, and what a finding is. Judged in `oplogue.model.findings`.

A fact that could not be read (a privilege is missing, an older server) is ``None``: it is reported as not seen,
never taken for well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

Level = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found: a line about it, and where it is not well, how to mend it."""

    check: str
    level: Level
    text: str
    mend: str | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """How a client is set up, where it matters to the engine or to what the user writes."""

    heartbeat: timedelta
    connect_timeout: timedelta | None
    socket_timeout: timedelta | None
    server_selection_timeout: timedelta
    operation_timeout: timedelta | None
    write_concern: str | int | None
    retries_writes: bool


@dataclass(frozen=True, slots=True)
class Server:
    """Who answered."""

    version: tuple[int, ...]
    replica_set: str | None
    sharded: bool
    clock_offset: timedelta
    """How far the server's clock is ahead of this machine's."""
    clock_doubt: timedelta
    """Half of the round trip that it was measured with."""
    member_offsets: Mapping[str, timedelta] = field(default_factory=dict[str, timedelta])
    """The same of each member that could be asked."""


@dataclass(frozen=True, slots=True)
class Privilege:
    """What may be done to a collection; an empty name stands for all."""

    database: str
    collection: str
    actions: frozenset[str]
    on_anything: bool = False

    def covers(self, database: str, collection: str) -> bool:
        """Whether it is about this collection, or with an empty name, about all of the database."""
        if self.on_anything:
            return True
        return self.database in ("", database) and self.collection in ("", collection)


@dataclass(frozen=True, slots=True)
class Access:
    """Who the client is, what it may do, and what the engine does."""

    user: str | None
    privileges: tuple[Privilege, ...] | None
    """None: access control is off."""
    written: Mapping[str, frozenset[str]]
    """The databases that are worked in, and the collections of each that the engine writes."""
    watched: frozenset[str]
    """The databases whose changes are followed."""


@dataclass(frozen=True, slots=True)
class Oplog:
    """How far back the server remembers."""

    window: timedelta
    """Between its first and its last entry."""
    fill: float | None
    """How full it is, from 0 to 1: what is not full still grows backwards."""
    oldest: datetime


@dataclass(frozen=True, slots=True)
class Records:
    """The records beside one source collection."""

    source: str
    exists: bool
    missing_indexes: tuple[tuple[str, str], ...]
    """The name of each that is missing, and the command that builds it."""


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """One task, as the database knows it."""

    name: str
    carried: bool
    """Whether a live instance runs it."""
    reconciled: bool
    paused_until: datetime | None
    failed: int | None
    parked: int | None


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that was collected."""

    server: Server
    settings: Settings
    now: datetime
    """The server's time."""
    access: Access
    globals_collection: str
    default_write_concern: str | int | None
    arbiters: int | None
    oplog: Oplog | None
    position_at: datetime | None
    """The cluster time of the leader's saved position."""
    signals: Literal["capped", "plain", "missing"]
    leader: str | None
    instances: int
    tasks: tuple[TaskFacts, ...]
    records: tuple[Records, ...]
