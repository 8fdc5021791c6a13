"""Definitions as they are stored in the globals collection: so that any leader plans any instance's tasks.

A definition's trigger (filter and watched values) is kept as canonical extended JSON: readable, complete, and free of
operators that a stored document may not have as keys. Its hash tells records that were planned under another
trigger. A changed trigger and "not reconciled yet" are saved in one update.
"""

from __future__ import annotations

from collections.abc import Collection as Collection_
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from bson import Timestamp, json_util
from pymongo import UpdateOne

from oplogue.errors import ConfigurationError
from oplogue.model.definition import Namespace, TaskDefinition
from oplogue.model.durations import parse_duration
from oplogue.model.filters import compile_filter
from oplogue.model.policies import CleanupPolicy, Evolution
from oplogue.model.projection import compile_projection
from oplogue.model.retry import policy_from
from oplogue.store.announcements import EPOCH, NEXT_EPOCH, announced, in_order_of, trigger_hash
from oplogue.store.connection import Client, Collection, Document, bounded, ours
from oplogue.store.expressions import NOW, ROOT
from oplogue.store.fields import aware_or_none, list_in
from oplogue.store.plans import PlannedTask

_PREFIX = "task:"


@dataclass(frozen=True, slots=True)
class StoredTask:
    """A definition in force, and how far its documents have been planned."""

    planned: PlannedTask
    reconciled: bool
    defined_at: Timestamp | None = None
    """The cluster time of the moment when this trigger came into force."""
    reconciled_at: datetime | None = None
    """When its documents were last reconciled."""
    epoch: int = 0
    """The number of the newest request to reconcile: what a scan did for an earlier one is not done for a later."""
    revision: str = ""
    """Names everything that is stored of the definition."""
    removed_at: datetime | None = None
    """When it was noticed that no live instance has it any more."""
    replaced: tuple[str, ...] = ()
    """The revisions that were in force before."""

    @property
    def name(self) -> str:
        """The task's name."""
        return self.planned.definition.task

    @property
    def version(self) -> int:
        """The highest version of its handler."""
        return self.planned.definition.evolution.handler_version


@dataclass(frozen=True, slots=True)
class Standing:
    """Which versions of a task's handler there have been."""

    version: int = 0
    """The highest; 0 where there was none."""
    requires: int = 0
    """The highest of those that had records reprocessed: older ones must not run them."""


class Definitions:
    """The definitions in one globals collection."""

    def __init__(self, client: Client, globals_: Namespace, *, bound: timedelta) -> None:
        self._globals: Collection = ours(client, globals_)
        self._bound = bound

    async def announce(self, definitions: Sequence[TaskDefinition], carried: Collection_[str]) -> bool:
        """Store the definitions of this instance; whether any is new or changed.

        ``carried`` are the revisions of the other live instances: what is carried is not rolled back.
        """
        if not definitions:
            return False
        stored = await self._stored([definition.task for definition in definitions])
        writes: list[UpdateOne] = []
        for definition in definitions:
            after = announced(in_order_of(definition, stored.get(definition.task)), carried)
            writes.append(UpdateOne(_named(definition.task), [{"$replaceWith": after}], upsert=True))
        with bounded(self._bound):
            result = await self._globals.bulk_write(writes, ordered=False)
        return bool(result.modified_count or result.upserted_count)

    async def _stored(self, names: Sequence[str]) -> dict[str, TaskDefinition]:
        with bounded(self._bound):
            found = await self._globals.find(_theirs(names)).to_list()
        read = filter(None, map(_stored, found))
        return {task.name: task.planned.definition for task in read}

    async def standings(self, names: Sequence[str]) -> dict[str, Standing]:
        """Which versions of these tasks there have been."""
        with bounded(self._bound):
            fields = {"handlerVersion": 1, "requires": 1}
            found = await self._globals.find(_theirs(names), fields).to_list()
        return {
            str(document["_id"]).removeprefix(_PREFIX): Standing(
                _whole(document.get("handlerVersion")), _whole(document.get("requires"))
            )
            for document in found
        }

    async def note_removed(self, name: str) -> bool:
        """Note that no live instance has this task any more; whether nobody had noted it before."""
        unnoted = {**_named(name), "removedAt": {"$not": {"$type": "date"}}}
        with bounded(self._bound):
            result = await self._globals.update_one(unnoted, [{"$set": {"removedAt": NOW}}])
        return bool(result.modified_count)

    async def all(self) -> list[StoredTask]:
        """Every definition that can be read; one that was edited by hand into nonsense is left out."""
        with bounded(self._bound):
            documents = await self._globals.find({"_id": {"$regex": f"^{_PREFIX}"}}).to_list()
        stored = (_stored(document) for document in documents)
        return [task for task in stored if task is not None]

    async def reconciled(self, tasks: Sequence[StoredTask]) -> list[str]:
        """Note that all documents were planned for these requests; the names of those that still stood.

        A request that came meanwhile stands on, whoever writes this: a leader whose term is over, too.
        """
        met: list[str] = []
        for task in tasks:
            request = {**_named(task.name), "hash": task.planned.hash}
            with bounded(self._bound):
                result = await self._globals.update_one(
                    {**request, "$expr": {"$eq": [EPOCH, task.epoch]}},
                    [{"$set": {"reconciled": True, "reconciledAt": NOW}}],
                )
            if result.matched_count:
                met.append(task.name)
        return met

    async def to_be_reconciled(self, names: Sequence[str] | None = None) -> None:
        """These tasks, or all, must be reconciled: history was lost, or somebody asked for it."""
        which = {"_id": {"$regex": f"^{_PREFIX}"}} if names is None else _theirs(names)
        with bounded(self._bound):
            await self._globals.update_many(which, [{"$set": {"reconciled": False, "epoch": NEXT_EPOCH}}])


def planned(definition: TaskDefinition) -> PlannedTask:
    """A definition ready for the planner."""
    return PlannedTask(definition, trigger_hash(definition))


def _named(task: str) -> dict[str, Any]:
    return {"_id": _PREFIX + task}


def _theirs(names: Sequence[str]) -> dict[str, Any]:
    return {"_id": {"$in": [_PREFIX + name for name in names]}}


def _stored(document: Document) -> StoredTask | None:
    try:
        trigger: dict[str, Any] = json_util.loads(
            document["trigger"], json_options=json_util.CANONICAL_JSON_OPTIONS
        )
        definition = TaskDefinition(
            task=document["task"],
            source=Namespace(document["database"], document["collection"]),
            filter=compile_filter(trigger["filter"]),
            projection=compile_projection(None if trigger["watched"] == ROOT else trigger["watched"]),
            debounce=parse_duration(document["debounce"], option="debounce"),
            max_wait=parse_duration(document["maxWait"], option="max_wait"),
            retry_policy=policy_from(document["retryPolicy"]),
            cleanup_policy=CleanupPolicy(
                document["cleanupPolicy"]["deleteWhen"], document["cleanupPolicy"]["keepFor"]
            ),
            execution_history_limit=document["executionHistoryLimit"],
            evolution=Evolution(
                document["handlerVersion"],
                document["onHandlerVersionChange"],
                document["reconcileOnTriggerChange"],
            ),
            priority=document["priority"],
        )
    except (KeyError, TypeError, ValueError, ConfigurationError):
        return None
    defined_at = document.get("definedAt")
    return StoredTask(
        PlannedTask(definition, document["hash"]),
        document.get("reconciled") is True,
        defined_at if isinstance(defined_at, Timestamp) else None,
        aware_or_none(document.get("reconciledAt")),
        _whole(document.get("epoch")),
        str(document.get("revision")),
        aware_or_none(document.get("removedAt")),
        tuple(map(str, list_in(document.get("replaced")))),
    )


def _whole(value: Any) -> int:
    return int(value) if isinstance(value, int) else 0
