"""Row 11: the primary's clock jumps, because another member with another clock is primary now."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from harness import CLOCK, Scene, task, until
from harness.clocks import ShiftedClock
from harness.scene import EFFECTS, LEASE, SOURCE
from harness.writer import Writer
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from oplogue.embedded import EmbeddedMember, EmbeddedServer, start_embedded

SECONDS = 20
SPEC = task(transactional=True, hold=0.1)


@pytest.fixture
def set_of_three() -> Iterator[EmbeddedServer]:
    """A set of its own: one of its members gets another clock."""
    with start_embedded(members=3, extra_args=("--setParameter", "enableTestCommands=1")) as server:
        yield server


@pytest.mark.slow  # more than a minute: members whose clocks differ take long to agree on a primary
@pytest.mark.row("11", "server clock jumps at failover")
def test_a_servers_clock_that_jumps_repeats_no_effect(
    set_of_three: EmbeddedServer, scene_on: Callable[..., Scene], tmp_path: Path, full: bool
) -> None:
    scene = scene_on(set_of_three)
    jumps = (SECONDS, -SECONDS) * 3 if full else (SECONDS,)
    odd = set_of_three.members[2]
    for _ in range(3):
        scene.worker(SPEC, wait=False)
    for worker in scene.workers:
        worker.await_started()
    writer = scene.writer(list(range(60)))
    recoveries: list[float] = []
    shown: list[float] = []
    for number, seconds in enumerate(jumps):
        clock = ShiftedClock(tmp_path, f"member-{number}", seconds)
        if _primary(scene) is odd:
            _make_primary(scene, set_of_three.members[0])
        with pytest.MonkeyPatch.context() as environment:
            for name, value in clock.environment.items():
                environment.setenv(name, value)
            odd.restart()
        set_of_three.await_ready(timeout=120)
        writer.begin(per_second=30)
        until(
            lambda: any(scene.oracle.in_flight(worker.name) for worker in scene.workers),
            timeout=20,
            what="a run",
        )
        # There and back: leases are over before their time, or last longer than they should.
        for member in (odd, set_of_three.members[0]):
            began = CLOCK.monotonic()
            _make_primary(scene, member)
            shown.append(_off_by(scene))
            recoveries.append(_handled_since(scene, writer, began))
        writer.end()
    verdict = scene.settle(writer, effects=EFFECTS, by_effects=True, timeout=SECONDS + 40)
    scene.conclude(
        verdict,
        times=2 * len(jumps),
        recoveries=recoveries,
        gaps=writer.gaps,
        shown=shown,
        lease_lost=scene.count("task.lease_lost"),
    )
    expected = [there for seconds in jumps for there in (seconds, 0)]
    assert all(abs(was - wanted) < 5 for was, wanted in zip(shown, expected, strict=True)), (
        "no clock has jumped"
    )
    # A clock that was ahead leaves leases and due times behind that end when the others' clocks get there.
    assert max(recoveries) < SECONDS + 5 * LEASE + 10


def _handled_since(scene: Scene, writer: Writer, moment: float) -> float:
    """Seconds from the first write that a majority has after a failover until one of those is handled.

    Members whose clocks differ take up to 20 s to agree whom to follow; until then nobody's writes go through.
    """

    def acknowledged() -> dict[tuple[str, int], float]:
        times = dict(writer.acknowledged_at)
        return {(repr(id_), version): at for (id_, version), at in times.items() if at > moment}

    def handled() -> list[float]:
        mine = acknowledged()
        return [
            run.ended
            for run in scene.oracle.runs()
            if run.ended and run.handled and (run.id, run.version) in mine
        ]

    until(acknowledged, timeout=90, what="a write after the failover", every=0.05)
    first = min(acknowledged().values())

    def what() -> str:
        states = scene.oracle.stuck("mark", SOURCE, writer.latest)
        logs = [worker.log_tail(8) for worker in scene.workers]
        return "\n".join(["a run after the failover", *scene.errors()[-8:], *logs, *states[:10]])

    return min(until(handled, timeout=SECONDS + 30, what=what, every=0.05)) - first


def _off_by(scene: Scene) -> float:
    """How far the primary's own clock is from the truth."""
    shown: datetime = scene.client.admin.command("hello")["localTime"]
    return (shown.replace(tzinfo=UTC) - CLOCK.now()).total_seconds()


def _primary(scene: Scene) -> EmbeddedMember | None:
    try:
        host = str(scene.client.admin.command("hello").get("primary", ""))
    except PyMongoError:
        return None
    return next((one for one in scene.server.members if host.endswith(f":{one.port}")), None)


def _make_primary(scene: Scene, wanted: EmbeddedMember) -> None:
    """The others are not to stand for election: so this one is elected."""

    def is_it() -> bool:
        for member in scene.server.members:
            if member is not wanted:
                _ask(member, {"replSetFreeze": 5})
                _ask(member, {"replSetStepDown": 5, "secondaryCatchUpPeriodSecs": 2})
        return _primary(scene) is wanted

    until(is_it, timeout=60, what=f"the election of the member at {wanted.port}", every=0.5)
    for member in scene.server.members:
        _ask(member, {"replSetFreeze": 0})


def _ask(member: EmbeddedMember, command: dict[str, int]) -> None:
    """What a primary refuses a secondary takes, and the other way round."""
    try:
        with MongoClient[dict[str, object]](
            f"mongodb://127.0.0.1:{member.port}/?directConnection=true", serverSelectionTimeoutMS=2000
        ) as client:
            client.admin.command(command)
    except PyMongoError:
        return
