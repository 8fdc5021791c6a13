"""What an instance's announcement makes of a stored definition: one expression, decided on the server.

Several instances announce the same task, over and over, and in a rolling deployment not alike. What settles them:

- A *revision* names everything that is stored of a definition. One that was replaced, or that has a lower version,
  comes into force (a rollback) only when no live instance carries the other one: else an old instance that restarts,
  or only announces itself again, leaves the newer one in force. So of two revisions side by side one stays, however
  often both are announced.
- A *trigger* (filter and watched values) that changed is saved together with "not reconciled yet".
- The handler's version only rises. A rise whose policy reprocesses is noted with the moment: what ran before it is
  to run again. One that is under way is not lost to the next rise: see `_asked`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from bson import json_util

from oplogue.model.canonical import canonical_filter, canonical_projection
from oplogue.model.definition import TaskDefinition
from oplogue.model.durations import format_duration
from oplogue.model.policies import HIGHEST_VERSION
from oplogue.model.retry import describe
from oplogue.store.expressions import CLUSTER_TIME, NOW, ROOT, Expr, first_set, literal, merged, when


def _version(field: str) -> Expr:
    """A version as it is stored; one that was edited by hand into something else is none, and is mended so."""
    whole = {"$in": [{"$type": field}, ["int", "long"]]}
    return when({"$and": [whole, {"$gt": [field, 0]}, {"$lte": [field, HIGHEST_VERSION]}]}, field, 0)


_HASH_LENGTH = 16
_REPLACED = 20
"""How many replaced revisions are remembered."""
EPOCH: Expr = when({"$in": [{"$type": "$epoch"}, ["int", "long"]]}, "$epoch", 0)
# Not a mere count: a definition that was deleted and announced again must not repeat a number.
NEXT_EPOCH: Expr = {"$max": [{"$add": [EPOCH, 1]}, {"$toLong": NOW}]}
_VERSION: Expr = _version("$handlerVersion")
_REQUIRED: Expr = _version("$requires")
_UNDER_WAY: Expr = when({"$isArray": "$reprocess"}, "$reprocess", [])
_KNOWN: Expr = {"$eq": [{"$type": "$hash"}, "string"]}


def trigger_json(definition: TaskDefinition) -> str:
    """The trigger as it is stored."""
    return _json({"filter": definition.filter.raw, "watched": definition.projection.expression})


def trigger_hash(definition: TaskDefinition) -> str:
    """Any difference in the filter, the projection or the collection makes another hash; order alone is none."""
    return _digest(f"{definition.source} {_json(_canonical(definition))}")


def in_order_of(definition: TaskDefinition, stored: TaskDefinition | None) -> TaskDefinition:
    """The definition as it will be stored: in the order of the one in force, where order is all that differs.

    Records have their watched values in that order, and to the server documents in another order are others:
    whoever sorts a projection does not mean to run every task again.
    """
    if stored is None:
        return definition
    one, other = _canonical(stored), _canonical(definition)
    same_filter, same_values = (_json(one[part]) == _json(other[part]) for part in ("filter", "watched"))
    return replace(
        definition,
        filter=stored.filter if same_filter else definition.filter,
        projection=stored.projection if same_values else definition.projection,
    )


def revision(definition: TaskDefinition) -> str:
    """Any difference in anything that is stored makes another revision."""
    return _digest(_json(_fields(definition) | _versions(definition)))


def announced(definition: TaskDefinition, carried: Collection[str]) -> Expr:
    """The stored definition after the announcement; ``carried`` are the revisions of the other live instances."""
    mine, evolution = revision(definition), definition.evolution
    replaced: Expr = when({"$isArray": "$replaced"}, "$replaced", [])
    # Replaced before, or of a lower version, and what is in force is carried by a live instance: old code came back.
    older = {"$or": [{"$in": [mine, replaced]}, {"$lt": [evolution.handler_version, _version("$version")]}]}
    outdated: Expr = {"$and": [older, {"$in": ["$revision", sorted(carried)]}]}
    others: Expr = {"$filter": {"input": replaced, "cond": {"$ne": ["$$this", mine]}}}
    in_force = {
        **{name: literal(value) for name, value in _fields(definition).items()},
        "trigger": literal(trigger_json(definition)),
        "revision": mine,
        "version": evolution.handler_version,
        "replaced": when(
            {"$in": [first_set("$revision", None), [mine, None]]},
            others,
            {"$slice": [{"$concatArrays": [others, ["$revision"]]}, -_REPLACED]},
        ),
        "removedAt": None,
        **_trigger_fields(definition),
        **_version_fields(definition),
    }
    return when(outdated, ROOT, merged(ROOT, in_force))


def _canonical(definition: TaskDefinition) -> dict[str, object]:
    return {
        "filter": canonical_filter(definition.filter),
        "watched": canonical_projection(definition.projection.expression),
    }


def _trigger_fields(definition: TaskDefinition) -> dict[str, Expr]:
    same: Expr = {"$eq": ["$hash", trigger_hash(definition)]}
    # A trigger that changed is reconciled only where the user wants that; a new one always. What was still to be
    # reconciled under the last trigger still is.
    filled_in = {"$not": [definition.evolution.reconcile_on_trigger_change]}
    kept = {"$and": [first_set("$reconciled", False), {"$or": [same, filled_in]}]}
    return {
        "reconciled": when(_KNOWN, kept, False),
        # Whatever was scanned for another trigger is worth nothing, also when this one was in force before.
        "epoch": when(same, EPOCH, NEXT_EPOCH),
        "definedAt": when(same, first_set("$definedAt", CLUSTER_TIME), CLUSTER_TIME),
    }


def _version_fields(definition: TaskDefinition) -> dict[str, Expr]:
    """A lower version (a rollback, an old instance) changes nothing."""
    version, policy = definition.evolution.handler_version, definition.evolution.on_handler_version_change
    rises: Expr = {"$lt": [_VERSION, version]}
    reprocesses: Expr = {"$and": [rises, policy != "none"]}
    return {
        "handlerVersion": {"$max": [_VERSION, version]},
        "onHandlerVersionChange": when(
            {"$gt": [_VERSION, version]}, "$onHandlerVersionChange", literal(policy)
        ),
        "requires": when(reprocesses, version, _REQUIRED),
        "reprocess": when(
            {"$and": [reprocesses, _KNOWN, {"$gt": [_VERSION, 0]}]}, _asked(version, policy), _UNDER_WAY
        ),
    }


def _asked(version: int, policy: str) -> Expr:
    """The resets that are to be done: this one, and of those under way what it doesn't include.

    A reset of everything includes all others. One of the failed includes an earlier one of the failed, but what
    is left of an earlier one of everything goes on.
    """
    asked = [{"version": version, "mode": literal(policy), "askedAt": NOW, "last": None, "swept": False}]
    if policy == "reprocess_all":
        return asked
    larger = {"$filter": {"input": _UNDER_WAY, "cond": {"$eq": ["$$this.mode", "reprocess_all"]}}}
    return {"$concatArrays": [larger, asked]}


def _fields(definition: TaskDefinition) -> dict[str, Any]:
    return {
        "task": definition.task,
        "database": definition.source.database,
        "collection": definition.source.collection,
        "hash": trigger_hash(definition),
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


def _versions(definition: TaskDefinition) -> dict[str, Any]:
    evolution = definition.evolution
    return {"version": evolution.handler_version, "onChange": evolution.on_handler_version_change}


def _json(value: object) -> str:
    return json_util.dumps(value, json_options=json_util.CANONICAL_JSON_OPTIONS)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_LENGTH]
