"""Row 10: clients whose clocks are an hour off, and jump."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness import CLOCK, Run, Scene, task, until
from harness.scene import LEASE, SOURCE

HOUR = 3600


@pytest.mark.row("10", "client clocks ±1 h, and jumping")
def test_a_clients_clock_decides_nothing(scene: Scene, full: bool, tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("needs Linux and a C compiler")
    library, offset = tmp_path / "shifted_clock.so", [tmp_path / "ahead", tmp_path / "behind"]
    source = Path(__file__).with_name("shifted_clock.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    rounds = 10 if full else 1
    spec = task(hold=0.1, debounce=0.3, retry_min=0.5, retry_max=0.5, max_attempts=3)
    for path, seconds in zip(offset, (HOUR, -HOUR), strict=True):
        path.write_text(str(seconds), encoding="ascii")
        scene.worker(spec, environment={"LD_PRELOAD": str(library), "SHIFTED_CLOCK": str(path)})
    shown = subprocess.run(
        [sys.executable, "-c", "import time; print(time.time())"],
        env={"LD_PRELOAD": str(library), "SHIFTED_CLOCK": str(offset[0])},
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
        for path in offset:
            path.write_text(str(scene.random.randrange(-2 * HOUR, 2 * HOUR)), encoding="ascii")
        victim = scene.workers[-1]
        until(lambda name=victim.name: scene.oracle.in_flight(name), timeout=15, what="a run to kill")
        victim.kill()
        killed_at = CLOCK.monotonic()
        cut: list[tuple[Run, float]] = [(run, killed_at) for run in scene.oracle.in_flight(victim.name)]
        assert scene.settle(writer).clean
        recoveries += scene.redeliveries(cut)
        scene.worker(spec, environment={"LD_PRELOAD": str(library), "SHIFTED_CLOCK": str(offset[1])})
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


def _too_early(scene: Scene, acknowledged_at: dict[tuple[object, int], float], *, debounce: float) -> int:
    at = {(repr(id_), version): moment for (id_, version), moment in acknowledged_at.items()}
    first = {(run.id, run.version): run.started for run in reversed(scene.oracle.runs()) if run.attempt == 1}
    return sum(started < at[key] + debounce - 0.1 for key, started in first.items() if key in at)
