"""Rows 12, 13 and 14: an instance cut off; slow and half-open lines; the database down."""

from __future__ import annotations

import pytest
from harness import CLOCK, Scene, task, until
from harness.proxy import Line, Proxy
from harness.scene import LEASE, SOURCE


@pytest.mark.row("12", "instance cut off from the database")
@pytest.mark.parametrize("line", [Line.CUT, Line.SILENT], ids=["cut", "silent"])
def test_an_instance_that_is_cut_off_tells_its_handlers(scene: Scene, full: bool, line: Line) -> None:
    scene.report.row = f"12_{line.value}"
    seconds = 60 if full else 8
    with Proxy(scene.server.ports[0]) as proxy:
        spec = task(hold=30 if full else 6)
        cut_off = scene.worker(spec, uri=proxy.uri_for(scene.database_name))
        writer = scene.writer(list(range(5)))
        writer.write_all()
        until(lambda: len(scene.oracle.in_flight(cut_off.name)) == 5, timeout=10, what="runs to cut off")
        proxy.set(line)
        cut_at = CLOCK.monotonic()
        cut = scene.oracle.in_flight(cut_off.name)
        scene.worker(task())
        # Handlers are told when the lease is over: cancelled after a grace.
        until(lambda: not scene.oracle.in_flight(cut_off.name), timeout=4 * LEASE, what="handlers to be told")
        told = [run.ended - cut_at for run in scene.oracle.runs() if run.worker == cut_off.name and run.ended]
        CLOCK.block(max(0, cut_at + seconds - CLOCK.monotonic()))
        assert not scene.oracle.stuck("mark", SOURCE, writer.latest), "the other instance took over"
        before = scene.records()
        proxy.set(Line.CLEAR)
        CLOCK.block(LEASE)
        assert scene.records() == before, "an instance that was cut off changed a record"
        assert cut_off.exit_status is None
        # It takes part again.
        for worker in scene.workers[1:]:
            worker.stop()
        began = CLOCK.monotonic()
        writer.write_all()
        until(lambda: scene.oracle.in_flight(cut_off.name), timeout=20, what="it to take part again")
        back = CLOCK.monotonic() - began
        cut_off.kill()
        scene.worker(task())
        verdict = scene.settle(writer)
        scene.conclude(
            verdict,
            times=1,
            recoveries=scene.redeliveries([(run, cut_at) for run in cut]),
            told=told,
            back=back,
            held_back=proxy.held_back,
        )
        assert proxy.held_back
        assert cut_off.events("task.lease_lost") == 5
        assert max(told) < 2 * LEASE


@pytest.mark.row("13", "slow and half-open connections")
def test_no_operation_outlives_the_lease(scene: Scene, full: bool) -> None:
    rounds = 10 if full else 1
    with Proxy(scene.server.ports[0], delay=0.25) as proxy:
        uri = proxy.uri_for(scene.database_name)
        scene.worker(task(hold=0.05), uri=uri)
        scene.worker(task(hold=0.05), uri=uri)
        writer = scene.writer(list(range(50)))
        recoveries: list[float] = []
        for _ in range(rounds):
            for line, seconds in ((Line.SLOW, 4), (Line.MUTE, 4), (Line.CUT, 1)):
                writer.begin(per_second=20)
                proxy.set(line)
                CLOCK.block(seconds)
                proxy.set(Line.CLEAR)
                writer.end()
                began = CLOCK.monotonic()
                verdict = scene.settle(writer, timeout=20)
                assert verdict.clean, f"after {line}: {verdict}\n{scene.errors()[-5:]}"
                recoveries.append(CLOCK.monotonic() - began)
        scene.conclude(
            scene.settle(writer), times=3 * rounds, recoveries=recoveries, held_back=proxy.held_back
        )
        assert proxy.held_back


@pytest.mark.row("14", "the database down")
def test_instances_outlive_their_database(scene: Scene, full: bool) -> None:
    seconds = 60 if full else 8
    member = scene.server.members[0]
    scene.worker(task(hold=0.5))
    scene.worker(task(hold=0.5))
    writer = scene.writer(list(range(20)))
    writer.write_all()
    assert scene.settle(writer).clean
    # Due while the database is away: claimed by nobody, no attempt counted.
    writer.write_all()
    before = [worker.cpu_seconds() for worker in scene.workers]
    member.kill()
    CLOCK.block(seconds)
    spent = [worker.cpu_seconds() - was for worker, was in zip(scene.workers, before, strict=True)]
    assert not member.alive
    member.restart()
    scene.server.await_ready(timeout=120)
    back_at = CLOCK.monotonic()
    verdict = scene.settle(writer)
    attempts = [run.attempt for run in scene.oracle.runs()]
    scene.conclude(
        verdict,
        times=1,
        recoveries=[CLOCK.monotonic() - back_at],
        cpu_seconds=spent,
        attempts=max(attempts),
        errors=len(scene.errors()),
    )
    assert all(worker.exit_status is None for worker in scene.workers), "a worker has crashed"
    assert max(spent) < 0.5 * seconds, "a busy loop while the database is away"
    writer.write_all()
    assert scene.settle(writer).clean
