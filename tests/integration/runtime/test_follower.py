"""The stream of a leader on the real server: where it is reopened, and which positions are saved."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, cast

import pytest
from bson import Timestamp
from tests.support.rig import BOUND, Rig
from tests.support.running import LIMIT

from oplogue.clock import Clock
from oplogue.model.definition import Namespace
from oplogue.model.events import Event as Report
from oplogue.runtime.bus import Bus
from oplogue.runtime.follower import PATIENCE, Follower
from oplogue.runtime.lag import StreamLag
from oplogue.runtime.office import Office
from oplogue.runtime.planner import Planner
from oplogue.store.leadership import Leadership, Term
from oplogue.store.stream import Batch, Position


class Notes:
    """Stands where the planner stands: notes what comes, and calls it planned when it is told to."""

    was_quiet = False

    def __init__(self) -> None:
        self.ids: list[Any] = []
        self.planning = True
        self.position: Position | None = None
        self.steps = 0
        self.answers = 0
        self._stirred = asyncio.Event()

    async def take(self, batch: Batch) -> None:
        """Note the documents of an answer."""
        self.answers += 1
        self.ids += [event.id for event in batch.events]
        self.position = batch.position
        self._stirred.set()

    async def step(self, patience: float) -> Position | None:
        """Nothing is planned before it is wanted."""
        await Clock().sleep(0)
        self.steps += 1
        self._stirred.set()
        return self.position if self.planning else None

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until that is true of the notes."""
        async with asyncio.timeout(LIMIT):
            while not true():
                self._stirred.clear()
                await self._stirred.wait()


class SkippingClock(Clock):
    """A clock that the test moves on."""

    skipped = 0.0

    def monotonic(self) -> float:
        """The time that has passed, and what was skipped."""
        return super().monotonic() + self.skipped


class Nothing:
    """No work between batches."""

    def due_in(self) -> float | None:
        """Never."""
        return None

    async def step(self) -> None:
        """Nothing to do."""


class Scene:
    """A follower in office, and what it is told and says."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.bound = BOUND
        self.notes = Notes()
        self.clock = SkippingClock()
        self.bus = Bus(self.clock, "me")
        self.errors: list[Report] = []
        self.lost: list[str] = []
        self.bus.subscribe("planner.stream_error", self.errors.append)
        self.lag = StreamLag(self.clock, patience=PATIENCE)
        self.leadership = Leadership(rig.client, Namespace(rig.db.name, "globals"), bound=BOUND)

    async def start(self, term: Term) -> Follower:
        """Open the stream at the saved position."""

        async def history_lost(reason: str) -> None:
            self.lost.append(reason)

        follower = Follower(
            client=self.rig.client,
            tasks=[self.rig.task()],
            office=Office(term, lease=timedelta(minutes=5), since=self.clock.monotonic(), clock=self.clock),
            planner=cast(Planner, self.notes),
            leadership=self.leadership,
            lag=self.lag,
            background=Nothing(),
            history_lost=history_lost,
            bound=self.bound,
            bus=self.bus,
            clock=self.clock,
        )
        await follower.open()
        return follower


@pytest.fixture
def scene(rig: Rig) -> Scene:
    return Scene(rig)


@asynccontextmanager
async def following(scene: Scene) -> AsyncGenerator[Follower]:
    """A follower that reads and plans."""
    term = await scene.leadership.acquire("me", timedelta(minutes=5))
    if not isinstance(term, Term):
        term = await scene.leadership.acquire("me", timedelta(minutes=5))
    assert isinstance(term, Term)
    follower, until = await scene.start(term), asyncio.Event()
    task = asyncio.create_task(follower.follow(until))
    try:
        yield follower
    finally:
        until.set()
        await task


async def break_the_stream(scene: Scene, code: int) -> None:
    """Let the stream's next answer be an error of the server."""
    fail = {
        "failCommands": ["getMore"],
        "errorCode": code,
        "namespace": f"{scene.rig.db.name}.$cmd.aggregate",
    }
    await scene.rig.client.admin.command(
        {"configureFailPoint": "failCommand", "mode": {"times": 1}, "data": fail}
    )


@pytest.mark.parametrize(
    "code", [189, 43, 136, 280], ids=["step-down", "cursor gone", "fell behind", "fatal"]
)
async def test_a_stream_that_breaks_is_reopened_at_the_acknowledged_position(scene: Scene, code: int) -> None:
    # A plan that found nothing to write may have read what a failover takes back: its event must come again.
    scene.notes.planning = False
    async with following(scene):
        await scene.rig.documents.insert_one({"_id": 1, "status": "paid"})
        await scene.notes.until(lambda: scene.notes.ids == [1])
        await break_the_stream(scene, code)
        await scene.rig.documents.insert_one({"_id": 2, "status": "paid"})
        # The answer that was waited for may still bring the second document before the stream breaks.
        await scene.notes.until(lambda: scene.notes.ids in ([1, 1, 2], [1, 2, 1, 2]))
    assert len(scene.errors) == 1
    assert scene.lost == []


async def test_events_that_come_again_do_not_move_the_position_back(scene: Scene) -> None:
    async with following(scene):
        await scene.rig.documents.insert_one({"_id": 1, "status": "paid"})
        await scene.notes.until(lambda: scene.notes.ids == [1])
        before = await saved(scene)
        scene.notes.position = Position(Timestamp(before.time - 10, 1))
        for _ in range(3):
            scene.clock.skipped += 20
            steps = scene.notes.steps
            await scene.notes.until(lambda: scene.notes.steps > steps + 2)  # noqa: B023
    assert await saved(scene) >= before


async def saved(scene: Scene) -> Timestamp:
    """The cluster time of the saved position, once there is one."""
    async with asyncio.timeout(LIMIT):
        while (stored := await scene.leadership.saved()) is None:
            scene.clock.skipped += 20
    time: Timestamp = stored["time"]
    return time


async def test_without_history_the_stream_starts_afresh_and_says_so(scene: Scene) -> None:
    async with following(scene):
        namespace = f"{scene.rig.db.name}.$cmd.aggregate"
        lost = {"failCommands": ["aggregate"], "errorCode": 286, "namespace": namespace}
        await break_the_stream(scene, 43)
        await scene.rig.client.admin.command(
            {
                "configureFailPoint": "failCommand",
                "mode": {"times": 2},
                "data": lost | {"failCommands": ["getMore", "aggregate"]},
            }
        )
        await scene.notes.until(lambda: bool(scene.lost))
        await scene.rig.documents.insert_one({"_id": 1, "status": "paid"})
        await scene.notes.until(lambda: scene.notes.ids == [1])
    assert "286" in scene.lost[0]


@pytest.mark.parametrize(("code", "afresh"), [(13, 0), (73, 1)], ids=["no privilege", "refused for good"])
async def test_a_refusal_that_no_position_mends_is_no_loss_of_history(
    scene: Scene, code: int, afresh: int
) -> None:
    async with following(scene):
        namespace = f"{scene.rig.db.name}.$cmd.aggregate"
        refuse = {"failCommands": ["getMore", "aggregate"], "errorCode": code, "namespace": namespace}
        await scene.rig.client.admin.command(
            {"configureFailPoint": "failCommand", "mode": {"times": 5}, "data": refuse}
        )
        # Of the five answers one breaks the stream, the others are refusals to open it again.
        await scene.notes.until(lambda: len(scene.errors) >= 5 - afresh)
        await scene.rig.documents.insert_one({"_id": 1, "status": "paid"})
        await scene.notes.until(lambda: scene.notes.ids == [1])
    assert len(scene.lost) == afresh


async def test_a_stream_that_answers_nothing_any_more_is_reopened(scene: Scene) -> None:
    scene.bound = timedelta(milliseconds=500)
    async with following(scene):
        silent = {
            "failCommands": ["getMore"],
            "namespace": f"{scene.rig.db.name}.$cmd.aggregate",
            "blockConnection": True,
            "blockTimeMS": 30_000,
        }
        await scene.rig.client.admin.command(
            {"configureFailPoint": "failCommand", "mode": {"times": 1}, "data": silent}
        )
        await scene.notes.until(lambda: scene.notes.answers > 1)
        await scene.rig.documents.insert_one({"_id": 1, "status": "paid"})
        await scene.notes.until(lambda: scene.notes.ids == [1])
    assert len(scene.errors) == 1
    assert scene.lost == []
