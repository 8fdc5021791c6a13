"""The planner of a leader on the real server, whose statements fail where a test wants it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from bson import Timestamp
from pymongo import AsyncMongoClient
from pymongo.errors import ExecutionTimeout, OperationFailure
from tests.support.rig import BOUND, Document, Rig

from oplogue.clock import Clock
from oplogue.model.definition import Namespace
from oplogue.model.events import Event as Report
from oplogue.runtime.bus import Bus
from oplogue.runtime.office import Office
from oplogue.runtime.planner import Planner
from oplogue.store.leadership import Term
from oplogue.store.planning import Change, Planning
from oplogue.store.plans import PlannedTask, Stamp
from oplogue.store.stream import Batch, Event, Kind, Position

REFUSED = OperationFailure("no reason that is known", code=2)
STALLED = ExecutionTimeout("operation exceeded time limit", 50)


class Troubled(Planning):
    """Fails on some documents of some tasks."""

    def __init__(self, client: AsyncMongoClient[Document], term: int) -> None:
        super().__init__(client, term)
        self.trouble: dict[tuple[str, Any], OperationFailure] = {}

    async def plan(
        self,
        tasks: Sequence[PlannedTask],
        ids: Sequence[Any],
        stamp: Stamp,
        bound: timedelta,
        *,
        all_new: bool = False,
        beside: bool = False,
    ) -> None:
        """Plan, or fail."""
        for task in tasks:
            for id_ in ids:
                if (task.definition.task, id_) in self.trouble:
                    raise self.trouble[task.definition.task, id_]
        await super().plan(tasks, ids, stamp, bound, all_new=all_new, beside=beside)


class Hurried(Clock):
    """Waits for nothing: what is due later is due now."""

    skipped = 0.0

    def monotonic(self) -> float:
        """The time that has passed, and what was slept through."""
        return super().monotonic() + self.skipped

    async def sleep(self, seconds: float) -> None:
        """Sleep through it."""
        self.skipped += seconds
        await super().sleep(0)


class Scene:
    """A planner in office, of two tasks."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.clock = Hurried()
        self.planning = Troubled(rig.client, 1)
        self.parked: list[Report] = []
        bus = Bus(self.clock, "me")
        bus.subscribe("planner.parked", self.parked.append)

        async def nothing(*_: Any) -> None: ...

        def deleted(_source: Namespace, _ids: Any) -> None: ...

        self.planner = Planner(
            tasks=[rig.task("one"), rig.task("two")],
            office=Office(
                Term(1, "me"), lease=timedelta(hours=9), since=self.clock.monotonic(), clock=self.clock
            ),
            planning=self.planning,
            wake=lambda _names: None,
            reconcile=nothing,
            deleted=deleted,
            mend=nothing,
            thorough=False,
            bound=BOUND,
            bus=bus,
            clock=self.clock,
        )

    async def tell(self, *ids: Any) -> list[Timestamp]:
        """Write documents, and let the stream tell of them, each at a time of its own; then a quiet token."""
        times: list[Timestamp] = []
        for id_ in ids:
            await self.rig.documents.replace_one({"_id": id_}, {"status": "paid"}, upsert=True)
            times.append(await self.rig.event())
        events = [
            Event(Kind.CHANGED, self.rig.source, id_, time) for id_, time in zip(ids, times, strict=True)
        ]
        await self.planner.take(Batch(events, Position(times[-1], {"_data": "quiet"}), times[-1]))
        return times

    async def step(self) -> Position | None:
        """One round; what was held back is due again."""
        self.clock.skipped += 60
        return await self.planner.step(0)

    async def planned(self, task: str) -> list[Any]:
        """Of which documents there is a pending record."""
        rows = await self.rig.rows.find({"task": task, "status": "pending"}).sort("sourceDocId", 1).to_list()
        return [row["sourceDocId"] for row in rows]


@pytest.fixture
def scene(rig: Rig) -> Scene:
    return Scene(rig)


@pytest.mark.parametrize("error", [REFUSED, STALLED], ids=["refused", "stalled"])
async def test_the_position_stays_before_a_document_that_could_not_be_planned_and_the_others_go_on(
    scene: Scene, error: OperationFailure
) -> None:
    scene.planning.trouble["one", 3] = error
    times = await scene.tell(1, 2, 3, 4, 5)
    assert await scene.step() == Position(times[2])
    assert await scene.planned("one") == [1, 2, 4, 5]
    (later,) = await scene.tell(6)
    assert await scene.step() == Position(times[2])
    assert 6 in await scene.planned("one")
    scene.planning.trouble.clear()
    await scene.step()
    assert await scene.planned("one") == await scene.planned("two") == [1, 2, 3, 4, 5, 6]
    (last,) = await scene.tell(7)
    assert last > later
    assert await scene.step() == Position(last, {"_data": "quiet"})
    assert scene.parked == []
    await scene.planning.close()


async def test_what_is_refused_again_and_again_for_one_task_is_parked_for_that_task_alone(
    scene: Scene,
) -> None:
    scene.planning.trouble["two", 3] = REFUSED
    await scene.tell(1, 3)
    for _ in range(5):
        await scene.step()
    (parked,) = scene.parked
    assert (parked.fields["task"], parked.fields["doc_id"]) == ("two", 3)
    assert await scene.planned("one") == [1, 3]
    assert await scene.planned("two") == [1]
    record = await scene.rig.row(3, "two")
    assert record["status"] == "failed"
    assert "could not be planned: OperationFailure 2" in record["lastError"]
    (last,) = await scene.tell(4)
    assert await scene.step() == Position(last, {"_data": "quiet"})
    await scene.planning.close()


def test_of_several_deletions_the_last_counts_in_whatever_order_they_are_taken_in() -> None:
    early, late = Timestamp(5, 1), Timestamp(7, 1)
    newer = Change(1, late, late, deleted_at=late)
    newer.later(Change(1, early, early, deleted_at=early))
    assert (newer.time, newer.last, newer.deleted_at) == (early, late, late)
