"""Row 1: a worker killed (-9) in the middle of its handlers."""

from __future__ import annotations

import signal

import pytest
from harness import CLOCK, Run, Scene, task, until


@pytest.mark.row("1", "worker killed -9 in mid-handler")
def test_killed_workers_lose_nothing(scene: Scene, full: bool) -> None:
    kills = 200 if full else 8
    spec = task(hold=0.3)
    for _ in range(3):
        scene.worker(spec, wait=False)
    for worker in list(scene.workers):
        worker.await_started()
    writer = scene.writer(list(range(60)))
    writer.begin(per_second=40)
    interrupted: list[tuple[Run, float]] = []
    for _ in range(kills):
        running = [worker for worker in scene.workers if worker.exit_status is None]
        victim = scene.random.choice(running)
        until(lambda name=victim.name: scene.oracle.in_flight(name), timeout=20, what="a run to kill")
        assert victim.kill() == -signal.SIGKILL
        killed_at = CLOCK.monotonic()
        cut = scene.oracle.in_flight(victim.name)
        assert cut, "the kill struck a running handler"
        interrupted.extend((run, killed_at) for run in cut)
        scene.worker(spec)
    writer.end()
    verdict = scene.settle(writer)
    recoveries = scene.redeliveries(interrupted)
    scene.conclude(verdict, times=kills, recoveries=recoveries, interrupted=len(interrupted))
    # Every interrupted run came again, though a document may have moved on to its next state meanwhile.
    assert len(recoveries) == len(interrupted)
    assert max(recoveries) < 10
