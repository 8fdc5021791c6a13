"""Row 8: a leader frozen for three leases in the middle of its batches, that goes on planning."""

from __future__ import annotations

import pytest
from harness import CLOCK, Scene, task
from harness.scene import LEASE


@pytest.mark.row("8", "zombie leader: SIGSTOP for 3 leases")
def test_a_zombie_leader_changes_nothing_for_the_worse(scene: Scene, full: bool) -> None:
    rounds = 20 if full else 2
    scene.worker(task())
    scene.worker(task())
    writer = scene.writer(list(range(200)))
    since = scene.now()
    takeovers: list[float] = []
    for _ in range(rounds):
        zombie = scene.leader()
        zombie.await_event("planner.stream_opened")
        lost_before = zombie.events("leadership.lost")
        writer.burst(150)
        writer.begin(per_second=100)
        CLOCK.block(scene.random.random() * 0.1)
        zombie.freeze()
        frozen_at = CLOCK.monotonic()
        newer = scene.leader()
        while newer is zombie:
            newer = scene.leader()
        takeovers.append(CLOCK.monotonic() - frozen_at)
        CLOCK.block(max(0, frozen_at + 3 * LEASE - CLOCK.monotonic()))
        zombie.thaw()
        zombie.await_event("leadership.lost", count=lost_before + 1)
        writer.end()
    verdict = scene.settle(writer)
    positions = scene.positions(since)
    scene.conclude(verdict, times=rounds, recoveries=takeovers, positions=len(positions))
    assert positions == sorted(positions), "the position moved backwards"
    assert max(takeovers) < LEASE + 2
