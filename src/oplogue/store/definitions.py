"""Definitions as they are stored in the globals collection: so that any leader plans any instance's tasks.

A definition's trigger (filter and watched values) is kept as canonical extended JSON: readable, complete, and free of
operators that a stored document may not have as keys. Its hash tells records that were planned under another
trigger. A changed trigger and "not reconciled yet" are saved in one update.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection as Collection_
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from bson import Timestamp, json_util
from pymongo import UpdateOne

from oplogue.errors import ConfigurationError
from oplogue.model.definition import Namespace, TaskDefinition
from oplogue.model.durations import format_duration, parse_duration
from oplogue.model.filters import compile_filter
from oplogue.model.policies import CleanupPolicy, Evolution
from oplogue.model.projection import compile_projection
from oplogue.model.retry import describe, policy_from
from oplogue.store.connection import Client, Collection, Document, bounded, ours
from oplogue.store.expressions import CLUSTER_TIME, NOW, ROOT, Expr, first_set, literal, merged, when
from oplogue.store.fields import aware_or_none
from oplogue.store.plans import PlannedTask

_PREFIX = "task:"
_HASH_LENGTH = 16
_REPLACED = 20
"""How many replaced hashes are remembered."""
_EPOCH: Expr = when({"$in": [{"$type": "$epoch"}, ["int", "long"]]}, "$epoch", 0)
# Not a mere count: a definition that was deleted and announced again must not repeat a number.
_NEXT: Expr = {"$max": [{"$add": [_EPOCH, 1]}, {"$toLong": NOW}]}


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

    @property
    def name(self) -> str:
        """The task's name."""
        return self.planned.definition.task

    @property
    def version(self) -> int:
        """The highest version of its handler."""
        return self.planned.definition.evolution.handler_version


class Definitions:
    """The definitions in one globals collection."""

    def __init__(self, client: Client, globals_: Namespace, *, bound: timedelta) -> None:
        self._globals: Collection = ours(client, globals_)
        self._bound = bound

    async def announce(self, definitions: Sequence[TaskDefinition], carried: Collection_[str]) -> bool:
        """Store the definitions of this instance; whether any is new or changed, and so to be reconciled.

        ``carried`` are the hashes that live instances run. A definition that was replaced comes back (a rollback)
        only when nobody carries its replacement any more: else an old instance that restarts in a rolling
        deployment leaves the newer one in force.
        """
        writes = [
            UpdateOne(
                {"_id": _PREFIX + definition.task},
                [{"$replaceWith": _announced(definition, carried)}],
                upsert=True,
            )
            for definition in definitions
        ]
        if not writes:
            return False
        with bounded(self._bound):
            result = await self._globals.bulk_write(writes, ordered=False)
        return bool(result.modified_count or result.upserted_count)

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
            request = {"_id": _PREFIX + task.name, "hash": task.planned.hash}
            with bounded(self._bound):
                result = await self._globals.update_one(
                    {**request, "$expr": {"$eq": [_EPOCH, task.epoch]}},
                    [{"$set": {"reconciled": True, "reconciledAt": NOW}}],
                )
            if result.matched_count:
                met.append(task.name)
        return met

    async def to_be_reconciled(self, names: Sequence[str] | None = None) -> None:
        """These tasks, or all, must be reconciled: history was lost, or somebody asked for it."""
        which = {"$regex": f"^{_PREFIX}"} if names is None else {"$in": [_PREFIX + name for name in names]}
        with bounded(self._bound):
            await self._globals.update_many({"_id": which}, [{"$set": {"reconciled": False, "epoch": _NEXT}}])


def trigger_json(definition: TaskDefinition) -> str:
    """The trigger as it is stored."""
    trigger = {"filter": definition.filter.raw, "watched": definition.projection.expression}
    return json_util.dumps(trigger, json_options=json_util.CANONICAL_JSON_OPTIONS)


def trigger_hash(definition: TaskDefinition) -> str:
    """Any difference in the filter, the projection or the collection makes another hash."""
    text = f"{definition.source} {trigger_json(definition)}"
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_LENGTH]


def planned(definition: TaskDefinition) -> PlannedTask:
    """A definition ready for the planner."""
    return PlannedTask(definition, trigger_hash(definition))


def _announced(definition: TaskDefinition, carried: Collection_[str]) -> Expr:
    hash_ = trigger_hash(definition)
    same: Expr = {"$eq": ["$hash", hash_]}
    known: Expr = {"$eq": [{"$type": "$hash"}, "string"]}
    replaced: Expr = first_set("$replaced", [])
    # Replaced before, and its replacement is carried by a live instance: an old instance that came back.
    outdated: Expr = {"$and": [{"$in": [hash_, replaced]}, {"$in": ["$hash", sorted(carried)]}]}
    # A trigger that changed is reconciled only where the user wants that; a new one always.
    done = when(known, not definition.evolution.reconcile_on_trigger_change, False)
    before: Expr = {"$setDifference": [{"$slice": [replaced, -_REPLACED]}, [hash_]]}
    fields = _fields(definition, hash_)
    version = definition.evolution.handler_version
    on_change = definition.evolution.on_handler_version_change
    in_force = {
        **{name: literal(value) for name, value in fields.items()},
        "reconciled": when(same, first_set("$reconciled", False), done),
        # Whatever was scanned for another trigger is worth nothing, also when this one was in force before.
        "epoch": when(same, _EPOCH, _NEXT),
        # A lower version (a rollback, an old instance) changes nothing.
        "handlerVersion": {"$max": [first_set("$handlerVersion", 0), version]},
        "onHandlerVersionChange": when(
            {"$gt": [first_set("$handlerVersion", 0), version]}, "$onHandlerVersionChange", literal(on_change)
        ),
        "reprocess": when(
            {"$and": [{"$lt": ["$handlerVersion", version]}, known, on_change != "none"]},
            {"version": version, "mode": literal(on_change)},
            "$reprocess",
        ),
        "definedAt": when(same, first_set("$definedAt", CLUSTER_TIME), CLUSTER_TIME),
        "replaced": when(
            {"$or": [same, {"$not": [known]}]}, replaced, {"$concatArrays": [before, ["$hash"]]}
        ),
    }
    return when(outdated, ROOT, merged(ROOT, in_force))


def _fields(definition: TaskDefinition, hash_: str) -> dict[str, Any]:
    return {
        "task": definition.task,
        "database": definition.source.database,
        "collection": definition.source.collection,
        "trigger": trigger_json(definition),
        "hash": hash_,
        "debounce": format_duration(definition.debounce),
        "maxWait": format_duration(definition.max_wait),
        "retryPolicy": describe(definition.retry_policy),
        "cleanupPolicy": {
            "deleteWhen": definition.cleanup_policy.delete_when,
            "keepFor": format_duration(definition.cleanup_policy.keep_for),
        },
        "reconcileOnTriggerChange": definition.evolution.reconcile_on_trigger_change,
        "executionHistoryLimit": definition.execution_history_limit,
        "priority": definition.priority,
    }


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
    )


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
