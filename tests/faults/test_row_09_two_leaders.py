"""Row 9: two leaders at once, forced by editing the leader's document."""

from __future__ import annotations

import pytest
from harness import CLOCK, Scene, task
from harness.scene import GLOBALS


@pytest.mark.row("9", "two leaders forced")
def test_two_leaders_plan_idempotently(scene: Scene, full: bool) -> None:
    rounds = 50 if full else 5
    scene.worker(task())
    scene.worker(task())
    writer = scene.writer(list(range(200)))
    since = scene.now()
    takeovers: list[float] = []
    together = 0
    for _ in range(rounds):
        first = scene.leader()
        other = next(worker for worker in scene.workers if worker is not first)
        gained = other.events("leadership.gained")
        lost = first.events("leadership.lost")
        writer.begin(per_second=200)
        # The lease ends before its time: the other takes office while the first believes that it holds it.
        began = CLOCK.monotonic()
        while other.events("leadership.gained") == gained and CLOCK.monotonic() < began + 10:
            scene.database[GLOBALS].update_one(
                {"_id": "leader", "by": first.name}, {"$set": {"expiresAt": None}}
            )
            CLOCK.block(0.02)
        takeovers.append(CLOCK.monotonic() - began)
        together += first.events("leadership.lost") == lost
        writer.burst(150)
        first.await_event("leadership.lost", count=lost + 1)
        writer.end()
        other.await_event("planner.stream_opened", count=other.events("leadership.gained"))
    verdict = scene.settle(writer)
    positions = scene.positions(since)
    scene.conclude(verdict, times=rounds, recoveries=takeovers, together=together, positions=len(positions))
    assert together, "there never were two at once"
    assert positions == sorted(positions), "the position moved backwards"
