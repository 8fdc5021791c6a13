"""The backlog as metrics report it."""

from __future__ import annotations

from datetime import timedelta

from tests.support.rig import BOUND, LATER, SECOND, Rig

from oplogue.model import states
from oplogue.store.backlog import Backlog, Depths

HOUR = timedelta(hours=1)


async def depths(rig: Rig, *tasks: str) -> Depths:
    backlog = Backlog(rig.client, "secondaryPreferred", bound=BOUND)
    return await backlog.depths(rig.source, tasks or ("sync",))


def hours(waited: timedelta) -> int:
    return round(waited / HOUR)


async def planned(rig: Rig, count: int = 1) -> None:
    await rig.documents.insert_many([{"_id": number, "status": "paid"} for number in range(1, count + 1)])
    await rig.plan(rig.task(debounce=0))


async def test_records_are_counted_by_task_and_status(rig: Rig) -> None:
    await rig.documents.insert_many([{"_id": number, "status": "paid"} for number in range(1, 8)])
    await rig.plan(rig.task("one", debounce=0), rig.task("two", debounce=0))
    for id_, status in {1: "processing", 2: "processing", 3: "processing_dirty"}.items():
        await rig.rows.update_one({"sourceDocId": id_, "task": "one"}, {"$set": {"status": status}})
    for id_, status in {4: "failed", 5: "completed", 6: "completed"}.items():
        await rig.rows.update_one(
            {"sourceDocId": id_, "task": "one"}, {"$set": {"status": status, "nextRunAt": None}}
        )
    found = await depths(rig, "one", "two", "of nobody")
    assert found.counts == {
        ("one", "pending"): 1,
        ("one", "processing"): 2,
        ("one", "processing_dirty"): 1,
        ("one", "failed"): 1,
        ("two", "pending"): 7,
    }
    assert set(found.waited) == {"one", "two"}


async def test_oldest_pending_record_is_told_by_when_it_was_due(rig: Rig) -> None:
    await planned(rig, 3)
    await rig.edit(1, nextRunAt=LATER, dueAt=LATER)
    assert hours((await depths(rig)).waited["sync"]) == 0
    await rig.age(5 * HOUR, "dueAt", "nextRunAt")
    assert hours((await depths(rig)).waited["sync"]) == 5


async def test_record_that_is_not_due_yet_has_not_waited(rig: Rig) -> None:
    await planned(rig)
    await rig.edit(1, nextRunAt=LATER, dueAt=LATER)
    assert (await depths(rig)).waited["sync"] < timedelta()


async def test_record_that_waits_for_a_retry_or_was_deferred_has_waited_since_it_was_first_due(
    rig: Rig,
) -> None:
    retried = states.retried(
        HOUR, error="e", duration_ms=1, again_in=SECOND, resets_attempts=True, history_limit=5
    )
    for id_, transition in {1: retried, 2: states.deferred(HOUR)}.items():
        await rig.documents.insert_one({"_id": id_, "status": "paid"})
        await rig.plan(rig.task(debounce=0), ids=[id_])
        await rig.run(id_, transition)
        await rig.edit(id_, dueAt=(await rig.now()) - (10 * id_) * HOUR)
    # The first by its next run is another one.
    await rig.documents.insert_one({"_id": 3, "status": "paid"})
    await rig.plan(rig.task(debounce=0), ids=[3])
    assert hours((await depths(rig)).waited["sync"]) == 20


async def test_edited_dates_don_t_hide_the_others(rig: Rig) -> None:
    await planned(rig, 3)
    await rig.age(5 * HOUR, "dueAt", "nextRunAt")
    await rig.edit(1, dueAt=None, startedAt=await rig.now())
    await rig.edit(2, dueAt="yesterday", startedAt=await rig.now())
    assert hours((await depths(rig)).waited["sync"]) == 5


async def test_many_tasks_are_asked_for_in_parts(rig: Rig) -> None:
    names = [f"task-{number}" for number in range(120)]
    await rig.documents.insert_one({"_id": 1, "status": "paid"})
    await rig.plan(*(rig.task(name) for name in names))
    found = await depths(rig, *names)
    assert found.counts == {(name, "pending"): 1 for name in names}
