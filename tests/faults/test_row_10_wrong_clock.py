"""Row 10: clients whose clocks are an hour off, and jump."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from harness import CLOCK, Run, Scene, Worker, task, until
from harness.clocks import ShiftedClock
from harness.scene import LEASE, SOURCE

HOUR = 3600


@pytest.mark.row("10", "client clocks ±1 h, and jumping")
def test_a_clients_clock_decides_nothing(scene: Scene, full: bool, tmp_path: Path) -> None:
    clocks = [ShiftedClock(tmp_path, "ahead", HOUR), ShiftedClock(tmp_path, "behind", -HOUR)]
    rounds = 10 if full else 1
    spec = task(hold=0.1, debounce=0.3, retry_min=0.5, retry_max=0.5, max_attempts=3)
    mine = {scene.worker(spec, environment=clock.environment).name: clock for clock in clocks}
    shown = subprocess.run(
        [sys.executable, "-c", "import time; print(time.time())"],
        env=clocks[0].environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert abs(float(shown.stdout) - CLOCK.now().timestamp() - HOUR) < 60, "the clock is not wrong"
    writer = scene.writer(list(range(40)))
    recoveries: list[float] = []
    for number in range(rounds):
        writer.write_all()
        failing = f"failing {number}"
        writer.write(failing, {"do": "raise"})
        until(
            lambda name=failing: scene.records().get(repr(name), {}).get("status") == "failed",
            timeout=15,
            what="the last attempt",
        )
        del writer.latest[failing]
        # The clocks jump while runs are on their way, and one instance dies.
        writer.write_all()
        for clock in clocks:
            clock.set(scene.random.randrange(-2 * HOUR, 2 * HOUR))
        victim = until(lambda: _busy(scene), timeout=15, what="a run to kill")
        assert victim is not None
        victim.kill()
        killed_at = CLOCK.monotonic()
        cut: list[tuple[Run, float]] = [(run, killed_at) for run in scene.oracle.in_flight(victim.name)]
        assert scene.settle(writer).clean
        recoveries += scene.redeliveries(cut)
        mine[scene.worker(spec, environment=mine[victim.name].environment).name] = mine[victim.name]
    verdict = scene.settle(writer)
    early = _too_early(scene, writer.acknowledged_at, debounce=0.3)
    waits = [
        later.started - run.started
        for run in scene.oracle.runs()
        for later in scene.oracle.runs()
        if run.id.startswith("'failing") and later.id == run.id and later.attempt == run.attempt + 1
    ]
    scene.conclude(verdict, times=2 * rounds, recoveries=recoveries, too_early=early, retry_waits=waits)
    assert not early, "runs before their debounce"
    assert len(waits) == 2 * rounds
    assert all(0.45 < wait < 2 for wait in waits), f"retries at {waits}"
    assert max(recoveries) < 2 * LEASE
    assert scene.database[SOURCE].count_documents({}) == 40 + rounds


def _busy(scene: Scene) -> Worker | None:
    """A worker with a run that may be killed: who claims first may have taken all."""
    return next(
        (one for one in scene.workers if one.exit_status is None and scene.oracle.in_flight(one.name)), None
    )


def _too_early(scene: Scene, acknowledged_at: dict[tuple[object, int], float], *, debounce: float) -> int:
    at = {(repr(id_), version): moment for (id_, version), moment in acknowledged_at.items()}
    first = {(run.id, run.version): run.started for run in reversed(scene.oracle.runs()) if run.attempt == 1}
    return sum(started < at[key] + debounce - 0.1 for key, started in first.items() if key in at)
