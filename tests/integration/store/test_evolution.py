"""Resets of records for a new handler version: batch by batch, and never twice."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.support.rig import BOUND, Document, Rig

from oplogue.model import states
from oplogue.model.policies import Evolution as Policy
from oplogue.store.definitions import Definitions
from oplogue.store.evolution import Evolution, Reprocessing

COUNT = 1_500
SECOND = timedelta(seconds=1)
COMPLETED = states.completed(duration_ms=1, debounce=SECOND, history_limit=5)
FAILED = states.failed(error="broken", duration_ms=1, again_in=SECOND, resets_attempts=True, history_limit=5)


@pytest.fixture
def evolution(rig: Rig) -> Evolution:
    """The resets of the test's database."""
    return Evolution(rig.client, rig.globals, bound=BOUND)


async def ask(rig: Rig, policy: str) -> None:
    """A first version, then a second that asks for a reset."""
    definitions = Definitions(rig.client, rig.globals, bound=BOUND)
    for number in (1, 2):
        wanted = Policy(handler_version=number, on_handler_version_change=policy)  # type: ignore[arg-type]  # of two
        await definitions.announce([rig.task(evolution=wanted).definition], ())


async def fill(rig: Rig, count: int = COUNT) -> None:
    """Many records that ended, two in three completed."""
    ended = await rig.now() - SECOND
    await rig.rows.insert_many(
        [
            {
                "sourceDocId": number,
                "task": "sync",
                "status": "failed" if number % 3 == 0 else "completed",
                "attempts": 5,
                "nextRunAt": None,
                "startedAt": ended,
                "lastFinalizedAt": ended,
                "lastObservedValues": {},
            }
            for number in range(count)
        ]
    )


async def statuses(rig: Rig) -> Document:
    """How many records there are of each status."""
    groups = await rig.rows.aggregate([{"$group": {"_id": "$status", "count": {"$sum": 1}}}])
    return {group["_id"]: group["count"] async for group in groups}


async def the_one(evolution: Evolution) -> Reprocessing:
    """The only reset that is asked for."""
    (asked,) = await evolution.pending()
    return asked


async def finish(evolution: Evolution) -> None:
    """Do what is left of it."""
    left: Reprocessing | None = await the_one(evolution)
    while left is not None:
        left = await evolution.step(left)
    assert await evolution.pending() == []


async def test_failed_ones_alone_are_reset_with_a_full_set_of_attempts(
    rig: Rig, evolution: Evolution
) -> None:
    await fill(rig)
    await ask(rig, "reprocess_failed")
    await finish(evolution)
    assert await statuses(rig) == {"completed": 1_000, "pending": 500}
    assert await rig.rows.count_documents({"status": "pending", "attempts": 0}) == 500


async def test_a_reset_goes_on_where_another_leader_left_it(rig: Rig, evolution: Evolution) -> None:
    await fill(rig)
    await ask(rig, "reprocess_all")
    assert await evolution.step(await the_one(evolution)) is not None
    assert await statuses(rig) == {"pending": 1_000, "completed": 334, "failed": 166}
    assert (await the_one(evolution)).last is not None
    await finish(evolution)
    assert await statuses(rig) == {"pending": COUNT}


async def test_a_batch_that_is_repeated_resets_nothing_that_has_run_since(
    rig: Rig, evolution: Evolution
) -> None:
    await fill(rig, 10)
    await ask(rig, "reprocess_all")
    asked = await the_one(evolution)
    await evolution.step(asked)
    await rig.run(0, COMPLETED)
    # A leader that was killed between the update and its note, or that wakes up after all was done.
    await evolution.step(asked)
    assert await statuses(rig) == {"pending": 9, "completed": 1}


async def test_a_former_leader_does_not_move_the_checkpoint_back(rig: Rig, evolution: Evolution) -> None:
    await fill(rig, 2_500)
    await ask(rig, "reprocess_all")
    asked = await the_one(evolution)
    second = await evolution.step(asked)
    assert second is not None
    await evolution.step(second)
    reached = (await the_one(evolution)).last
    await evolution.step(asked)
    assert (await the_one(evolution)).last == reached


async def test_a_record_that_runs_becomes_dirty_where_all_are_reprocessed(
    rig: Rig, evolution: Evolution
) -> None:
    await fill(rig, 1)
    await rig.edit(0, status="pending")
    await rig.edit(0, nextRunAt=await rig.now())
    record = await rig.claim_one(0)
    await ask(rig, "reprocess_all")
    await finish(evolution)
    assert (await rig.row(0))["status"] == "processing_dirty"
    assert await rig.settle(record, COMPLETED)
    row = await rig.row(0)
    assert (row["status"], row["attempts"]) == ("pending", 0)
    assert row["nextRunAt"] <= await rig.now()


async def test_a_run_of_older_code_that_fails_after_its_range_was_passed_is_reset_too(
    rig: Rig, evolution: Evolution
) -> None:
    await fill(rig, 1)
    await rig.edit(0, status="pending", nextRunAt=await rig.now())
    record = await rig.claim_one(0)
    await ask(rig, "reprocess_failed")
    left = await evolution.step(await the_one(evolution))
    assert left is not None
    assert left.swept
    assert await evolution.step(left) == left, "it waits for the run"
    await rig.settle(record, FAILED)
    assert (await rig.row(0))["status"] == "failed"
    await finish(evolution)
    assert (await rig.row(0))["status"] == "pending"


async def test_a_run_of_the_new_code_that_fails_stays_failed(rig: Rig, evolution: Evolution) -> None:
    await fill(rig, 1)
    await ask(rig, "reprocess_failed")
    await evolution.step(await the_one(evolution))
    await rig.run(0, FAILED)
    await finish(evolution)
    assert (await rig.row(0))["status"] == "failed"


async def test_entries_that_were_edited_into_nonsense_are_left_alone(rig: Rig, evolution: Evolution) -> None:
    await ask(rig, "reprocess_all")
    entries = [{"version": "two"}, {"version": 2}, "nonsense", {"version": 3, "askedAt": await rig.now()}]
    await rig.db[rig.globals.collection].update_one({"_id": "task:sync"}, {"$set": {"reprocess": entries}})
    assert [entry.version for entry in await evolution.pending()] == [3]
