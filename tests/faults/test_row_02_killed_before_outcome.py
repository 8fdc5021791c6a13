"""Rows 2 and 27: killed between the effect and its outcome; the commit's result unknown."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from harness import CLOCK, Run, Scene, task, until
from harness.scene import EFFECTS, SOURCE


@pytest.fixture
def short_transactions(scene: Scene) -> Iterator[None]:
    """The server keeps a dead client's open transaction, and its lock on the record, for a minute by default."""
    limit = "transactionLifetimeLimitSeconds"
    scene.client.admin.command({"setParameter": 1, limit: 3})
    yield
    scene.client.admin.command({"setParameter": 1, limit: 60})


@pytest.mark.row("2", "killed between effect and outcome, plain")
def test_plain_effects_are_repeated_and_none_is_lost(scene: Scene, full: bool) -> None:
    documents = 200 if full else 12
    spec = task(die_after_effect=True)
    workers = [scene.worker(spec, concurrency=1), scene.worker(spec, concurrency=1)]
    writer = scene.writer(list(range(documents)))
    for id_ in range(documents):
        writer.write(id_, {"do": "die"})
    deaths = 0
    deadline = CLOCK.monotonic() + 15 * documents
    while deaths < documents and CLOCK.monotonic() < deadline:
        for place, worker in enumerate(workers):
            if worker.exit_status is not None:
                assert worker.exit_status == 9
                deaths += 1
                workers[place] = scene.worker(spec, concurrency=1, wait=False)
        if not scene.oracle.stuck("mark", SOURCE, writer.latest):
            break
        CLOCK.block(0.05)
    verdict = scene.settle(writer)
    scene.conclude(verdict, times=deaths)
    assert deaths
    assert verdict.duplicates == deaths, "each death repeats one effect, and no other is repeated"


@pytest.mark.usefixtures("short_transactions")
@pytest.mark.row("2t", "killed between effect and outcome, transaction")
def test_transactional_effects_are_applied_exactly_once(scene: Scene, full: bool) -> None:
    kills = 200 if full else 8
    # The kill strikes while the effect is written and the completion, or the commit, is not.
    spec = task(transactional=True, hold=0.2)
    for _ in range(3):
        scene.worker(spec, wait=False)
    for worker in list(scene.workers):
        worker.await_started()
    writer, since = scene.writer(list(range(40))), scene.now()
    writer.begin(per_second=20)
    interrupted: list[tuple[Run, float]] = []
    for _ in range(kills):
        victim = scene.random.choice([worker for worker in scene.workers if worker.exit_status is None])
        until(lambda name=victim.name: scene.oracle.in_flight(name), timeout=20, what="a run to kill")
        CLOCK.block(scene.random.random() * 0.25)
        assert victim.kill() == -signal.SIGKILL
        killed_at = CLOCK.monotonic()
        interrupted.extend((run, killed_at) for run in scene.oracle.in_flight(victim.name))
        scene.worker(spec, wait=False)
    writer.end()
    verdict = scene.settle(writer, effects=EFFECTS, by_effects=True)
    if not verdict.clean:
        scene.history(since)
    scene.conclude(verdict, times=kills, recoveries=scene.redeliveries(interrupted))
    assert interrupted, "no kill struck a running handler"


@pytest.mark.usefixtures("short_transactions")
@pytest.mark.row("27", "commit: closed, unknown, aborted")
def test_a_commit_whose_result_is_unknown_applies_exactly_once(scene: Scene, full: bool) -> None:
    rounds = 50 if full else 3
    spec = task(transactional=True)
    scene.worker(spec)
    scene.worker(spec)
    writer = scene.writer(list(range(30)))
    struck, since = 0, scene.now()
    ways = (
        {"failCommands": ["commitTransaction"], "closeConnection": True},
        {"failCommands": ["commitTransaction"], "errorCode": 189},
        {
            "failCommands": ["commitTransaction"],
            "errorCode": 50,
            "errorLabels": ["UnknownTransactionCommitResult"],
        },
        {
            "failCommands": ["commitTransaction"],
            "errorCode": 251,
            "errorLabels": ["TransientTransactionError"],
        },
        {"failCommands": ["commitTransaction"], "writeConcernError": {"code": 91, "errmsg": "shutting down"}},
        {"failCommands": ["update"], "errorCode": 112, "errorLabels": ["TransientTransactionError"]},
    )
    for _ in range(rounds):
        for way in ways:
            scene.fail_point.set({"appName": "oplogue", **way}, times=3)
            writer.burst(20)
            CLOCK.block(0.3)
            struck += scene.fail_point.off()
    verdict = scene.settle(writer, effects=EFFECTS, by_effects=True)
    if not verdict.clean:
        scene.history(since)
    scene.conclude(verdict, times=struck)
    assert struck >= 3 * len(ways)
