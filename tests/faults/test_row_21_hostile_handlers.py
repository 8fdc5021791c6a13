"""Row 21: handlers that end their process, hang, block the loop, or ignore that they are cancelled."""

from __future__ import annotations

import pytest
from harness import CLOCK, Scene, task, until
from harness.scene import LEASE, SOURCE

ATTEMPTS = 3


@pytest.mark.row("21", "handlers that exit the process")
def test_a_killer_becomes_a_dead_letter_and_its_neighbours_live(scene: Scene, full: bool) -> None:
    documents = 400 if full else 40
    spec = task(hold=0.05, max_attempts=ATTEMPTS)
    scene.worker(spec, concurrency=50)
    writer = scene.writer(list(range(documents)))
    killer = documents // 2
    for id_ in range(documents):
        writer.write(id_, {"do": "exit" if id_ == killer else None})
    began = CLOCK.monotonic()
    deaths = 0

    def buried() -> bool:
        nonlocal deaths
        worker = scene.workers[-1]
        if worker.exit_status is not None:
            assert worker.exit_status == 7
            deaths += 1
            scene.worker(spec, concurrency=50, wait=False)
        return scene.records().get(repr(killer), {}).get("status") == "failed"

    until(buried, timeout=60 if not full else 600, what="the dead letter", every=0.05)
    took = CLOCK.monotonic() - began
    until(lambda: scene.count("task.dead_letter"), timeout=5, what="the event of the dead letter")
    del writer.latest[killer]
    verdict = scene.settle(writer)
    scene.conclude(verdict, times=deaths, recoveries=[took], dead_letters=scene.count("task.dead_letter"))
    assert deaths >= ATTEMPTS
    assert scene.count("task.dead_letter") == 1


@pytest.mark.row("21h", "handlers that hang, block the loop, swallow")
def test_hanging_handlers_fail_and_the_others_go_on(scene: Scene, full: bool) -> None:
    times = 10 if full else 2
    spec = task("mark", hold=0.02, max_attempts=1, timeout=1.5 * LEASE)
    # No timeout: renewal ends at it, and those that one loop runs wait for each other.
    blocking = task("block", collection="blocked", max_attempts=3)
    worker = scene.worker(spec, blocking, concurrency=20)
    writer = scene.writer(list(range(60)))
    hostile = list(range(1000, 1000 + times))
    for id_ in hostile:
        writer.write(id_, {"do": "hang"})
    for id_ in range(60):
        writer.write(id_)
    until(
        lambda: all(scene.records().get(repr(id_), {}).get("status") == "failed" for id_ in hostile),
        timeout=10 * LEASE,
        what="the hanging handlers' end",
    )
    errors = {scene.records()[repr(id_)]["lastError"] for id_ in hostile}
    for id_ in hostile:
        del writer.latest[id_]
    verdict = scene.settle(writer)
    # A handler that blocks the event loop for longer than a lease is not run twice at once. The lease is longer
    # here: on a busy machine the thread that renews waits for its turn too.
    for one in list(scene.workers):
        one.stop()
    for _ in range(2):
        scene.worker(spec, blocking, concurrency=20, lease=2 * LEASE)
    blocked = scene.writer(list(range(times)), collection="blocked")
    for id_ in range(times):
        blocked.write(id_, {"do": "block"})
    began = CLOCK.monotonic()
    blocked_verdict = scene.settle(blocked, task="block", collection="blocked", timeout=40 * times)
    took = CLOCK.monotonic() - began
    runs = scene.oracle.runs("block")
    scene.conclude(verdict, times=2 * times, recoveries=[took], errors=sorted(errors), blocked_runs=len(runs))
    assert blocked_verdict.clean, f"{blocked_verdict}\n{worker.log_tail()}"
    assert len(runs) == times, "a handler that blocked the loop was run again"
    assert all(error.startswith("TimeoutError") for error in errors)


@pytest.mark.row("21s", "handlers that ignore their cancellation")
def test_a_handler_that_swallows_its_cancellation_holds_its_slot_only(scene: Scene) -> None:
    spec = task(max_attempts=1, timeout=LEASE / 2)
    scene.worker(spec, concurrency=3)
    writer = scene.writer(list(range(40)))
    writer.write("deaf", {"do": "swallow"})
    until(lambda: scene.oracle.runs(), timeout=10, what="its start")
    for id_ in range(40):
        writer.write(id_)
    CLOCK.block(2 * LEASE)
    deaf = writer.latest.pop("deaf")
    verdict = scene.settle(writer)
    record = scene.records()[repr("deaf")]
    scene.conclude(verdict, times=deaf, status=record["status"])
    assert scene.database[SOURCE].count_documents({}) == 41
