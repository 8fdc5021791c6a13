"""Plan statements: what a batch of changed ids makes of the task records, decided on the server.

One aggregate reads the documents through each task's own filter, computes the watched values there and merges
them into the records; the merge decides *new*, *changed*, *entered again*, *unchanged* or *dirty*. Only ids come
to this process.

The decision for a record that exists, in order:

1. Planned by a later leader: left alone. An older read must not land last.
2. Marked *left* or *parked*, or other watched values: it runs. It is ``pending`` after the debounce, or
   ``processing_dirty`` if it runs now. While its last run failed, it backs off at least by the policy's first
   delay; a document that never rests runs ``max_wait`` after the first of its changes.
3. Unchanged, but running: *touched*, so that a run that skips meanwhile does not lose the state that it skipped.
4. Unchanged: the term moves up where it is older; else nothing is written.

A reconciliation plans *lightly*: what is unchanged and does not run is left out before the merge, its term too. A
former leader's older read is of an event that the saved position has not passed; the next leader's plan of that event
moves the term, or mends the record. Where history was lost there is no such event, and nothing is left out.

Values so large that the record could not take its claims, errors and history in as well are refused here, as an
error of the document: found later, they would keep every group from being claimed or settled that has such a record.

A document outside its task's filter vanishes from that aggregate, so the records that exist among the batch are
marked *left* by a second one. Deleted documents are marked before the batch is planned: a document that was
deleted and inserted again is new.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from oplogue.model.definition import Namespace, TaskDefinition
from oplogue.model.outcomes import ERROR_LIMIT
from oplogue.model.states import Status
from oplogue.store.expressions import (
    IS_RUNNING,
    MARKS,
    NOW,
    ROOT,
    Expr,
    Table,
    after,
    first_set,
    is_set,
    literal,
    merged,
    milliseconds,
    when,
)

Pipeline = list[dict[str, Any]]

TOO_LARGE = "the watched values are too large, they have "

_KEY = ["sourceDocId", "task"]

_LARGEST_RECORD = 16 * 1024 * 1024
_ROOM, _ROOM_PER_ENTRY = 64 * 1024, 4 * ERROR_LIMIT + 256


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """A definition with the hash under which its records are planned."""

    definition: TaskDefinition
    hash: str


@dataclass(frozen=True, slots=True)
class Stamp:
    """Who plans, and up to which event: what fences former leaders and replayed events."""

    term: int
    event: Any = None
    """The cluster time of the newest event before the read."""
    now: datetime | None = None
    """The server's time, where a filter in query syntax asks for it."""
    lightly: bool = False
    """Most are expected to be unchanged, and are left as they are, though an earlier term planned them."""

    def marks(self) -> dict[str, Any]:
        """What a plan leaves on every record that it changes."""
        event = {} if self.event is None else {"event": literal(self.event)}
        return {"term": literal(self.term), **event}


def plan_pipeline(
    tasks: Sequence[PlannedTask],
    selection: Mapping[str, Any],
    records: Namespace,
    stamp: Stamp,
    *,
    all_new: bool = False,
) -> Pipeline:
    """Plan the documents of a selection (by ``_id``), for all of these tasks of their collection.

    ``all_new``: none of them is expected to have a record. The server inserts in batches then, at a fifth of the
    cost; where a record is there all the same it answers with a duplicate key, and has inserted the others.
    """
    branches = [
        [{"$match": task.definition.filter.match(stamp.now)}, {"$replaceWith": _new_record(task, stamp)}]
        for task in tasks
    ]
    when_matched = "fail" if all_new else [{"$replaceWith": _planned_again(tasks)}]
    merge = _merge(records, when_matched=when_matched, when_not_matched="insert")
    apart = _without_unchanged(records) if stamp.lightly and not all_new else []
    return [{"$match": dict(selection)}, *_side_by_side(branches), *apart, merge]


def leave_pipeline(
    candidates: Sequence[tuple[TaskDefinition, Sequence[Any]]], records: Namespace, stamp: Stamp
) -> Pipeline:
    """Mark records whose documents are outside their filter; ``candidates`` are ids that have a record."""
    everything = [id_ for _, ids in candidates for id_ in ids]
    branches = [
        [
            {"$match": {"_id": {"$in": list(ids)}, "$nor": [definition.filter.match(stamp.now)]}},
            {
                "$replaceWith": {
                    "sourceDocId": "$_id",
                    "task": literal(definition.task),
                    "oplogue": stamp.marks(),
                }
            },
        ]
        for definition, ids in candidates
    ]
    outside = _found_outside("$$new.oplogue", "$$new.oplogue.term", "$$new.oplogue.event")
    merge = _merge(records, when_matched=[{"$replaceWith": outside}], when_not_matched="discard")
    return [{"$match": {"_id": {"$in": everything}}}, *_side_by_side(branches), merge]


def deletion_update(deleted: Sequence[tuple[Any, Any]], stamp: Stamp) -> Pipeline:
    """Mark the records of deleted documents; ``deleted`` has each one's id and the cluster time of its event."""
    times = Table("$sourceDocId", [(id_, {"time": time}) for id_, time in deleted])
    mark = {"term": literal(stamp.term), "event": times.get("time")}
    replayed = {"$gte": [first_set("$oplogue.event", None), times.get("time")]}
    return [
        {"$replaceWith": times.bind(when(replayed, ROOT, _found_outside(mark, mark["term"], mark["event"])))}
    ]


def _new_record(task: PlannedTask, stamp: Stamp) -> dict[str, Any]:
    runs_at = after(NOW, milliseconds(task.definition.debounce))
    return {
        "sourceDocId": "$_id",
        "task": literal(task.definition.task),
        "status": literal(Status.PENDING),
        "attempts": literal(0),
        "lastObservedValues": _with_room(task.definition),
        "nextRunAt": runs_at,
        "dueAt": runs_at,
        "createdAt": NOW,
        "updatedAt": NOW,
        "oplogue": {"hash": literal(task.hash), "changedAt": NOW, **stamp.marks()},
    }


def _with_room(definition: TaskDefinition) -> Expr:
    """The watched values; an error that says so where they leave no room for what a record will hold besides."""
    room = min(_ROOM + _ROOM_PER_ENTRY * definition.execution_history_limit, _LARGEST_RECORD // 2)
    size = {"$bsonSize": "$$values"}
    # The server has no word for raising an error; that of a conversion cites what it could not convert.
    refused = {"$toInt": {"$concat": [TOO_LARGE, {"$toString": size}, " bytes"]}}
    return {
        "$let": {
            "vars": {"values": definition.projection.expression},
            "in": when({"$gt": [size, _LARGEST_RECORD - room]}, refused, "$$values"),
        }
    }


def _planned_again(tasks: Sequence[PlannedTask]) -> Expr:
    policies = Table("$task", [(task.definition.task, _policy(task.definition)) for task in tasks])
    other = {"$ne": ["$lastObservedValues", "$$new.lastObservedValues"]}
    changed = {"$or": [is_set("$oplogue.left"), is_set("$oplogue.parked"), other]}
    fires = merged(
        ROOT,
        {
            "lastObservedValues": "$$new.lastObservedValues",
            "updatedAt": NOW,
            "dueAt": "$$new.dueAt",
            "oplogue": merged(
                MARKS,
                "$$new.oplogue",
                {
                    "left": False,
                    "changedAt": _first_change(),
                    "event": _newest("$$new.oplogue.event"),
                },
                when(is_set("$oplogue.parked"), {"parked": False}, {}),
            ),
        },
        when(IS_RUNNING, {"status": literal(Status.PROCESSING_DIRTY)}, _pending_again(policies)),
    )
    return policies.bind(when(_planned_later("$$new.oplogue.term"), ROOT, when(changed, fires, _unchanged())))


def _policy(definition: TaskDefinition) -> dict[str, Any]:
    backoff = definition.backoff_after_change()
    return {
        "resets": definition.retry_policy.reset_retries_on_data_change,
        "backoff": None if backoff is None else milliseconds(backoff),
        "max_wait": milliseconds(definition.max_wait),
    }


def _pending_again(policies: Table) -> Expr:
    backing_off = {
        "$and": [
            {"$eq": ["$status", Status.PENDING]},
            {"$gt": ["$lastError", None]},
            {"$not": [is_set("$oplogue.manual")]},
        ]
    }
    backed_off = {
        "$max": [
            "$$new.nextRunAt",
            first_set(after("$lastFinalizedAt", policies.get("backoff")), "$nextRunAt"),
        ]
    }
    latest = {"$max": [NOW, after(_first_change(), policies.get("max_wait"))]}
    starts_over = {"$or": [policies.get("resets"), {"$eq": ["$status", Status.COMPLETED]}]}
    return {
        "status": literal(Status.PENDING),
        "nextRunAt": when(backing_off, backed_off, {"$min": ["$$new.nextRunAt", latest]}),
        "attempts": when(starts_over, 0, first_set("$attempts", 0)),
        "firstErrorAt": when(starts_over, None, first_set("$firstErrorAt", None)),
    }


def _first_change() -> Expr:
    """The first change since the last run began: the start of what ``max_wait`` bounds."""
    waiting = {"$in": ["$status", [Status.PENDING, Status.PROCESSING_DIRTY]]}
    return when(waiting, first_set("$oplogue.changedAt", "$$new.oplogue.changedAt"), NOW)


def _unchanged() -> Expr:
    outlived = {"$ne": ["$oplogue.term", "$$new.oplogue.term"]}
    unseen = {"$and": [IS_RUNNING, {"$ne": ["$oplogue.touched", True]}]}
    redefined = {"$and": [{"$ne": ["$nextRunAt", None]}, {"$ne": ["$oplogue.hash", "$$new.oplogue.hash"]}]}
    marks = {"term": "$$new.oplogue.term", "hash": "$$new.oplogue.hash"}
    marked = merged(ROOT, {"oplogue": merged(MARKS, marks, when(IS_RUNNING, {"touched": True}, {}))})
    return when({"$or": [outlived, unseen, redefined]}, marked, ROOT)


def _found_outside(mark: Expr, term: Expr, event: Expr) -> Expr:
    noted = {
        "$and": [
            is_set("$oplogue.left"),
            {"$or": [{"$not": [IS_RUNNING]}, is_set("$oplogue.touched")]},
        ]
    }
    marked = merged(
        ROOT,
        {
            "oplogue": merged(
                MARKS, mark, {"left": True, "event": _newest(event)}, when(IS_RUNNING, {"touched": True}, {})
            )
        },
    )
    return when({"$or": [_planned_later(term), noted]}, ROOT, marked)


def _newest(event: Expr) -> Expr:
    """A replay of older events must not lower the time of what was planned."""
    return {"$max": ["$oplogue.event", event]}


def _planned_later(term: Expr) -> Expr:
    return {"$and": [{"$isNumber": "$oplogue.term"}, {"$gt": ["$oplogue.term", term]}]}


def _side_by_side(branches: Sequence[Pipeline]) -> Pipeline:
    """Several pipelines over the same documents, their results in one stream: one read, one merge."""
    if len(branches) == 1:
        return list(branches[0])
    names = [f"b{number}" for number in range(len(branches))]
    return [
        {"$facet": dict(zip(names, branches, strict=True))},
        {"$project": {"all": {"$concatArrays": [f"${name}" for name in names]}}},
        {"$unwind": "$all"},
        {"$replaceWith": "$all"},
    ]


def _without_unchanged(records: Namespace) -> Pipeline:
    """New records, but not those that would change nothing: a look-up costs a quarter of the merge's decision."""
    same = {
        "$and": [
            {"$eq": ["$$known.task", "$task"]},
            {"$eq": ["$$known.lastObservedValues", "$lastObservedValues"]},
            {"$not": [is_set("$$known.oplogue.left")]},
            {"$not": [is_set("$$known.oplogue.parked")]},
            {"$in": ["$$known.status", [Status.PENDING, Status.COMPLETED, Status.FAILED]]},
        ]
    }
    unchanged = {"$anyElementTrue": [{"$map": {"input": "$known", "as": "known", "in": same}}]}
    theirs = {"from": records.collection, "localField": "sourceDocId", "foreignField": "sourceDocId"}
    return [
        {"$lookup": {**theirs, "as": "known"}},
        {"$match": {"$expr": {"$not": [unchanged]}}},
        {"$unset": "known"},
    ]


def _merge(records: Namespace, *, when_matched: Expr, when_not_matched: str) -> dict[str, Any]:
    return {
        "$merge": {
            "into": {"db": records.database, "coll": records.collection},
            "on": _KEY,
            "whenNotMatched": when_not_matched,
            "whenMatched": when_matched,
        }
    }
