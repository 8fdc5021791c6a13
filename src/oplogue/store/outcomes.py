"""Outcome statements: transitions compiled to one fenced update for all records that end alike.

The clock is the server's: a transition says "in 10 s", the statement says ``$$NOW + 10 s``. Whether a record
became dirty while it ran is known to the server alone, so both answers travel in one statement.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oplogue.model.states import RUNNING, Reason, Status, Transition
from oplogue.store.expressions import (
    MARKS,
    NOW,
    REMOVE,
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

_DIRTY = {"$eq": ["$status", Status.PROCESSING_DIRTY]}
_BY_HAND = is_set("$oplogue.manual")
"""Retried by hand while it ran: the run after this one comes at once, with a full set of attempts."""


def fence(ids: list[Any], token: Any) -> dict[str, Any]:
    """Only records that are still owned by this claim and not settled yet."""
    return {"_id": {"$in": ids}, "oplogue.token": token, "status": {"$in": list(RUNNING)}}


def renewal(lease_ms: int) -> list[dict[str, Any]]:
    """Another lease from now on."""
    return [{"$set": {"nextRunAt": after(NOW, lease_ms)}}]


def settle_update(transitions: Mapping[Any, Transition]) -> list[dict[str, Any]]:
    """The update for records (by id) whose transitions have one reason; one row of constants where all are equal."""
    first = next(iter(transitions.values()))
    alike = all(transition is first or transition == first for transition in transitions.values())
    rows = {None: first} if alike else transitions
    table = Table("$_id", [(id_, _row(transition)) for id_, transition in rows.items()])
    fields = _fields(first, table)
    if alike:
        return [{"$set": fields}]
    return [{"$set": {name: table.bind(value) for name, value in fields.items()}}]


def _row(transition: Transition) -> dict[str, Any]:
    return {
        "run_in": None if transition.run_in is None else milliseconds(transition.run_in),
        "run_at": transition.run_at,
        "again_in": milliseconds(transition.again_in),
        "resets": transition.resets_attempts,
        "duration": transition.duration_ms,
        "error": transition.error,
        "trace": transition.trace,
        "values": transition.values,
        "limit": transition.history_limit,
    }


def _fields(kind: Transition, row: Table) -> dict[str, Expr]:
    """Every field that this kind of transition writes. All expressions read the record as it was before."""
    again = _again(kind)
    fields: dict[str, Expr] = {
        "status": when(again, literal(Status.PENDING), literal(kind.status)),
        "nextRunAt": when(again, _runs_again_at(row), _next_run_at(kind, row)),
        "attempts": _attempts(kind, row, again),
        "oplogue.touched": REMOVE,
        # Until the next claim: what is planned before it is not put off by a backoff.
        "oplogue.manual": when(_BY_HAND, True, REMOVE),
    }
    if kind.counts:
        fields |= _finalized(kind, row)
    if not kind.counts:
        fields["firstErrorAt"] = when(_BY_HAND, None, "$firstErrorAt")
    elif kind.error is not None:
        fields["firstErrorAt"] = when(_starts_over(row, again), None, first_set("$firstErrorAt", NOW))
    elif kind.succeeded:
        fields["firstErrorAt"] = None
    if kind.trace is not None:
        fields["oplogue.trace"] = row.get("trace")
    if kind.status is Status.COMPLETED:
        fields["completedAt"] = when(again, first_set("$completedAt", None), NOW)
    if kind.leaves:
        fields["oplogue.left"] = when(again, first_set("$oplogue.left", False), True)
    if kind.reason is Reason.MOVED:
        fields |= _moved(row, again)
    return fields


def _again(kind: Transition) -> Expr:
    """Whether the record runs once more, whatever this run's end would have made of it."""
    if kind.reason is Reason.DEFERRED:
        return literal(False)
    if kind.reason in (Reason.SKIPPED, Reason.MOVED):
        return {"$or": [_DIRTY, is_set("$oplogue.touched")]}
    return _DIRTY


def _runs_again_at(row: Table) -> Expr:
    return when(_BY_HAND, NOW, after(NOW, row.get("again_in")))


def _next_run_at(kind: Transition, row: Table) -> Expr:
    if kind.status is not Status.PENDING:
        return None
    return row.get("run_at") if kind.run_at is not None else after(NOW, row.get("run_in"))


def _attempts(kind: Transition, row: Table, again: Expr) -> Expr:
    if not kind.counts:
        return when(_BY_HAND, 0, {"$max": [0, {"$subtract": ["$attempts", 1]}]})
    if kind.reason is Reason.MOVED:
        return 0
    return when(_starts_over(row, again), 0, "$attempts")


def _starts_over(row: Table, again: Expr) -> Expr:
    """Whether the record begins a new sequence of attempts."""
    return {"$and": [again, {"$or": [row.get("resets"), _BY_HAND]}]}


def _finalized(kind: Transition, row: Table) -> dict[str, Expr]:
    """The times, the error and the history of a run that counted."""
    kept = Status.COMPLETED if kind.succeeded else Status.FAILED
    entry: dict[str, Expr] = {"at": NOW, "status": literal(kept), "durationMs": row.get("duration")}
    fields: dict[str, Expr] = {"lastFinalizedAt": NOW}
    if kind.error is None:
        fields["lastError"] = None
        fields["lastSuccess"] = {"at": NOW, "durationMs": row.get("duration")}
    else:
        entry["error"] = row.get("error")
        fields["lastError"] = row.get("error")
    history = when({"$isArray": ["$executionHistory"]}, "$executionHistory", [])
    if kind.history_limit:
        kept_entries = {"$slice": [{"$concatArrays": [history, [entry]]}, -kind.history_limit]}
        fields["executionHistory"] = kept_entries
    return fields


def _moved(row: Table, again: Expr) -> dict[str, Expr]:
    runs_at = after(NOW, row.get("run_in"))
    return {
        "lastObservedValues": when(again, "$lastObservedValues", row.get("values")),
        "oplogue.left": when(again, first_set("$oplogue.left", False), False),
        "updatedAt": when(again, "$updatedAt", NOW),
        "dueAt": when(again, "$dueAt", runs_at),
    }


def claim_update(
    token: Any, owner: str, lease_ms: int, *, suspect: bool, alone: bool
) -> list[dict[str, Any]]:
    """Take records for one lease. A suspect is a record whose last lease was lost."""
    # A suspect may have been retried by hand while it ran.
    counted = {"$and": [{"$isNumber": "$attempts"}, {"$not": [_BY_HAND]}]}
    attempts = when(counted, {"$add": ["$attempts", 1]}, 1)
    lost = when({"$isNumber": "$oplogue.lost"}, {"$add": ["$oplogue.lost", 1]}, 1) if suspect else 0
    marks = {
        "token": token,
        "by": literal(owner),
        "alone": alone,
        "lost": lost,
        "touched": False,
        "manual": False,
        # What the document was debounced for is what runs now.
        "changedAt": None,
    }
    return [
        {
            "$set": {
                "status": literal(Status.PROCESSING),
                "nextRunAt": after(NOW, lease_ms),
                "startedAt": NOW,
                "attempts": attempts,
                "oplogue": merged(MARKS, marks),
            }
        }
    ]


def dead_letter_update(error: str, history_limit: int) -> list[dict[str, Any]]:
    """Fail records for good that lost their lease each time they ran: nobody is left to report for them."""
    entry = {"at": NOW, "status": literal(Status.FAILED), "durationMs": 0, "error": literal(error)}
    history = when({"$isArray": ["$executionHistory"]}, "$executionHistory", [])
    return [
        {
            "$set": {
                # What killed the process may be mended by the change that came meanwhile.
                "status": when(_DIRTY, literal(Status.PENDING), literal(Status.FAILED)),
                "nextRunAt": when(_DIRTY, NOW, None),
                "attempts": when(_DIRTY, 0, "$attempts"),
                "lastError": literal(error),
                "firstErrorAt": when(_DIRTY, None, first_set("$firstErrorAt", NOW)),
                "lastFinalizedAt": NOW,
                "oplogue.token": REMOVE,
                **(
                    {"executionHistory": {"$slice": [{"$concatArrays": [history, [entry]]}, -history_limit]}}
                    if history_limit
                    else {}
                ),
            }
        }
    ]
