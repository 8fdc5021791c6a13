"""Row 3: the leader killed in the middle of a batch, around its plan and its saved position."""

from __future__ import annotations

import signal

import pytest
from harness import CLOCK, Scene, task, until
from harness.scene import LEASE


@pytest.mark.row("3", "leader killed -9 in mid-batch")
def test_a_killed_leader_passes_nothing_over(scene: Scene, full: bool) -> None:
    kills = 100 if full else 6
    for _ in range(3):
        scene.worker(task(), wait=False)
    for worker in list(scene.workers):
        worker.await_started()
    writer = scene.writer(list(range(400)))
    since = scene.now()
    takeovers: list[float] = []
    for _ in range(kills):
        leader = scene.leader()
        leader.await_event("planner.stream_opened")
        for _ in range(scene.random.randrange(1, 4)):
            writer.burst(200)
        CLOCK.block(scene.random.random() * 0.06)
        assert leader.kill() == -signal.SIGKILL
        killed_at = CLOCK.monotonic()
        writer.burst(100)
        scene.worker(task(), wait=False)
        takeovers.append(_takeover(scene, killed_at))
    verdict = scene.settle(writer)
    positions = scene.positions(since)
    scene.conclude(verdict, times=kills, recoveries=takeovers, positions=len(positions))
    assert positions == sorted(positions), "the position moved backwards"
    assert max(takeovers) < LEASE + 2


def _takeover(scene: Scene, killed_at: float) -> float:
    def gained() -> float | None:
        times = [
            entry["at"]
            for worker in scene.workers
            for entry in worker.log()
            if entry.get("code") == "leadership.gained" and entry["at"] > killed_at
        ]
        return min(times, default=None)

    at = until(gained, timeout=20, what="another leader")
    assert at is not None
    return at - killed_at
