"""Rows 4, 5, 6 and 15: the primary steps down, is killed, is frozen; the majority is lost."""

from __future__ import annotations

import contextlib

import pytest
from harness import CLOCK, Scene, task, until
from harness.writer import Writer
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from oplogue.embedded import EmbeddedMember


def _begin(scene: Scene) -> Writer:
    scene.worker(task(hold=0.02))
    scene.worker(task(hold=0.02))
    writer = scene.writer(list(range(100)))
    writer.begin(per_second=50)
    return writer


def _primary(scene: Scene) -> EmbeddedMember:
    def find() -> EmbeddedMember | None:
        with contextlib.suppress(PyMongoError):
            host = scene.client.admin.command("hello").get("primary", "")
            return next((one for one in scene.server.members if host.endswith(f":{one.port}")), None)
        return None

    found = until(find, timeout=20, what="a primary", every=0.05)
    assert found is not None
    return found


def _elections(scene: Scene) -> int:
    """The set's election term: a counter of the server's own."""
    return int(scene.client.admin.command("replSetGetStatus")["term"])


@pytest.mark.row("4", "primary steps down under load")
def test_a_step_down_loses_nothing(scene_of_three: Scene, full: bool) -> None:
    scene = scene_of_three
    times = 30 if full else 3
    writer = _begin(scene)
    before = _elections(scene)
    for _ in range(times):
        CLOCK.block(0.5)
        with contextlib.suppress(PyMongoError):
            scene.client.admin.command("replSetStepDown", 3, secondaryCatchUpPeriodSecs=2)
        scene.server.await_ready(timeout=120)
        CLOCK.block(0.5)
    writer.end()
    verdict = scene.settle(writer)
    scene.conclude(verdict, times=times, recoveries=writer.gaps, errors=scene.errors()[:20])
    assert _elections(scene) >= before + times


@pytest.mark.row("5", "primary killed -9 under load")
def test_a_killed_primary_loses_nothing(scene_of_three: Scene, full: bool) -> None:
    scene = scene_of_three
    times = 20 if full else 1
    writer = _begin(scene)
    before = _elections(scene)
    for _ in range(times):
        CLOCK.block(1)
        primary = _primary(scene)
        primary.kill()
        handled = len(scene.oracle.runs())
        until(lambda n=handled: len(scene.oracle.runs()) > n + 20, timeout=40, what="runs after the kill")
        primary.restart()
        scene.server.await_ready(timeout=120)
    writer.end()
    verdict = scene.settle(writer)
    scene.conclude(verdict, times=times, recoveries=writer.gaps, errors=scene.errors()[:20])
    assert _elections(scene) >= before + times


@pytest.mark.row("6", "primary frozen")
def test_a_frozen_primary_loses_nothing(scene_of_three: Scene, full: bool) -> None:
    scene = scene_of_three
    seconds = 40 if full else 15
    writer = _begin(scene)
    before = _elections(scene)
    CLOCK.block(1)
    primary = _primary(scene)
    primary.freeze()
    frozen_at = CLOCK.monotonic()
    CLOCK.block(seconds)
    gap = min((run.started for run in scene.oracle.runs() if run.started > frozen_at + 1), default=None)
    primary.thaw()
    scene.server.await_ready(timeout=120)
    writer.end()
    verdict = scene.settle(writer)
    scene.conclude(
        verdict, times=1, recoveries=[] if gap is None else [gap - frozen_at], errors=scene.errors()[:20]
    )
    assert _elections(scene) > before
    assert gap is not None, "no run while the old primary was frozen"


@pytest.mark.row("15", "majority lost: 2 of 3 members")
def test_a_lost_majority_loses_nothing(scene_of_three: Scene, full: bool) -> None:
    scene = scene_of_three
    seconds = 60 if full else 8
    writer = _begin(scene)
    CLOCK.block(1)
    primary = _primary(scene)
    others = [member for member in scene.server.members if member is not primary]
    before = [worker.cpu_seconds() for worker in scene.workers]
    for member in others:
        member.kill()
    CLOCK.block(seconds)
    spent = [worker.cpu_seconds() - was for worker, was in zip(scene.workers, before, strict=True)]
    with MongoClient[dict[str, object]](
        f"mongodb://127.0.0.1:{primary.port}/?directConnection=true"
    ) as alone:
        assert not alone.admin.command("hello")["isWritablePrimary"], "the majority was not lost"
    for member in others:
        member.launch()
    for member in others:
        member.await_port(20)
    scene.server.await_ready(timeout=120)
    back_at = CLOCK.monotonic()
    writer.end()
    verdict = scene.settle(writer)
    recovery = CLOCK.monotonic() - back_at
    scene.conclude(verdict, times=1, recoveries=[recovery], cpu_seconds=spent, errors=scene.errors()[:20])
    assert all(worker.exit_status is None for worker in scene.workers)
    assert max(spent) < 0.5 * seconds, "a busy loop while the database is away"
