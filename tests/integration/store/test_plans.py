"""What a plan makes of the task records: the rules of `oplogue.store.plans`, one by one."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import Binary, Decimal128, Int64, MaxKey, MinKey, ObjectId, Timestamp
from pymongo.errors import OperationFailure
from tests.support.rig import BOUND, LATER, LEASE, LONG_AGO, SECOND, Rig, is_about

from oplogue.model import states
from oplogue.model.retry import CronRetry, Exponential, Fixed, RetryPolicy
from oplogue.model.states import Transition
from oplogue.store.operations import run_again_update
from oplogue.store.planning import Change
from oplogue.store.plans import PlannedTask, leave_pipeline

Document = dict[str, Any]

MINUTE = timedelta(minutes=1)
DONE = states.completed(duration_ms=5, debounce=SECOND, history_limit=5)
GONE = states.skipped(duration_ms=5, debounce=SECOND, history_limit=5)


def retry_in(delay: timedelta, *, resets: bool = True) -> Transition:
    return states.retried(
        delay, error="boom", duration_ms=5, again_in=SECOND, resets_attempts=resets, history_limit=5
    )


def failed(*, resets: bool = True) -> Transition:
    return states.failed(
        error="boom", duration_ms=5, again_in=SECOND, resets_attempts=resets, history_limit=5
    )


def without(row: Mapping[str, Any], *fields: str) -> Document:
    return {name: value for name, value in row.items() if name not in fields}


async def a_planned_order(rig: Rig, task: PlannedTask, **fields: Any) -> None:
    await rig.documents.insert_one({"_id": 1, "status": "paid", "total": 1, **fields})
    await rig.plan(task)


async def change(rig: Rig, **fields: Any) -> None:
    await rig.documents.update_one({"_id": 1}, {"$set": fields})


# -- new, changed, unchanged


async def test_new_document_becomes_a_pending_record_after_its_debounce(rig: Rig) -> None:
    task = rig.task(debounce="7s")
    await rig.documents.insert_one({"_id": 1, "status": "paid", "total": 1})
    event, before = await rig.event(), await rig.now()
    await rig.plan(task, event=event, term=3)
    after = await rig.now()
    row = await rig.row()
    planned_at = row["createdAt"]
    assert is_about(planned_at, before, after)
    assert isinstance(row.pop("_id"), ObjectId)
    assert row == {
        "sourceDocId": 1,
        "task": "sync",
        "status": "pending",
        "attempts": 0,
        "lastObservedValues": {"total": 1},
        "nextRunAt": planned_at + timedelta(seconds=7),
        "dueAt": planned_at + timedelta(seconds=7),
        "createdAt": planned_at,
        "updatedAt": planned_at,
        "oplogue": {"hash": task.hash, "changedAt": planned_at, "term": 3, "event": event},
    }


async def test_document_outside_the_filter_gets_no_record(rig: Rig) -> None:
    await rig.documents.insert_one({"_id": 1, "status": "new", "total": 1})
    await rig.plan(rig.task())
    assert await rig.all_rows() == []


async def test_changed_values_make_it_pending_and_keep_its_past(rig: Rig) -> None:
    task = rig.task(debounce="7s")
    await a_planned_order(rig, task)
    done = await rig.run(1, DONE)
    await change(rig, total=2)
    event, before = await rig.event(), await rig.now()
    await rig.plan(task, event=event)
    after = await rig.now()
    row = await rig.row()
    assert is_about(row["updatedAt"], before, after)
    soon = row["updatedAt"] + timedelta(seconds=7)
    changed = {
        "status": "pending",
        "nextRunAt": soon,
        "dueAt": soon,
        "attempts": 0,
        "firstErrorAt": None,
        "lastObservedValues": {"total": 2},
        "updatedAt": row["updatedAt"],
        "oplogue": {**done["oplogue"], "changedAt": row["updatedAt"], "event": event, "left": False},
    }
    assert row == {**done, **changed}
    assert [entry["status"] for entry in row["executionHistory"]] == ["completed"]


ENDS: dict[str, Transition | None] = {
    "pending": None,
    "completed": DONE,
    "failed": failed(),
    "backing off": retry_in(MINUTE),
    "deferred": states.deferred(MINUTE),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
async def test_unchanged_record_is_not_written_at_all(rig: Rig, end: Transition | None) -> None:
    task = rig.task()
    await a_planned_order(rig, task)
    if end is not None:
        await rig.run(1, end)
    row, event = await rig.row(), await rig.event()
    await change(rig, unwatched="x")
    await rig.plan(task)
    assert await rig.row() == row
    assert await rig.written_since(event) == []


async def test_unchanged_record_under_a_new_term_moves_only_its_term(rig: Rig) -> None:
    task = rig.task()
    await a_planned_order(rig, task)
    row = await rig.run(1, DONE)
    await rig.plan(task, term=2)
    assert await rig.row() == {**row, "oplogue": {**row["oplogue"], "term": 2}}
    event = await rig.event()
    await rig.plan(task, term=2)
    assert await rig.written_since(event) == []


async def test_waiting_record_takes_the_hash_of_a_new_definition_and_is_not_run_for_it(rig: Rig) -> None:
    await a_planned_order(rig, rig.task())
    row = await rig.row()
    edited = rig.task(filter={"status": {"$in": ["paid"]}})
    await rig.plan(edited)
    assert await rig.row() == {**row, "oplogue": {**row["oplogue"], "hash": edited.hash}}


async def test_completed_record_is_not_written_for_a_new_definition(rig: Rig) -> None:
    await a_planned_order(rig, rig.task())
    await rig.run(1, DONE)
    event = await rig.event()
    await rig.plan(rig.task(filter={"status": {"$in": ["paid"]}}))
    assert await rig.written_since(event) == []


async def test_values_of_another_type_or_order_are_other_values(rig: Rig) -> None:
    task = rig.task()
    await a_planned_order(rig, task)
    for total in (True, "1", {"a": 1, "b": 2}, {"b": 2, "a": 1}, [1], None):
        await rig.run(1, DONE)
        await change(rig, total=total)
        await rig.plan(task)
        assert (await rig.row())["status"] == "pending", total
    await rig.run(1, DONE)
    await rig.documents.update_one({"_id": 1}, {"$unset": {"total": 1}})
    await rig.plan(task)
    row = await rig.row()
    assert (row["status"], row["lastObservedValues"]) == ("pending", {})


async def test_nan_is_not_planned_again_and_again(rig: Rig) -> None:
    task = rig.task()
    await a_planned_order(rig, task, total=float("nan"))
    await rig.run(1, DONE)
    event = await rig.event()
    await rig.plan(task)
    assert await rig.written_since(event) == []


# -- while it runs


async def test_change_while_running_makes_it_dirty_and_leaves_the_claim_alone(rig: Rig) -> None:
    task = rig.task(debounce="7s")
    await a_planned_order(rig, task)
    await rig.claim_one()
    claimed = await rig.row()
    await change(rig, total=2)
    event = await rig.event()
    await rig.plan(task, event=event)
    row = await rig.row()
    assert row == {
        **claimed,
        "status": "processing_dirty",
        "lastObservedValues": {"total": 2},
        "updatedAt": row["updatedAt"],
        "dueAt": row["updatedAt"] + timedelta(seconds=7),
        "oplogue": {**claimed["oplogue"], "changedAt": row["updatedAt"], "event": event, "left": False},
    }
    assert row["updatedAt"] > claimed["updatedAt"]


async def test_unchanged_while_running_is_touched_once(rig: Rig) -> None:
    task = rig.task()
    await a_planned_order(rig, task)
    await rig.claim_one()
    claimed = await rig.row()
    await rig.plan(task)
    assert await rig.row() == {**claimed, "oplogue": {**claimed["oplogue"], "touched": True}}
    event = await rig.event()
    await rig.plan(task)
    assert await rig.written_since(event) == []


async def test_leaving_while_running_is_left_and_touched(rig: Rig) -> None:
    task = rig.task()
    await a_planned_order(rig, task)
    await rig.claim_one()
    claimed = await rig.row()
    await change(rig, status="x")
    event = await rig.event()
    await rig.plan(task, event=event)
    marks = {"left": True, "touched": True, "event": event}
    assert await rig.row() == {**claimed, "oplogue": {**claimed["oplogue"], **marks}}


async def test_leaving_twice_while_running_touches_each_run(rig: Rig) -> None:
    # Left before this run began: the mark alone does not tell the run that its document is outside now.
    task = rig.task()
    await a_planned_order(rig, task)
    await change(rig, status="x")
    await rig.plan(task)
    await rig.claim_one()
    assert (await rig.row())["oplogue"]["touched"] is False
    await rig.plan(task)
    assert (await rig.row())["oplogue"]["touched"] is True


# -- leaving and coming back


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
async def test_document_outside_marks_its_record_left_and_nothing_else(
    rig: Rig, end: Transition | None
) -> None:
    task = rig.task()
    await a_planned_order(rig, task)
    if end is not None:
        await rig.run(1, end)
    row = await rig.row()
    await change(rig, status="x")
    event = await rig.event()
    await rig.plan(task, event=event)
    marks = {"left": True, "event": event}
    assert await rig.row() == {**row, "oplogue": {**row["oplogue"], **marks}}
    event = await rig.event()
    await rig.plan(task)
    assert await rig.written_since(event) == []


async def test_document_outside_that_has_no_record_gets_none(rig: Rig) -> None:
    await rig.documents.insert_one({"_id": 1, "status": "x"})
    await rig.plan(rig.task())
    assert await rig.all_rows() == []


async def test_record_that_was_deleted_before_its_mark_is_not_made_by_it(rig: Rig) -> None:
    task = rig.task()
    await a_planned_order(rig, task)
    await change(rig, status="x")
    pipeline = leave_pipeline([(task.definition, [1])], rig.source.tasks, await rig.stamp(task))
    await rig.rows.delete_many({})
    await (await rig.documents.aggregate(pipeline)).to_list()
    assert await rig.all_rows() == []


@pytest.mark.parametrize("end", [DONE, failed()], ids=["completed", "failed"])
async def test_entering_again_runs_whatever_the_values(rig: Rig, end: Transition) -> None:
    task = rig.task()
    await a_planned_order(rig, task)
    row = await rig.run(1, end)
    await change(rig, status="x")
    await rig.plan(task)
    await change(rig, status="paid")
    before = await rig.now()
    await rig.plan(task)
    again = await rig.row()
    assert (again["status"], again["attempts"], again["oplogue"]["left"]) == ("pending", 0, False)
    assert is_about(again["nextRunAt"], before, await rig.now(), plus=SECOND)
    assert again["lastObservedValues"] == row["lastObservedValues"]


async def test_entering_again_while_running_makes_it_dirty(rig: Rig) -> None:
    task = rig.task()
    await a_planned_order(rig, task)
    await rig.claim_one()
    await change(rig, status="x")
    await rig.plan(task)
    await change(rig, status="paid")
    await rig.plan(task)
    row = await rig.row()
    assert (row["status"], row["oplogue"]["left"]) == ("processing_dirty", False)


async def test_coming_back_between_two_plans_runs_nothing(rig: Rig) -> None:
    # Nobody saw it outside: the state that was handled is the state that is there.
    task = rig.task()
    await a_planned_order(rig, task)
    row = await rig.run(1, DONE)
    await change(rig, status="x")
    await change(rig, status="paid")
    await rig.plan(task)
    assert await rig.row() == row


# -- deletes


async def test_deleted_and_inserted_again_is_new(rig: Rig) -> None:
    task = rig.task()
    await a_planned_order(rig, task)
    row = await rig.run(1, DONE)
    deleted = await rig.delete(1)
    await rig.documents.insert_one({"_id": 1, "status": "paid", "total": 1})
    await rig.plan_deleted(task, deleted)
    again = await rig.row()
    assert (again["status"], again["attempts"], again["_id"]) == ("pending", 0, row["_id"])
    assert again["executionHistory"] == row["executionHistory"]


async def test_delete_marks_its_record_left_and_its_run_touched(rig: Rig) -> None:
    task = rig.task(filter=None)
    await a_planned_order(rig, task)
    await rig.claim_one()
    claimed = await rig.row()
    deleted = await rig.delete(1)
    await rig.plan_deleted(task, deleted)
    marks = {"left": True, "touched": True, "event": deleted[0].deleted_at}
    assert await rig.row() == {**claimed, "oplogue": {**claimed["oplogue"], **marks}}


async def test_replayed_delete_changes_nothing(rig: Rig) -> None:
    task = rig.task()
    await a_planned_order(rig, task)
    deleted = await rig.delete(1)
    await rig.plan_deleted(task, deleted)
    await rig.documents.insert_one({"_id": 1, "status": "paid", "total": 1})
    await rig.plan(task)
    row, event = await rig.run(1, DONE), await rig.event()
    await rig.leader().mark_deleted(
        rig.source, ["sync"], deleted, await rig.stamp(task), timedelta(seconds=5)
    )
    assert await rig.row() == row
    assert await rig.written_since(event) == []


async def test_replayed_delete_under_a_new_term_runs_nothing(rig: Rig) -> None:
    task = rig.task()
    await a_planned_order(rig, task)
    deleted = await rig.delete(1)
    await rig.documents.insert_one({"_id": 1, "status": "paid", "total": 1})
    await rig.plan_deleted(task, deleted)
    await rig.plan(task)
    row = await rig.run(1, DONE)
    await rig.plan_deleted(task, deleted, term=2)
    assert await rig.row() == {**row, "oplogue": {**row["oplogue"], "term": 2}}


async def test_replay_of_older_events_never_lowers_the_event_of_a_record(rig: Rig) -> None:
    # A new leader replays from an older position: an update, then the delete that followed it.
    task = rig.task()
    await a_planned_order(rig, task)
    updated_at = await rig.event()
    deleted = await rig.delete(1)
    await rig.documents.insert_one({"_id": 1, "status": "paid", "total": 1})
    await rig.plan_deleted(task, deleted)
    await rig.plan(task)
    planned_at = (await rig.row())["oplogue"]["event"]
    await change(rig, total=2)
    await rig.plan(task, event=updated_at, term=2)
    assert (await rig.row())["oplogue"]["event"] >= planned_at
    await rig.run(1, DONE)
    await rig.plan_deleted(task, deleted, term=2)
    assert (await rig.row())["status"] == "completed"


USUAL_IDS: tuple[Any, ...] = (
    "",
    "a\0b",
    "$status",
    "$$NOW",
    2,
    2.5,
    Int64(2**40),
    True,
    ObjectId(),
    datetime(2026, 1, 1, tzinfo=UTC),
    Binary(b"\0\1", 5),
    Binary.from_uuid(uuid.UUID(int=5)),
    Timestamp(5, 5),
    MinKey(),
    MaxKey(),
)
UNHASHABLE_IDS: dict[str, tuple[Any, ...]] = {
    "decimals": (Decimal128("2.25"), Decimal128("NaN")),
    "documents": ({"region": "eu", "number": 7}, {"a": [1, {"b": None}]}, {}),
}


async def test_ids_of_every_type_are_planned_left_and_deleted(rig: Rig) -> None:
    await _walk(rig, USUAL_IDS)


@pytest.mark.parametrize("ids", UNHASHABLE_IDS.values(), ids=UNHASHABLE_IDS)
async def test_ids_that_python_cannot_hash_are_planned_left_and_deleted(
    rig: Rig, ids: tuple[Any, ...]
) -> None:
    await _walk(rig, ids)


async def _walk(rig: Rig, ids: tuple[Any, ...]) -> None:
    """In, out, in, gone; a bystander is left alone."""
    task = rig.task()
    everybody = [*ids, "bystander"]
    await rig.documents.insert_many([{"_id": id_, "status": "paid", "total": 1} for id_ in everybody])
    await rig.plan(task, ids=everybody)
    bystander = await rig.row("bystander")
    assert await _left(rig, ids) == [None] * len(ids)
    for status, left in (("x", True), ("paid", False)):
        await rig.documents.update_many({"_id": {"$in": list(ids)}}, {"$set": {"status": status}})
        await rig.plan(task, ids=everybody)
        assert await _left(rig, ids) == [left] * len(ids)
    await rig.plan_deleted(task, await rig.delete(*ids))
    assert await _left(rig, ids) == [True] * len(ids)
    assert await rig.row("bystander") == bystander


async def _left(rig: Rig, ids: tuple[Any, ...]) -> list[Any]:
    rows = [await rig.row(id_) for id_ in ids]
    return [row["oplogue"].get("left") for row in rows]


async def test_ids_that_only_python_finds_equal_are_two_documents(rig: Rig) -> None:
    task = rig.task()
    await rig.documents.insert_many([{"_id": id_, "status": "paid", "total": 1} for id_ in (1, True, "1")])
    await rig.plan(task)
    assert {type(row["sourceDocId"]) for row in await rig.all_rows()} == {int, bool, str}
    first = await rig.delete(True)
    second = await rig.delete(1)
    await rig.plan_deleted(task, [*first, *second])
    rows = {type(row["sourceDocId"]).__name__: row["oplogue"] for row in await rig.all_rows()}
    marks = {name: row.get("left") for name, row in rows.items()}
    assert marks == {"int": True, "bool": True, "str": None}
    assert (rows["bool"]["event"], rows["int"]["event"]) == (first[0].last, second[0].last)


async def test_document_with_a_null_id_is_refused_and_plans_nothing_of_its_batch(rig: Rig) -> None:
    await rig.documents.insert_many([{"_id": id_, "status": "paid"} for id_ in (None, 1)])
    with pytest.raises(OperationFailure) as refused:
        await rig.plan(rig.task())
    assert refused.value.code == 51132


# -- terms


async def test_plan_of_a_lower_term_changes_nothing(rig: Rig) -> None:
    task = rig.task()
    await a_planned_order(rig, task)
    await rig.plan(task, term=5)
    row = await rig.run(1, DONE)
    for fields in ({"total": 2}, {"status": "x"}):
        await change(rig, **fields)
        event = await rig.event()
        await rig.plan(task, term=4)
        assert await rig.row() == row
        assert await rig.written_since(event) == []
    deleted = await rig.delete(1)
    event = await rig.event()
    await rig.plan_deleted(task, deleted, term=4)
    assert await rig.row() == row
    assert await rig.written_since(event) == []


async def test_plan_of_a_lower_term_does_not_touch_a_run(rig: Rig) -> None:
    task = rig.task()
    await a_planned_order(rig, task)
    await rig.plan(task, term=5)
    await rig.claim_one()
    row = await rig.row()
    await rig.plan(task, term=4)
    await change(rig, total=2)
    await rig.plan(task, term=4)
    await change(rig, status="x")
    await rig.plan(task, term=4)
    assert await rig.row() == row


async def test_every_plan_that_writes_leaves_its_term(rig: Rig) -> None:
    task = rig.task()
    await a_planned_order(rig, task)
    for term, fields in ((2, {"total": 2}), (3, {"status": "x"}), (4, {"status": "paid"})):
        await change(rig, **fields)
        await rig.plan(task, term=term)
        assert (await rig.row())["oplogue"]["term"] == term
    await rig.plan_deleted(task, await rig.delete(1), term=5)
    assert (await rig.row())["oplogue"]["term"] == 5


# -- debounce and max_wait


async def test_each_change_renews_the_debounce(rig: Rig) -> None:
    task = rig.task(debounce="20s")
    await a_planned_order(rig, task)
    await rig.age(10 * SECOND, "nextRunAt", "oplogue.changedAt")
    await change(rig, total=2)
    before = await rig.now()
    await rig.plan(task)
    row = await rig.row()
    assert is_about(row["nextRunAt"], before, await rig.now(), plus=20 * SECOND)


async def test_max_wait_caps_a_debounce_that_is_renewed_for_ever(rig: Rig) -> None:
    task = rig.task(debounce="20s", max_wait="50s")
    await a_planned_order(rig, task)
    first = (await rig.row())["oplogue"]["changedAt"]
    waits: list[float] = []
    for total in range(2, 9):
        await rig.age(10 * SECOND, "nextRunAt", "oplogue.changedAt")
        first -= 10 * SECOND
        await change(rig, total=total)
        before = await rig.now()
        await rig.plan(task)
        row = await rig.row()
        assert row["oplogue"]["changedAt"] == first
        waits.append(round((row["nextRunAt"] - before).total_seconds()))
    assert waits == [20, 20, 20, 10, 0, 0, 0]


async def test_max_wait_begins_anew_with_the_first_change_after_a_run(rig: Rig) -> None:
    task = rig.task(debounce="20s", max_wait="50s")
    await a_planned_order(rig, task)
    await rig.run(1, DONE)
    await rig.age(100 * SECOND, "oplogue.changedAt")
    await change(rig, total=2)
    before = await rig.now()
    await rig.plan(task)
    row = await rig.row()
    assert is_about(row["nextRunAt"], before, await rig.now(), plus=20 * SECOND)
    assert row["oplogue"]["changedAt"] == row["updatedAt"]


async def test_max_wait_counts_from_the_first_change_while_it_ran(rig: Rig) -> None:
    task = rig.task(debounce="20s", max_wait="50s")
    await a_planned_order(rig, task)
    record = await rig.claim_one()
    await change(rig, total=2)
    await rig.plan(task)
    running = await rig.row()
    first = running["oplogue"]["changedAt"]
    assert first >= running["startedAt"]
    await change(rig, total=3)
    await rig.plan(task)
    assert (await rig.row())["oplogue"]["changedAt"] == first
    assert await rig.settle(record, DONE)
    await rig.age(45 * SECOND, "nextRunAt", "oplogue.changedAt")
    await change(rig, total=4)
    await rig.plan(task)
    row = await rig.row()
    assert row["nextRunAt"] == first - 45 * SECOND + 50 * SECOND


ENDS_THAT_WAIT: dict[str, Transition] = {
    "deferred": states.deferred(60 * MINUTE),
    "moved": states.moved({"total": 0}, duration_ms=1, debounce=MINUTE, history_limit=5),
}


@pytest.mark.parametrize("end", ENDS_THAT_WAIT.values(), ids=ENDS_THAT_WAIT)
async def test_change_of_a_record_that_waits_after_a_run_waits_its_debounce(
    rig: Rig, end: Transition
) -> None:
    # Its first change since the run began is this one; those that the run was for are over.
    task = rig.task(debounce="20s", max_wait="50s")
    await a_planned_order(rig, task)
    await rig.run(1, end)
    await rig.age(100 * SECOND, "oplogue.changedAt")
    await change(rig, total=2)
    before = await rig.now()
    await rig.plan(task)
    assert is_about((await rig.row())["nextRunAt"], before, await rig.now(), plus=20 * SECOND)


# -- backoff


async def test_change_during_backoff_waits_for_the_first_delay_since_the_failure(rig: Rig) -> None:
    task = rig.task(retry_policy=Exponential(min="100s", max="1d"))
    await a_planned_order(rig, task)
    failing = await rig.run(1, retry_in(60 * MINUTE))
    await change(rig, total=2)
    await rig.plan(task)
    row = await rig.row()
    assert row["nextRunAt"] == failing["lastFinalizedAt"] + 100 * SECOND
    assert row["status"] == "pending"


async def test_change_during_backoff_waits_for_the_debounce_if_that_is_longer(rig: Rig) -> None:
    task = rig.task(debounce="30s", retry_policy=Exponential(min="10s", max="1d"))
    await a_planned_order(rig, task)
    await rig.run(1, retry_in(60 * MINUTE))
    await change(rig, total=2)
    before = await rig.now()
    await rig.plan(task)
    assert is_about((await rig.row())["nextRunAt"], before, await rig.now(), plus=30 * SECOND)


async def test_change_during_backoff_keeps_the_time_of_a_cron_policy(rig: Rig) -> None:
    task = rig.task(retry_policy=CronRetry("0 3 * * *"))
    await a_planned_order(rig, task)
    failing = await rig.run(1, retry_in(60 * MINUTE))
    await change(rig, total=2)
    await rig.plan(task)
    row = await rig.row()
    assert (row["nextRunAt"], row["lastObservedValues"]) == (failing["nextRunAt"], {"total": 2})


@pytest.mark.parametrize(
    "policy",
    [Exponential(min="100s", max="1d"), CronRetry("0 3 * * *")],
    ids=["exponential", "cron"],
)
@pytest.mark.parametrize("resets", [True, False])
async def test_failing_document_that_keeps_changing_keeps_backing_off(
    rig: Rig, policy: RetryPolicy, resets: bool
) -> None:
    options: Document = {"reset_retries_on_data_change": resets}
    if isinstance(policy, CronRetry):
        policy = CronRetry(policy.expression, **options)
    else:
        policy = Exponential(min="100s", max="1d", **options)
    task = rig.task(retry_policy=policy)
    await a_planned_order(rig, task)
    await rig.run(1, retry_in(60 * MINUTE, resets=resets))
    await change(rig, total=2)
    await rig.plan(task)
    waits_until = (await rig.row())["nextRunAt"]
    for total in (3, 4):
        await change(rig, total=total)
        await rig.plan(task)
        assert (await rig.row())["nextRunAt"] == waits_until


async def test_change_after_a_retry_by_hand_does_not_bring_the_backoff_back(rig: Rig) -> None:
    task = rig.task(retry_policy=Fixed("1h"))
    await a_planned_order(rig, task)
    await rig.run(1, retry_in(60 * MINUTE))
    await rig.rows.update_one({}, run_again_update())
    await change(rig, total=2)
    before = await rig.now()
    await rig.plan(task)
    assert is_about((await rig.row())["nextRunAt"], before, await rig.now(), plus=SECOND)
    await rig.age(MINUTE, "nextRunAt")
    failing = await rig.run(1, retry_in(60 * MINUTE))
    await change(rig, total=3)
    await rig.plan(task)
    assert (await rig.row())["nextRunAt"] == failing["lastFinalizedAt"] + 60 * MINUTE


async def test_change_after_the_backoff_of_a_success_is_not_held_back(rig: Rig) -> None:
    task = rig.task(retry_policy=Fixed("1h"))
    await a_planned_order(rig, task)
    await rig.run(1, retry_in(60 * MINUTE))
    await rig.run(1, DONE)
    await change(rig, total=2)
    before = await rig.now()
    await rig.plan(task)
    assert is_about((await rig.row())["nextRunAt"], before, await rig.now(), plus=SECOND)


# -- attempts


@pytest.mark.parametrize("resets", [True, False])
@pytest.mark.parametrize(
    ("end", "always"),
    [(DONE, True), (GONE, True), (retry_in(MINUTE), False), (failed(), False)],
    ids=["completed", "skipped", "backing off", "failed"],
)
async def test_attempts_start_over_with_new_data_as_the_policy_says_and_always_after_success(
    rig: Rig, end: Transition, always: bool, resets: bool
) -> None:
    task = rig.task(retry_policy=Fixed("10s", reset_retries_on_data_change=resets))
    await a_planned_order(rig, task)
    first = await rig.run(1, retry_in(MINUTE, resets=resets))
    assert (first["attempts"], first["firstErrorAt"]) == (1, first["lastFinalizedAt"])
    second = await rig.run(1, end)
    assert second["attempts"] == 2
    await change(rig, total=2)
    await rig.plan(task)
    row = await rig.row()
    if resets or always:
        assert (row["attempts"], row["firstErrorAt"]) == (0, None)
    else:
        assert (row["attempts"], row["firstErrorAt"]) == (2, first["firstErrorAt"])


# -- several tasks in one statement


TRAILS: tuple[tuple[Document, ...], ...] = (
    ({"status": "paid", "total": 1},),
    ({"status": "x", "total": 1},),
    ({"status": "paid", "total": 1}, {"status": "paid", "total": 2}),
    ({"status": "paid", "total": 1}, {"status": "x", "total": 1}, {"status": "paid", "total": 1}),
    ({"status": "paid", "total": 1}, {"status": "x", "total": 2}),
    ({"status": "paid"}, {"status": "paid", "total": [1, {"a": "$$NOW"}]}, {"status": "new"}),
)
RUNS_BETWEEN: tuple[Transition | None, ...] = (None, DONE, failed(), retry_in(MINUTE))


async def test_several_tasks_in_one_statement_equal_the_same_one_by_one(rig: Rig) -> None:
    tasks = [
        rig.task("by-total"),
        rig.task("all", filter=None, watch=None, debounce="3s"),
        rig.task("big", filter={"$gt": ["$total", 1]}, watch={"n.total": "$total"}, debounce="9s"),
        rig.task("kept", retry_policy=Fixed("70s", reset_retries_on_data_change=False)),
        rig.task("cron", retry_policy=CronRetry("0 3 * * *"), max_wait="2s"),
        rig.task("$$NOW", filter={"status": {"$ne": "x"}}, watch=["status"]),
    ]
    together = await _trails(rig, [tasks])
    await rig.rows.delete_many({})
    await rig.documents.delete_many({})
    apart = await _trails(rig, [[task] for task in tasks])
    assert together == apart
    assert len(together) > 20


async def _trails(rig: Rig, groups: list[list[PlannedTask]]) -> list[Document]:
    """Walk documents along their trails, some runs in between; what is left, with dates as distances."""
    numbers = range(len(TRAILS) * len(RUNS_BETWEEN))
    for step in range(max(map(len, TRAILS))):
        for number in numbers:
            trail = TRAILS[number % len(TRAILS)]
            if step < len(trail):
                await rig.documents.replace_one({"_id": number}, trail[step], upsert=True)
        for group in groups:
            await rig.plan(*group)
        for number in numbers:
            end = RUNS_BETWEEN[number // len(TRAILS)]
            if end is not None and step == 0:
                for record in await rig.claim(number):
                    await rig.settle(record, end)
    rows = await rig.rows.find().sort([("sourceDocId", 1), ("task", 1)]).to_list()
    now = await rig.now()
    return [_rounded(without(row, "_id"), now) for row in rows]


def _rounded(value: Any, now: datetime) -> Any:
    """Dates in steps of a minute from now; tokens and events, which differ from run to run, as their types."""
    if isinstance(value, dict):
        return {name: _rounded(member, now) for name, member in value.items()}  # pyright: ignore
    if isinstance(value, list):
        return [_rounded(member, now) for member in value]  # pyright: ignore
    if isinstance(value, datetime):
        return round((value - now) / MINUTE)
    return type(value).__name__ if isinstance(value, (ObjectId, Timestamp)) else value


# -- user data are data


HOSTILE: dict[str, Any] = {
    "variable": "$$NOW",
    "root": "$$ROOT",
    "field": "$status",
    "unknown variable": "$$nothing.at.all",
    "function": {"$function": {"body": "function() { return 1 }", "args": [], "lang": "js"}},
    "literal": {"$literal": 1},
    "operator": {"$add": [1, 2]},
    "two operators": {"$add": [1, 2], "$subtract": "x"},
    "not an operator": {"$nonsense": {"$$ROOT": 1}},
    "dotted": {"a.b": {"c.d": "$e"}},
    "array": ["$status", {"$gt": "$$NOW"}],
}


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("whole", [True, False], ids=["whole document", "projection"])
async def test_documents_are_never_evaluated(rig: Rig, value: Any, whole: bool) -> None:
    task = rig.task(watch=None if whole else ["total"])
    await a_planned_order(rig, task, total=value)
    values = {"_id": 1, "status": "paid", "total": value} if whole else {"total": value}
    assert (await rig.row())["lastObservedValues"] == values
    # A moved record gets its values from this process.
    moved = states.moved(values, duration_ms=1, debounce=SECOND, history_limit=5)
    assert (await rig.run(1, moved))["lastObservedValues"] == values
    row, event = await rig.run(1, DONE), await rig.event()
    await rig.plan(task)
    assert await rig.row() == row
    assert await rig.written_since(event) == []


@pytest.mark.parametrize("name", ["$$NOW", "$task", "a.b", "$$nothing", "'\"\\"])
async def test_names_of_tasks_are_never_evaluated(rig: Rig, name: str) -> None:
    tasks = [rig.task(name), rig.task("plain")]
    await rig.documents.insert_one({"_id": 1, "status": "paid", "total": 1})
    await rig.plan(*tasks)
    assert (await rig.row(1, name))["status"] == "pending"
    await change(rig, status="x")
    await rig.plan(*tasks)
    assert (await rig.row(1, name))["oplogue"]["left"] is True


async def test_error_texts_of_parked_documents_are_never_evaluated(rig: Rig) -> None:
    task = rig.task()
    stamp = await rig.stamp(task)
    await rig.leader().park(task, "$$ROOT", "$$NOW {$add: 1}", stamp, timedelta(seconds=5))
    row = await rig.row("$$ROOT")
    assert row["lastError"] == "could not be planned: $$NOW {$add: 1}"


# -- watching whole documents


async def test_without_a_projection_any_change_of_the_document_runs_it(rig: Rig) -> None:
    task = rig.task(watch=None, filter=None)
    await a_planned_order(rig, task, lines=[{"sku": "a"}])
    document = {"_id": 1, "status": "paid", "total": 1, "lines": [{"sku": "a"}]}
    assert (await rig.row())["lastObservedValues"] == document
    await rig.run(1, DONE)
    await rig.documents.update_one({"_id": 1}, {"$set": {"lines.0.note": "x"}})
    await rig.plan(task)
    row = await rig.row()
    assert (row["status"], row["lastObservedValues"]["lines"]) == ("pending", [{"sku": "a", "note": "x"}])


# -- records that another system wrote


def foreign(status: str, **fields: Any) -> Document:
    """A record as the system that a database is moved in from leaves it: without a sub-document of ours."""
    return {
        "_id": ObjectId(),
        "sourceDocId": 1,
        "task": "sync",
        "status": status,
        "attempts": 1,
        "nextRunAt": None,
        "dueAt": LONG_AGO,
        "lastObservedValues": {"total": 1},
        "createdAt": LONG_AGO,
        "updatedAt": LONG_AGO,
        "lastFinalizedAt": LONG_AGO,
        **fields,
    }


@pytest.mark.parametrize("status", ["completed", "failed"])
async def test_foreign_record_of_the_same_values_is_not_run_again(rig: Rig, status: str) -> None:
    task = rig.task()
    await rig.documents.insert_one({"_id": 1, "status": "paid", "total": 1})
    moved_in = foreign(status)
    await rig.rows.insert_one(moved_in)
    await rig.plan(task)
    assert await rig.row() == {**moved_in, "oplogue": {"term": 1, "hash": task.hash}}
    event = await rig.event()
    await rig.plan(task)
    assert await rig.written_since(event) == []


@pytest.mark.parametrize(
    ("status", "next_status"),
    [
        ("completed", "pending"),
        ("failed", "pending"),
        ("pending", "pending"),
        ("processing", "processing_dirty"),
    ],
)
async def test_foreign_record_of_other_values_runs(rig: Rig, status: str, next_status: str) -> None:
    task = rig.task()
    await rig.documents.insert_one({"_id": 1, "status": "paid", "total": 2})
    at = LATER if status in ("pending", "processing") else None
    await rig.rows.insert_one(foreign(status, nextRunAt=at))
    before = await rig.now()
    await rig.plan(task)
    row = await rig.row()
    assert (row["status"], row["lastObservedValues"]) == (next_status, {"total": 2})
    if next_status == "pending":
        assert is_about(row["nextRunAt"], before, await rig.now(), plus=SECOND)
    else:
        assert row["nextRunAt"] == LATER


async def test_foreign_record_leaves_and_comes_back(rig: Rig) -> None:
    task = rig.task()
    await rig.documents.insert_one({"_id": 1, "status": "x", "total": 1})
    await rig.rows.insert_one(foreign("completed"))
    await rig.plan(task)
    assert (await rig.row())["oplogue"]["left"] is True
    await change(rig, status="paid")
    await rig.plan(task)
    assert (await rig.row())["status"] == "pending"


async def test_deleted_document_of_a_foreign_record_is_new_when_it_comes_back(rig: Rig) -> None:
    task = rig.task()
    await rig.documents.insert_one({"_id": 1, "status": "paid", "total": 1})
    await rig.rows.insert_one(foreign("completed"))
    deleted = await rig.delete(1)
    await rig.documents.insert_one({"_id": 1, "status": "paid", "total": 1})
    await rig.plan_deleted(task, deleted)
    assert (await rig.row())["status"] == "pending"


# -- documents that can't be planned


async def park(rig: Rig, task: PlannedTask, id_: Any = 1) -> None:
    await rig.leader().park(task, id_, "why", await rig.stamp(task), timedelta(seconds=5))


async def test_parked_document_shows_as_a_failed_record(rig: Rig) -> None:
    task = rig.task()
    before = await rig.now()
    await park(rig, task)
    row = await rig.row()
    assert is_about(row["lastFinalizedAt"], before, await rig.now())
    assert (row["status"], row["attempts"], row["nextRunAt"]) == ("failed", 0, None)
    assert row["lastError"] == "could not be planned: why"
    assert row["oplogue"]["parked"] is True


async def test_parking_keeps_what_a_record_was(rig: Rig) -> None:
    task = rig.task()
    await a_planned_order(rig, task)
    done = await rig.run(1, DONE)
    await park(rig, task)
    row = await rig.row()
    kept = ("_id", "createdAt", "attempts", "lastSuccess", "executionHistory", "lastObservedValues")
    assert {name: row[name] for name in kept} == {name: done[name] for name in kept}
    assert (row["status"], row["nextRunAt"]) == ("failed", None)


async def test_document_with_a_null_id_is_parked_like_any_other(rig: Rig) -> None:
    await park(rig, rig.task(), None)
    assert (await rig.row(None))["status"] == "failed"


async def test_parked_document_that_can_be_planned_again_runs(rig: Rig) -> None:
    task = rig.task(watch={"rate": {"$divide": [1, "$total"]}})
    await a_planned_order(rig, task)
    await rig.run(1, DONE)
    await change(rig, total=0)
    with pytest.raises(OperationFailure):
        await rig.plan(task)
    await park(rig, task)
    await change(rig, total=1)
    await rig.plan(task)
    row = await rig.row()
    assert (row["status"], row["oplogue"].get("parked", False)) == ("pending", False)


async def test_parking_leaves_a_run_alone_and_does_not_wait_for_it(rig: Rig) -> None:
    task = rig.task()
    await a_planned_order(rig, task)
    record = await rig.claim_one()
    await park(rig, task)
    row = await rig.row()
    assert (row["status"], row["oplogue"]["token"]) == ("processing", record.token)
    assert row["nextRunAt"] > LONG_AGO + LEASE


# -- collections that compare in their own way


async def test_collection_with_a_collation_of_its_own_is_planned(rig: Rig) -> None:
    await rig.db.create_collection("orders", collation={"locale": "en", "strength": 1})
    await rig.records.ensure_indexes()
    task = rig.task(watch=["status"])
    await rig.documents.insert_many([{"_id": 1, "status": "PAID"}, {"_id": 2, "status": "paid"}])
    await rig.plan(task)
    found = [row["_id"] for row in await rig.documents.find({"status": "paid"}).to_list()]
    assert [row["sourceDocId"] for row in await rig.all_rows()] == found
    await rig.run(2, DONE)
    await rig.documents.update_one({"_id": 2}, {"$set": {"status": "PÁID"}})
    await rig.plan(task)
    # The filter compares as the collection does; watched values are compared to the letter.
    assert (await rig.row(2))["status"] == "pending"


async def test_changes_of_one_document_keep_the_newest_time_and_the_last_delete() -> None:
    one = Change(1, Timestamp(5, 1), Timestamp(5, 1))
    one.later(Change(1, Timestamp(4, 1), Timestamp(4, 1), Timestamp(4, 1)))
    one.later(Change(1, Timestamp(7, 1), Timestamp(7, 1)))
    assert one == Change(1, Timestamp(4, 1), Timestamp(7, 1), Timestamp(4, 1))


# -- reconciliations


async def plan_lightly(rig: Rig, *tasks: PlannedTask, term: int = 2) -> None:
    """Plan all documents as a reconciliation does."""
    stamp = replace(await rig.stamp(*tasks, term=term), lightly=True)
    await rig.leader(term).plan_where(tasks, {}, stamp, BOUND)


async def test_a_light_plan_leaves_records_that_are_unchanged_as_they_are(rig: Rig) -> None:
    one, other = rig.task("one"), rig.task("other", watch=["status"])
    await rig.documents.insert_many([{"_id": id_, "status": "paid", "total": 1} for id_ in (1, 2, True, "1")])
    await rig.plan(one, other)
    before = await rig.all_rows()
    await plan_lightly(rig, one, other)
    assert await rig.all_rows() == before


@pytest.mark.parametrize(
    "mark",
    [
        {"lastObservedValues": {"total": 0}},
        {"lastObservedValues": {"total": True}},
        {"oplogue__left": True},
        {"oplogue__parked": True},
        {"status": "processing"},
        {"status": "processing_dirty"},
        {"status": "nonsense"},
    ],
    ids=str,
)
async def test_a_light_plan_decides_as_any_other_where_something_is_to_be_done(
    rig: Rig, mark: Document
) -> None:
    task = rig.task()
    await rig.documents.insert_one({"_id": 1, "status": "paid", "total": 1})
    ended: list[Document] = []
    for lightly in (False, True):
        await rig.rows.delete_many({})
        await rig.plan(task)
        await rig.run(1, DONE)
        await rig.edit(**mark)
        stamp = replace(await rig.stamp(task, term=2), lightly=lightly)
        await rig.leader(2).plan_where([task], {}, stamp, BOUND)
        row = await rig.row()
        ended.append({name: row.get(name) for name in ("status", "lastObservedValues", "attempts")})
        marks = ("left", "parked", "touched", "term")
        ended[-1] |= {name: row["oplogue"].get(name) for name in marks}
    assert ended[0] == ended[1]
    assert ended[1]["term"] == 2


async def test_a_light_plan_makes_records_that_are_missing(rig: Rig) -> None:
    one, other = rig.task("one"), rig.task("other")
    await rig.documents.insert_one({"_id": 1, "status": "paid", "total": 1})
    await rig.plan(one)
    await plan_lightly(rig, one, other)
    assert {row["task"] for row in await rig.all_rows()} == {"one", "other"}


async def test_whether_a_collection_compares_to_the_letter_is_known(rig: Rig) -> None:
    assert await rig.leader().compares_to_the_letter(rig.source, BOUND)
    await rig.db.create_collection("orders", collation={"locale": "en", "strength": 1})
    assert not await rig.leader().compares_to_the_letter(rig.source, BOUND)
