"""Row 7: a worker frozen for three leases, that goes on as if nothing had happened."""

from __future__ import annotations

import pytest
from harness import CLOCK, Run, Scene, task, until
from harness.scene import LEASE


@pytest.mark.row("7", "zombie worker: SIGSTOP for 3 leases")
def test_what_a_zombie_worker_writes_matches_nothing(scene: Scene, full: bool) -> None:
    rounds = 20 if full else 2
    spec = task(hold=0.8)
    scene.worker(spec)
    scene.worker(spec)
    writer = scene.writer(list(range(12)))
    interrupted: list[tuple[Run, float]] = []
    for _ in range(rounds):
        leader = scene.leader()
        zombie = next(worker for worker in scene.workers if worker is not leader)
        lost_before = zombie.events("task.lease_lost")
        writer.write_all()
        until(lambda name=zombie.name: scene.oracle.in_flight(name), timeout=20, what="a run to freeze")
        CLOCK.block(0.2)
        zombie.freeze()
        frozen_at = CLOCK.monotonic()
        cut = scene.oracle.in_flight(zombie.name)
        assert cut, "the freeze struck a running handler"
        interrupted.extend((run, frozen_at) for run in cut)
        until(
            lambda: not scene.oracle.stuck("mark", "items", writer.latest),
            timeout=20,
            what="another worker to take over",
        )
        CLOCK.block(max(0, frozen_at + 3 * LEASE - CLOCK.monotonic()))
        before = scene.records()
        zombie.thaw()
        zombie.await_event("task.lease_lost", count=lost_before + 1)
        until(
            lambda name=zombie.name: not scene.oracle.in_flight(name),
            timeout=10,
            what="the zombie's handlers",
        )
        CLOCK.block(LEASE / 2)
        assert scene.records() == before, "a zombie changed a record"
    verdict = scene.settle(writer)
    lost = scene.count("task.lease_lost")
    scene.conclude(verdict, times=rounds, recoveries=scene.redeliveries(interrupted), lease_lost=lost)
    assert lost >= rounds
