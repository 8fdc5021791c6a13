"""Claims and the ends of runs: what `oplogue.store.tasks` writes, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import ObjectId
from bson.datetime_ms import DatetimeMS
from pymongo import MongoClient
from pymongo.errors import AutoReconnect, OperationFailure
from tests.support.rig import LATER, LEASE, LONG_AGO, SECOND, Document, Rig, is_about

from oplogue.model import states
from oplogue.model.definition import Namespace
from oplogue.model.record import ClaimedRecord
from oplogue.model.states import Transition
from oplogue.store.renewals import renew, renew_blocking
from oplogue.store.tasks import TaskRecords, Wanted

MINUTE = timedelta(minutes=1)
DEBOUNCE = timedelta(seconds=7)
BACKOFF = timedelta(seconds=30)
NEW_VALUES: Document = {"total": 9}

COMPLETED = states.completed(duration_ms=5, debounce=DEBOUNCE, history_limit=3)
SKIPPED = states.skipped(duration_ms=5, debounce=DEBOUNCE, history_limit=3)
MOVED = states.moved(NEW_VALUES, duration_ms=5, debounce=DEBOUNCE, history_limit=3)
DEFERRED = states.deferred(MINUTE)
DEFERRED_TO_A_DATE = states.deferred(LATER)
RELEASED = states.released(debounce=DEBOUNCE)


def retried(*, resets: bool = True, error: str = "boom") -> Transition:
    return states.retried(
        MINUTE, error=error, duration_ms=5, again_in=BACKOFF, resets_attempts=resets, history_limit=3
    )


def failed(*, resets: bool = True) -> Transition:
    return states.failed(
        error="boom", duration_ms=5, again_in=BACKOFF, resets_attempts=resets, history_limit=3
    )


EVERY_KIND: dict[str, Transition] = {
    "completed": COMPLETED,
    "skipped": SKIPPED,
    "moved": MOVED,
    "retried": retried(),
    "failed": failed(),
    "deferred": DEFERRED,
    "deferred to a date": DEFERRED_TO_A_DATE,
    "released": RELEASED,
}
every_kind = pytest.mark.parametrize("end", EVERY_KIND.values(), ids=EVERY_KIND)


async def a_planned_order(rig: Rig, *ids: Any) -> None:
    await rig.documents.insert_many([{"_id": id_, "status": "paid", "total": 1} for id_ in ids or (1,)])
    await rig.plan(rig.task())


async def a_run(rig: Rig, *, attempts: int = 1, **marks: Any) -> ClaimedRecord:
    """A run of a record with a past, and what else a test wants of its record."""
    await a_planned_order(rig)
    past = {
        "attempts": attempts - 1,
        "firstErrorAt": LONG_AGO if attempts > 1 else None,
        "lastError": "before" if attempts > 1 else None,
        "completedAt": LONG_AGO,
        "lastFinalizedAt": LONG_AGO,
        "lastSuccess": {"at": LONG_AGO, "durationMs": 1},
        "executionHistory": [{"at": LONG_AGO, "status": "completed", "durationMs": 1}],
    }
    await rig.edit(1, **past)
    record = await rig.claim_one()
    if marks:
        await rig.edit(1, **marks)
    return record


class Settled:
    """One run's end, with what is needed to say what became of the record."""

    def __init__(self, before: Document, after: Document, since: datetime, until: datetime) -> None:
        self.before = before
        self.after = after
        self._since = since
        self._until = until

    @property
    def changed(self) -> Document:
        """The fields that are other than before; dates of now and later as how much later."""
        names = {**self.before, **self.after}
        known = {name: self.after.get(name, "gone") for name in names if self._differs(name)}
        return {name: self._relative(value) for name, value in known.items()}

    def _differs(self, name: str) -> bool:
        return name not in self.before or self.before[name] != self.after.get(name, "gone")

    def _relative(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self._relative(member) for name, member in value.items()}  # pyright: ignore
        if isinstance(value, list):
            return [self._relative(member) for member in value]  # pyright: ignore
        if not isinstance(value, datetime):
            return value
        for later in (timedelta(), DEBOUNCE, BACKOFF, MINUTE, LEASE):
            if is_about(value, self._since, self._until, plus=later):
                return later
        return value


async def settle(rig: Rig, record: ClaimedRecord, end: Transition) -> Settled:
    before, since = await rig.row(), await rig.now()
    assert await rig.settle(record, end)
    return Settled(before, await rig.row(), since, await rig.now())


NOW = timedelta()
PAST: list[Document] = [{"at": LONG_AGO, "status": "completed", "durationMs": 1}]


def marks(row: Document, **others: Any) -> Document:
    """The sub-document of ours, without the marks that a run's end takes away."""
    kept = {name: mark for name, mark in row["oplogue"].items() if name not in ("touched", "manual")}
    return {**kept, **others}


# -- claims


async def test_claim_takes_what_is_due_for_one_lease(rig: Rig) -> None:
    await a_planned_order(rig)
    planned = await rig.edit(1, nextRunAt=LONG_AGO)
    before = await rig.now()
    (record,) = await rig.records.claim([planned["_id"]], owner="$$NOW", lease=LEASE)
    row = await rig.row()
    assert is_about(row["startedAt"], before, await rig.now())
    claim = {"token": record.token, "by": "$$NOW", "alone": False, "lost": 0}
    assert row == {
        **planned,
        "status": "processing",
        "nextRunAt": row["startedAt"] + LEASE,
        "startedAt": row["startedAt"],
        "attempts": 1,
        "oplogue": {**planned["oplogue"], **claim, "touched": False, "manual": False, "changedAt": None},
    }
    assert record == ClaimedRecord(
        id=planned["_id"],
        task="sync",
        doc_id=1,
        attempts=1,
        values={"total": 1},
        token=record.token,
        first_error_at=None,
        planned_under=planned["oplogue"]["hash"],
    )


NOT_DUE: dict[str, Document] = {
    "later": {"nextRunAt": LATER},
    "running": {"status": "processing"},
    "dirty": {"status": "processing_dirty"},
    "completed": {"status": "completed"},
    "failed": {"status": "failed"},
    "no date": {"nextRunAt": None},
    "a text for a date": {"nextRunAt": "2020-01-01"},
    "a number for a date": {"nextRunAt": 0},
    "no status": {"status": None},
    "another status": {"status": "foo"},
}


@pytest.mark.parametrize("fields", NOT_DUE.values(), ids=NOT_DUE)
async def test_claim_leaves_what_is_not_due(rig: Rig, fields: Document) -> None:
    await a_planned_order(rig)
    row = await rig.edit(1, **{"nextRunAt": LONG_AGO, **fields})
    assert await rig.records.claim([row["_id"]], owner="me", lease=LEASE) == []
    assert await rig.row() == row


async def test_two_claims_of_the_same_records_share_them(rig: Rig) -> None:
    await a_planned_order(rig, 1, 2, 3)
    ids = [(await rig.edit(id_, nextRunAt=LONG_AGO))["_id"] for id_ in (1, 2, 3)]
    one = await rig.records.claim(ids[:2], owner="one", lease=LEASE)
    two = await rig.records.claim(ids, owner="two", lease=LEASE)
    assert [[record.doc_id for record in records] for records in (one, two)] == [[1, 2], [3]]


async def test_claimed_records_come_in_the_order_in_which_they_were_asked_for(rig: Rig) -> None:
    await a_planned_order(rig, *range(20))
    ids = [(await rig.edit(id_, nextRunAt=LONG_AGO))["_id"] for id_ in reversed(range(20))]
    claimed = await rig.records.claim(ids, owner="me", lease=LEASE)
    assert [record.id for record in claimed] == ids


async def test_records_that_somebody_put_in_under_odd_ids_are_claimed_or_left_out(rig: Rig) -> None:
    due: Document = {"status": "pending", "nextRunAt": LONG_AGO, "task": "t", "attempts": 0}
    ids: list[Any] = ["$$NOW", 5, None, {"a": 1}]
    await rig.rows.insert_many([{**due, "_id": id_, "sourceDocId": number} for number, id_ in enumerate(ids)])
    look = await rig.records.look(["t"], {"t": Wanted(10)})
    # Documents as ids can't be worked with.
    assert sorted(map(str, look.due["t"])) == ["$$NOW", "5", "None"]
    claimed = await rig.records.claim(look.due["t"], owner="me", lease=LEASE)
    assert [record.id for record in claimed] == look.due["t"]
    await rig.rows.update_many({}, {"$set": {"status": "processing", "nextRunAt": LONG_AGO}})
    assert len(await rig.records.suspects(["t"], 10)) == 3


class AnswerLost(TaskRecords):
    """Records whose next update is done, and its answer lost."""

    def lose_next_answer(self, rig: Rig) -> None:
        records = rig.rows

        class Losing:
            async def update_many(self, *arguments: Any) -> None:
                await records.update_many(*arguments)
                raise AutoReconnect("connection closed")

            def __getattr__(self, name: str) -> Any:
                return getattr(records, name)

        self._records = Losing()  # type: ignore[assignment]  # stands in for the collection


async def test_claim_whose_answer_was_lost_is_found_by_its_token(rig: Rig) -> None:
    await a_planned_order(rig)
    row = await rig.edit(1, nextRunAt=LONG_AGO)
    records = AnswerLost(rig.client, rig.source, globals_=rig.globals, bound=SECOND * 20)
    records.lose_next_answer(rig)
    (record,) = await records.claim([row["_id"]], owner="me", lease=LEASE)
    after = await rig.row()
    assert (after["oplogue"]["token"], after["attempts"]) == (record.token, 1)


class Interrupted(TaskRecords):
    """Records to which something happens between the two steps of a claim: the update, and the read."""

    def then(self, rig: Rig, happens: Callable[[], Awaitable[Any]]) -> None:
        records = rig.rows

        class Interrupting:
            async def update_many(self, *arguments: Any) -> Any:
                result = await records.update_many(*arguments)
                await happens()
                return result

            def __getattr__(self, name: str) -> Any:
                return getattr(records, name)

        self._records = Interrupting()  # type: ignore[assignment]  # stands in for the collection


@pytest.mark.parametrize("by_hand", [False, True], ids=["changed", "changed and retried by hand"])
async def test_values_that_moved_on_within_a_claim_are_what_runs_and_not_once_more(
    rig: Rig, by_hand: bool
) -> None:
    await a_planned_order(rig)
    row = await rig.edit(1, nextRunAt=LONG_AGO)

    async def moves_on() -> None:
        await rig.documents.update_one({"_id": 1}, {"$set": NEW_VALUES})
        await rig.plan(rig.task())
        if by_hand:
            await rig.edit(1, oplogue__manual=True)

    records = Interrupted(rig.client, rig.source, globals_=rig.globals, bound=SECOND * 20)
    records.then(rig, moves_on)
    (record,) = await records.claim([row["_id"]], owner="me", lease=LEASE)
    assert record.values == NEW_VALUES
    # Whoever retried it by hand wants a run that begins after that.
    assert (await rig.row())["status"] == ("processing_dirty" if by_hand else "processing")


async def test_deferral_is_no_attempt_and_a_failure_is_one(rig: Rig) -> None:
    await a_planned_order(rig)
    attempts: list[int] = []
    for end in (DEFERRED, DEFERRED, retried(), DEFERRED, RELEASED, retried()):
        record = await rig.claim_one()
        attempts.append(record.attempts)
        assert await rig.settle(record, end)
    assert attempts == [1, 1, 1, 2, 2, 2]


# -- fences


@every_kind
async def test_late_outcome_after_reclaim_changes_nothing_and_is_told(rig: Rig, end: Transition) -> None:
    await a_planned_order(rig)
    late = await rig.claim_one()
    await rig.claim_one(suspects=True, owner="another")
    row = await rig.row()
    assert await rig.records.settle(late.token, {late.id: end}) == {late.id}
    assert await rig.records.settle_one(late.token, late.id, end) == "lost"
    assert await rig.row() == row


async def test_late_completion_after_the_newer_run_ended_changes_nothing(rig: Rig) -> None:
    await a_planned_order(rig)
    late = await rig.claim_one()
    newer = await rig.claim_one(suspects=True)
    assert await rig.settle(newer, retried())
    row = await rig.row()
    assert not await rig.settle(late, COMPLETED)
    assert not await rig.records.complete(late.token, late.id, COMPLETED, None)
    assert await rig.row() == row


async def test_completion_of_a_record_that_was_deleted_is_told(rig: Rig) -> None:
    await a_planned_order(rig)
    record = await rig.claim_one()
    await rig.rows.delete_many({})
    assert not await rig.settle(record, COMPLETED)
    assert not await rig.records.complete(record.token, record.id, COMPLETED, None)
    assert await rig.all_rows() == []


async def test_only_those_of_a_group_that_were_lost_are_told(rig: Rig) -> None:
    await a_planned_order(rig, 1, 2, 3)
    group = await rig.claim()
    await rig.claim_one(2, suspects=True)
    taken = await rig.row(2)
    ends = {record.id: end for record, end in zip(group, (COMPLETED, COMPLETED, failed()), strict=True)}
    assert await rig.records.settle(group[0].token, ends) == {group[1].id}
    assert await rig.row(2) == taken
    assert [(await rig.row(id_))["status"] for id_ in (1, 3)] == ["completed", "failed"]


@every_kind
async def test_outcome_that_is_sent_again_is_no_lost_lease_and_is_written_once(
    rig: Rig, end: Transition
) -> None:
    await a_planned_order(rig)
    record = await rig.claim_one()
    assert await rig.settle(record, end)
    row, event = await rig.row(), await rig.event()
    assert await rig.settle(record, end)
    assert await rig.records.settle_one(record.token, record.id, end) == "settled before"
    assert await rig.row() == row
    assert await rig.written_since(event) == []


async def test_outcome_sent_again_after_a_change_was_planned_is_no_lost_lease(rig: Rig) -> None:
    await a_planned_order(rig)
    record = await rig.claim_one()
    assert await rig.settle(record, COMPLETED)
    await rig.documents.update_one({"_id": 1}, {"$set": {"total": 2}})
    await rig.plan(rig.task())
    row = await rig.row()
    assert await rig.settle(record, COMPLETED)
    assert await rig.row() == row


async def test_completion_in_a_transaction_stands_only_if_it_is_committed(rig: Rig) -> None:
    await a_planned_order(rig)
    record = await rig.claim_one()
    running = await rig.row()
    async with rig.client.start_session() as session:
        await session.start_transaction()
        assert await rig.records.complete(record.token, record.id, COMPLETED, session)
        await session.abort_transaction()
        assert await rig.row() == running
        await session.start_transaction()
        assert await rig.records.complete(record.token, record.id, COMPLETED, session)
        await session.commit_transaction()
    assert (await rig.row())["status"] == "completed"
    assert await rig.records.settle_one(record.token, record.id, failed()) == "settled before"
    assert (await rig.row())["status"] == "completed"


async def test_completion_in_a_transaction_of_a_lost_record_is_told(rig: Rig) -> None:
    await a_planned_order(rig)
    late = await rig.claim_one()
    await rig.claim_one(suspects=True)
    row = await rig.row()
    async with rig.client.start_session() as session, await session.start_transaction():
        assert not await rig.records.complete(late.token, late.id, COMPLETED, session)
    assert await rig.row() == row


async def test_renewal_gives_another_lease_to_what_is_owned_and_tells_what_is_not(rig: Rig) -> None:
    await a_planned_order(rig, 1, 2, 3)
    mine = await rig.claim()
    await rig.claim_one(2, suspects=True)
    assert await rig.settle(mine[2], COMPLETED)
    taken, settled = await rig.row(2), await rig.row(3)
    await rig.edit(1, nextRunAt=LONG_AGO)
    owned = {mine[0].token: [record.id for record in mine]}
    before = await rig.now()
    lost = await renew(rig.client, rig.source, owned, LEASE, SECOND * 20)
    assert lost == [(mine[1].token, mine[1].id)]
    assert is_about((await rig.row(1))["nextRunAt"], before, await rig.now(), plus=LEASE)
    assert (await rig.row(2), await rig.row(3)) == (taken, settled)


def test_renewal_from_a_thread_does_the_same(database_uri: str) -> None:
    with MongoClient[Document](database_uri, tz_aware=True) as client:
        source = Namespace(client.get_default_database().name, "orders")
        rows = client.get_default_database()["orders_tasks"]
        running = {"status": "processing", "nextRunAt": LONG_AGO}
        rows.insert_many(
            [{"_id": number, **running, "oplogue": {"token": token}} for number, token in enumerate("xyx")]
        )
        lost = renew_blocking(client, source, {"x": [0, 1, 2]}, LEASE, timedelta(seconds=20))
        renewed = [row["nextRunAt"] > LONG_AGO for row in rows.find().sort("_id", 1)]
        rows.drop()
    assert lost == [("x", 1)]
    assert renewed == [True, False, True]


# -- what each end makes of a record


async def test_completion_writes_all_that_is_known_of_a_success(rig: Rig) -> None:
    run = await a_run(rig, attempts=3)
    settled = await settle(rig, run, COMPLETED)
    assert settled.changed == {
        "status": "completed",
        "nextRunAt": None,
        "completedAt": NOW,
        "lastFinalizedAt": NOW,
        "lastSuccess": {"at": NOW, "durationMs": 5},
        "lastError": None,
        "firstErrorAt": None,
        "executionHistory": [*PAST, {"at": NOW, "status": "completed", "durationMs": 5}],
        "oplogue": marks(settled.before),
    }


async def test_skip_counts_as_success_and_marks_the_record_left(rig: Rig) -> None:
    run = await a_run(rig, attempts=3)
    settled = await settle(rig, run, SKIPPED)
    assert settled.changed == {
        "status": "completed",
        "nextRunAt": None,
        "completedAt": NOW,
        "lastFinalizedAt": NOW,
        "lastSuccess": {"at": NOW, "durationMs": 5},
        "lastError": None,
        "firstErrorAt": None,
        "executionHistory": [*PAST, {"at": NOW, "status": "completed", "durationMs": 5}],
        "oplogue": marks(settled.before, left=True),
    }


async def test_values_that_moved_are_planned_as_they_were_read(rig: Rig) -> None:
    run = await a_run(rig, attempts=3, oplogue__left=True)
    settled = await settle(rig, run, MOVED)
    assert settled.changed == {
        "status": "pending",
        "nextRunAt": DEBOUNCE,
        "dueAt": DEBOUNCE,
        "updatedAt": NOW,
        "lastObservedValues": NEW_VALUES,
        "attempts": 0,
        "lastFinalizedAt": NOW,
        "lastSuccess": {"at": NOW, "durationMs": 5},
        "lastError": None,
        "firstErrorAt": None,
        "executionHistory": [*PAST, {"at": NOW, "status": "completed", "durationMs": 5}],
        "oplogue": marks(settled.before, left=False),
    }


async def test_first_failure_begins_a_sequence(rig: Rig) -> None:
    run = await a_run(rig, attempts=1)
    settled = await settle(rig, run, retried())
    assert settled.changed == {
        "status": "pending",
        "nextRunAt": MINUTE,
        "lastFinalizedAt": NOW,
        "lastError": "boom",
        "firstErrorAt": NOW,
        "executionHistory": [*PAST, {"at": NOW, "status": "failed", "durationMs": 5, "error": "boom"}],
        "oplogue": marks(settled.before),
    }


async def test_further_failure_keeps_when_the_sequence_began(rig: Rig) -> None:
    run = await a_run(rig, attempts=2)
    settled = await settle(rig, run, retried())
    assert settled.changed == {
        "status": "pending",
        "nextRunAt": MINUTE,
        "lastFinalizedAt": NOW,
        "lastError": "boom",
        "executionHistory": [*PAST, {"at": NOW, "status": "failed", "durationMs": 5, "error": "boom"}],
        "oplogue": marks(settled.before),
    }
    assert settled.after["attempts"] == 2


async def test_last_failure_is_a_dead_letter(rig: Rig) -> None:
    run = await a_run(rig, attempts=5)
    settled = await settle(rig, run, failed())
    assert settled.changed == {
        "status": "failed",
        "nextRunAt": None,
        "lastFinalizedAt": NOW,
        "lastError": "boom",
        "executionHistory": [*PAST, {"at": NOW, "status": "failed", "durationMs": 5, "error": "boom"}],
        "oplogue": marks(settled.before),
    }
    assert (settled.after["attempts"], settled.after["firstErrorAt"]) == (5, LONG_AGO)


@pytest.mark.parametrize(
    ("end", "at"), [(DEFERRED, MINUTE), (DEFERRED_TO_A_DATE, LATER), (RELEASED, NOW)], ids=str
)
@pytest.mark.parametrize("dirty", [False, True])
async def test_deferral_and_release_take_the_attempt_back_and_say_nothing_of_a_run(
    rig: Rig, end: Transition, at: Any, dirty: bool
) -> None:
    run = await a_run(rig, attempts=3, status="processing_dirty" if dirty else "processing")
    settled = await settle(rig, run, end)
    # A record that became dirty runs at the deferral's time too; a release waits its debounce.
    expected = DEBOUNCE if dirty and end is RELEASED else at
    assert settled.changed == {
        "status": "pending",
        "nextRunAt": expected,
        "attempts": 2,
        "oplogue": marks(settled.before),
    }


async def test_deferral_of_a_record_with_a_manual_mark_waits_all_the_same(rig: Rig) -> None:
    run = await a_run(rig, status="processing_dirty", oplogue__manual=True)
    settled = await settle(rig, run, DEFERRED)
    assert (settled.changed["status"], settled.changed["nextRunAt"]) == ("pending", MINUTE)


# -- dirty, touched, manual

COUNTED: dict[str, tuple[Transition, timedelta]] = {
    "completed": (COMPLETED, DEBOUNCE),
    "skipped": (SKIPPED, DEBOUNCE),
    "moved": (MOVED, DEBOUNCE),
    "retried": (retried(), BACKOFF),
    "failed": (failed(), BACKOFF),
}
counted = pytest.mark.parametrize(("end", "again_in"), COUNTED.values(), ids=COUNTED)


@counted
async def test_dirty_record_runs_again_with_the_planner_s_values(
    rig: Rig, end: Transition, again_in: timedelta
) -> None:
    run = await a_run(rig, attempts=2)
    await rig.documents.update_one({"_id": 1}, {"$set": {"total": 2}})
    await rig.plan(rig.task())
    settled = await settle(rig, run, end)
    changed = settled.changed
    assert (changed["status"], changed["nextRunAt"], changed["attempts"]) == ("pending", again_in, 0)
    assert settled.after["lastObservedValues"] == {"total": 2}
    assert settled.after["oplogue"]["left"] is False
    assert settled.after["firstErrorAt"] is None
    assert len(settled.after["executionHistory"]) == 2
    for kept in ("completedAt", "dueAt", "updatedAt"):
        assert kept not in changed


@pytest.mark.parametrize("end", [retried(resets=False), failed(resets=False)], ids=["retried", "failed"])
async def test_dirty_record_keeps_its_attempts_where_the_policy_says_so(rig: Rig, end: Transition) -> None:
    run = await a_run(rig, attempts=2, status="processing_dirty")
    settled = await settle(rig, run, end)
    assert settled.changed["status"] == "pending"
    assert (settled.after["attempts"], settled.after["firstErrorAt"]) == (2, LONG_AGO)


@counted
async def test_manual_retry_of_a_running_record_runs_it_again_at_once(
    rig: Rig, end: Transition, again_in: timedelta
) -> None:
    run = await a_run(rig, attempts=2, status="processing_dirty", oplogue__manual=True)
    end = replace(end, resets_attempts=False)
    settled = await settle(rig, run, end)
    changed = settled.changed
    assert (changed["status"], changed["nextRunAt"], changed["attempts"]) == ("pending", NOW, 0)
    assert settled.after["oplogue"]["manual"], "a change before the next claim must not put it off"


@pytest.mark.parametrize("end", [retried(resets=False), failed(resets=False)], ids=["retried", "failed"])
async def test_manual_retry_of_a_running_record_begins_a_new_sequence_of_failures(
    rig: Rig, end: Transition
) -> None:
    run = await a_run(rig, attempts=2, status="processing_dirty", oplogue__manual=True)
    assert (await settle(rig, run, end)).after["firstErrorAt"] is None


@pytest.mark.parametrize("end", [SKIPPED, MOVED], ids=["skipped", "moved"])
@pytest.mark.parametrize("left", [False, True])
async def test_touched_record_whose_run_was_skipped_runs_again_as_it_was_planned(
    rig: Rig, end: Transition, left: bool
) -> None:
    run = await a_run(rig, oplogue__touched=True, oplogue__left=left)
    settled = await settle(rig, run, end)
    changed = settled.changed
    assert (changed["status"], changed["nextRunAt"], changed["attempts"]) == ("pending", DEBOUNCE, 0)
    assert settled.after["lastObservedValues"] == {"total": 1}
    assert settled.after["oplogue"]["left"] is left
    assert "touched" not in settled.after["oplogue"]


@pytest.mark.parametrize("end", [COMPLETED, retried(), failed()], ids=["completed", "retried", "failed"])
@pytest.mark.parametrize("left", [False, True])
async def test_touch_means_nothing_to_a_run_that_was_not_skipped(
    rig: Rig, end: Transition, left: bool
) -> None:
    run = await a_run(rig, oplogue__touched=True, oplogue__left=left)
    settled = await settle(rig, run, end)
    assert settled.after["status"] == end.status
    assert settled.after["oplogue"] == marks(settled.before)


# -- histories


async def test_history_keeps_the_last_runs_only(rig: Rig) -> None:
    await a_planned_order(rig)
    for number in range(5):
        await rig.run(1, retried(error=f"boom {number}"))
    history = (await rig.row())["executionHistory"]
    assert [entry["error"] for entry in history] == ["boom 2", "boom 3", "boom 4"]


async def test_history_of_no_entries_is_not_kept(rig: Rig) -> None:
    await a_planned_order(rig)
    row = await rig.run(1, replace(COMPLETED, history_limit=0))
    assert "executionHistory" not in row
    assert row["lastSuccess"]["durationMs"] == 5


async def test_longer_history_of_another_system_is_cut(rig: Rig) -> None:
    run = await a_run(rig, executionHistory=PAST * 40)
    assert len((await settle(rig, run, COMPLETED)).after["executionHistory"]) == 3


@pytest.mark.parametrize("text", ["$$NOW", "$status", "{$function: 1}", "$$nothing", "a\0b", "", "š" * 2_000])
async def test_error_texts_are_never_evaluated(rig: Rig, text: str) -> None:
    await a_planned_order(rig, 1, 2)
    one, two = await rig.claim()
    # One statement with a row per record, and one with constants.
    ends = {one.id: retried(error=text), two.id: retried(error="another")}
    assert await rig.records.settle(one.token, ends) == set()
    row = await rig.row(1)
    assert (row["lastError"], row["executionHistory"][-1]["error"]) == (text, text)
    assert (await rig.row(2))["lastError"] == "another"


@pytest.mark.parametrize("error", ["no Unicode: caf\udce9", "x" * 2**24], ids=["unicode", "size"])
async def test_outcome_that_the_driver_cannot_send_is_refused_as_by_the_server(rig: Rig, error: str) -> None:
    # Texts are made storable when an outcome is decided; what slips through must not end the loop that writes.
    await a_planned_order(rig)
    with pytest.raises(OperationFailure):
        await rig.run(1, retried(error=error))
    assert (await rig.row())["status"] == "processing"


# -- groups


def _ends(number: int) -> Transition:
    kinds: Sequence[Callable[[], Transition]] = (
        lambda: replace(COMPLETED, duration_ms=number),
        lambda: replace(SKIPPED, duration_ms=number % 2),
        lambda: states.moved({"n": number, "$x": "$y"}, duration_ms=1, debounce=DEBOUNCE, history_limit=3),
        lambda: retried(error=f"boom {number}"),
        lambda: retried(resets=False),
        lambda: failed(resets=number % 2 == 0),
        lambda: states.deferred(timedelta(minutes=number)),
        lambda: states.deferred(LATER + timedelta(minutes=number)),
        lambda: RELEASED,
        lambda: COMPLETED,
        lambda: replace(COMPLETED, history_limit=number % 3),
    )
    return kinds[number % len(kinds)]()


async def test_mixed_outcomes_in_one_group_equal_the_same_one_by_one(rig: Rig) -> None:
    count = 22 * len(states.Reason)
    together = await _settled_rows(rig, count, group=True)
    await rig.rows.delete_many({})
    await rig.documents.delete_many({})
    apart = await _settled_rows(rig, count, group=False)
    assert together == apart
    assert len({row["status"] for row in together}) == 3


async def _settled_rows(rig: Rig, count: int, *, group: bool) -> list[Document]:
    await a_planned_order(rig, *range(count))
    records = await rig.claim()
    for number, fields in enumerate(
        ({"status": "processing_dirty"}, {"oplogue.touched": True}, {"oplogue.manual": True})
    ):
        await rig.rows.update_many({"sourceDocId": {"$mod": [7, number]}}, {"$set": fields})
    ends = {record.id: _ends(record.doc_id) for record in records}
    groups = [ends] if group else [{id_: end} for id_, end in ends.items()]
    since = await rig.now()
    for each in groups:
        assert await rig.records.settle(records[0].token, each) == set()
    rows = (
        await rig.rows.find({}, {"_id": 0, "oplogue.token": 0, "oplogue.event": 0})
        .sort("sourceDocId")
        .to_list()
    )
    return [{name: _in_minutes(value, since) for name, value in row.items()} for row in rows]


def _in_minutes(value: Any, since: datetime) -> Any:
    if isinstance(value, dict):
        return {name: _in_minutes(member, since) for name, member in value.items()}  # pyright: ignore
    if isinstance(value, list):
        return [_in_minutes(member, since) for member in value]  # pyright: ignore
    return round((value - since) / MINUTE) if isinstance(value, datetime) and value.year < 2100 else value


async def test_values_of_many_moved_records_are_more_than_one_statement_holds(rig: Rig) -> None:
    await a_planned_order(rig, *range(20))
    records = await rig.claim()
    ends = {
        record.id: states.moved(
            {"text": str(record.doc_id) * 1_000_000}, duration_ms=1, debounce=DEBOUNCE, history_limit=3
        )
        for record in records
    }
    assert await rig.records.settle(records[0].token, ends) == set()


# -- suspects and dead letters


async def lost_run(rig: Rig, *ids: Any, suspects: bool = False) -> list[ClaimedRecord]:
    """Claim, and let the leases end."""
    records = await rig.claim(*ids, suspects=suspects)
    await rig.rows.update_many(
        {"_id": {"$in": [record.id for record in records]}}, {"$set": {"nextRunAt": LONG_AGO}}
    )
    return records


async def test_record_whose_lease_ended_is_a_suspect_and_no_fresh_claim_takes_it(rig: Rig) -> None:
    await a_planned_order(rig, 1, 2)
    (record,) = await lost_run(rig, 1)
    row = await rig.row(1)
    assert await rig.records.claim([record.id], owner="me", lease=LEASE) == []
    assert await rig.row(1) == row
    (suspect,) = await rig.records.suspects(["sync"], 10)
    assert (suspect.id, suspect.task, suspect.attempts) == (record.id, "sync", 1)
    assert (suspect.lost, suspect.alone) == (0, False)
    assert await rig.records.suspects(["another"], 10) == []


async def test_running_record_with_a_lease_is_no_suspect(rig: Rig) -> None:
    await a_planned_order(rig)
    record = await rig.claim_one()
    assert await rig.records.suspects(["sync"], 10) == []
    assert await rig.records.claim([record.id], owner="me", lease=LEASE, suspects=True) == []


async def test_reclaim_counts_an_attempt_and_a_lost_lease(rig: Rig) -> None:
    await a_planned_order(rig, 1, 2)
    await lost_run(rig)
    records = await lost_run(rig, suspects=True)
    assert [record.attempts for record in records] == [2, 2]
    assert {(one.lost, one.alone) for one in await rig.records.suspects(["sync"], 10)} == {(1, False)}
    await lost_run(rig, 1, suspects=True)
    found = {one.id: (one.attempts, one.lost, one.alone) for one in await rig.records.suspects(["sync"], 10)}
    assert found == {records[0].id: (3, 2, True), records[1].id: (2, 1, False)}


async def test_fresh_claim_forgets_that_leases_were_lost(rig: Rig) -> None:
    await a_planned_order(rig)
    await lost_run(rig)
    (record,) = await rig.claim(1, suspects=True)
    assert await rig.settle(record, retried())
    await rig.claim_one()
    row = await rig.row()
    assert (row["oplogue"]["lost"], row["oplogue"]["alone"], row["attempts"]) == (0, False, 3)


async def test_oldest_suspects_come_first(rig: Rig) -> None:
    await a_planned_order(rig, *range(5))
    records = await lost_run(rig)
    for number, place in enumerate((3, 1, 4, 0, 2)):
        status = "processing_dirty" if number == 0 else "processing"
        await rig.edit(place, status=status, nextRunAt=LONG_AGO + timedelta(seconds=number))
    found = [suspect.id for suspect in await rig.records.suspects(["sync"], 3)]
    assert found == [records[place].id for place in (3, 1, 4)]


async def test_dead_letter_says_why_and_belongs_to_nobody(rig: Rig) -> None:
    run = await a_run(rig, attempts=5, nextRunAt=LONG_AGO)
    before, since = await rig.row(), await rig.now()
    assert await rig.records.fail_suspects([run.id], "$$why", 3) == 1
    settled = Settled(before, await rig.row(), since, await rig.now())
    kept = {name: mark for name, mark in before["oplogue"].items() if name != "token"}
    assert settled.changed == {
        "status": "failed",
        "nextRunAt": None,
        "lastError": "$$why",
        "lastFinalizedAt": NOW,
        "executionHistory": [*PAST, {"at": NOW, "status": "failed", "durationMs": 0, "error": "$$why"}],
        "oplogue": kept,
    }
    assert not await rig.settle(run, COMPLETED)


async def test_record_that_was_renewed_meanwhile_is_no_dead_letter(rig: Rig) -> None:
    run = await a_run(rig, attempts=5)
    row = await rig.row()
    assert await rig.records.fail_suspects([run.id], "why", 3) == 0
    assert await rig.row() == row


async def test_dead_letter_whose_data_changed_meanwhile_runs_again(rig: Rig) -> None:
    # What killed the process may be mended by the change; nobody would run the new values otherwise.
    run = await a_run(rig, attempts=5)
    await rig.documents.update_one({"_id": 1}, {"$set": {"total": 2}})
    await rig.plan(rig.task())
    await rig.edit(1, nextRunAt=LONG_AGO)
    await rig.records.fail_suspects([run.id], "why", 3)
    assert (await rig.row())["status"] == "pending"


# -- records that somebody edited into nonsense

NONSENSE: dict[str, Document] = {
    "attempts: text": {"attempts": "x"},
    "attempts: null": {"attempts": None},
    "attempts: NaN": {"attempts": float("nan")},
    "status: unknown": {"status": "foo"},
    "status: number": {"status": 5},
    "date: text": {"nextRunAt": "2020-01-01"},
    "values: number": {"lastObservedValues": 5},
    "values: null": {"lastObservedValues": None},
    "first error: text": {"firstErrorAt": "yesterday"},
    "history: text": {"executionHistory": "x"},
    "history: numbers": {"executionHistory": [1, None]},
    "last success: number": {"lastSuccess": 5},
    "task: number": {"task": 5},
    "document's id: null": {"sourceDocId": None},
    "marks: texts": {"oplogue": {"token": "x", "left": "x", "touched": 1, "hash": 5, "term": "x"}},
    "lost: text, fresh": {"oplogue.lost": "x"},
    "years ago": {"nextRunAt": datetime(1, 1, 1, tzinfo=UTC)},
    "before all years": {"nextRunAt": DatetimeMS(-(2**60))},
    "sub-document: number": {"oplogue": 5},
    "sub-document: text": {"oplogue": "x"},
    "sub-document: list": {"oplogue": [1]},
}


@pytest.mark.parametrize("fields", NONSENSE.values(), ids=NONSENSE)
async def test_nonsense_in_one_record_does_not_keep_others_from_being_looked_at_claimed_and_settled(
    rig: Rig, fields: Document
) -> None:
    await a_planned_order(rig, 1, 2)
    await rig.rows.update_many({}, {"$set": {"nextRunAt": LONG_AGO}})
    nonsense = await rig.row(1)
    await rig.rows.update_one({"_id": nonsense["_id"]}, {"$set": fields})
    look = await rig.records.look(["sync"], {"sync": Wanted(10)})
    sound = await rig.row(2)
    assert sound["_id"] in look.due["sync"]
    claimed = await rig.records.claim(look.due["sync"], owner="me", lease=LEASE)
    assert sound["_id"] in [record.id for record in claimed]
    # Claimed or not, whatever a run of it ends in can be written.
    for end in (retried(), MOVED, COMPLETED):
        ends = {record.id: end for record in claimed}
        assert await rig.records.settle(claimed[0].token, ends) == set()
        await rig.rows.update_many(
            {"_id": {"$in": list(ends)}}, {"$set": {"status": "pending", "nextRunAt": LONG_AGO}}
        )
        claimed = await rig.records.claim(list(ends), owner="me", lease=LEASE)
        assert len(claimed) == len(ends)


async def test_date_after_all_years_does_not_keep_anybody_from_looking(rig: Rig) -> None:
    await a_planned_order(rig)
    await rig.rows.update_one({}, {"$set": {"nextRunAt": DatetimeMS(253402300800000)}})
    look = await rig.records.look(["sync"], {"sync": Wanted(10)})
    assert dict(look.due) == {}


SUSPICIOUS: dict[str, Document] = {
    "lost: text": {"oplogue.lost": "x"},
    "lost: NaN": {"oplogue.lost": float("nan")},
    "alone: text": {"oplogue.alone": "yes"},
    "attempts: text": {"attempts": "x"},
    "attempts: float": {"attempts": 2.5},
    "sub-document: number": {"oplogue": 5},
}


@pytest.mark.parametrize("fields", SUSPICIOUS.values(), ids=SUSPICIOUS)
async def test_nonsense_in_one_suspect_does_not_keep_others_from_being_reclaimed(
    rig: Rig, fields: Document
) -> None:
    await a_planned_order(rig, 1, 2)
    await lost_run(rig)
    row = await rig.row(1)
    await rig.rows.update_one({"_id": row["_id"]}, {"$set": fields})
    found = await rig.records.suspects(["sync"], 10)
    assert len(found) == 2
    claimed = await rig.records.claim([one.id for one in found], owner="me", lease=LEASE, suspects=True)
    assert len(claimed) == 2
    await rig.rows.update_many({}, {"$set": {"nextRunAt": LONG_AGO}})
    assert await rig.records.fail_suspects([record.id for record in claimed], "why", 3) == 2


# -- looks


async def test_look_tells_what_is_due_in_order_and_when_the_next_will_be(rig: Rig) -> None:
    tasks = ["one", "two", "three"]
    await rig.documents.insert_many([{"_id": id_, "status": "paid", "total": 1} for id_ in range(4)])
    await rig.plan(*(rig.task(name) for name in tasks))
    await rig.rows.update_many({"task": "two"}, {"$set": {"nextRunAt": LATER}})
    await rig.rows.update_many({"task": "three"}, {"$set": {"status": "completed", "nextRunAt": None}})
    for number, id_ in enumerate((2, 0, 3, 1)):
        await rig.rows.update_one(
            {"task": "one", "sourceDocId": id_}, {"$set": {"nextRunAt": LONG_AGO + number * MINUTE}}
        )
    before = await rig.now()
    look = await rig.records.look(tasks, dict.fromkeys(tasks, Wanted(3)))
    assert look.now is not None
    assert is_about(look.now, before, await rig.now())
    assert look.next_at == {"one": LONG_AGO, "two": LATER}
    wanted = [(await rig.row(id_, "one"))["_id"] for id_ in (2, 0, 3)]
    assert dict(look.due) == {"one": wanted}
    assert look.reached == {"one": LONG_AGO + 2 * MINUTE}


async def test_look_since_a_time_finds_what_is_due_from_then_on(rig: Rig) -> None:
    await a_planned_order(rig, *range(4))
    for number in range(4):
        await rig.edit(number, nextRunAt=LONG_AGO + number * MINUTE)
    look = await rig.records.look(["sync"], {"sync": Wanted(2, since=LONG_AGO + MINUTE)})
    assert look.due["sync"] == [(await rig.row(id_))["_id"] for id_ in (1, 2)]


async def test_look_at_nothing(rig: Rig) -> None:
    look = await rig.records.look(["one"], {"one": Wanted(3)})
    assert (look.now, look.next_at, dict(look.due)) == (None, {}, {})


async def test_look_offers_only_what_was_asked_for(rig: Rig) -> None:
    await a_planned_order(rig, 1, 2)
    await rig.rows.update_many({}, {"$set": {"nextRunAt": LONG_AGO}})
    assert dict((await rig.records.look(["sync"], {"sync": Wanted(0)})).due) == {}
    assert dict((await rig.records.look(["sync"], {})).due) == {}
    assert dict((await rig.records.look(["another"], {"another": Wanted(5)})).due) == {}


async def test_tokens_are_never_the_same(rig: Rig) -> None:
    await a_planned_order(rig, 1, 2)
    tokens = {(await rig.claim_one(id_)).token for id_ in (1, 2)}
    assert len(tokens) == 2
    assert all(isinstance(token, ObjectId) for token in tokens)
