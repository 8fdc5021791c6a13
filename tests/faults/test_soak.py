"""The soak: ``make soak``. An hour of mixed faults on three members; nothing is lost, and nothing grows.

Two workers live through all of it, frozen at times: what they hold (memory, descriptors, threads, coroutines) must
be in the end what it was after the first minutes. Two others are killed again and again.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import pytest
from harness import CLOCK, Scene, Worker, task, until
from harness.scene import LEASE
from pymongo.errors import PyMongoError

from oplogue.embedded import EmbeddedMember

WAYS = ({"closeConnection": True}, {"errorCode": 189}, {"errorCode": 112}, {"errorCode": 50})
COMMANDS = ("find", "aggregate", "update", "getMore", "findAndModify", "insert", "delete")
MAY_GROW: Mapping[str, tuple[float, float]] = {
    "kilobytes": (1.2, 20_000),
    "descriptors": (1.0, 15),
    "threads": (1.0, 4),
    "coroutines": (1.0, 15),
}
"""By what factor, and by how much more, the last third may be above the second."""
SPEC = task(hold=0.02)


class Faults:
    """What happens, one after another."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.happened: Counter[str] = Counter()
        self.old = [scene.worker(SPEC), scene.worker(SPEC)]
        self._young = [scene.worker(SPEC), scene.worker(SPEC)]
        self._every: Sequence[Callable[[], None]] = (
            *(
                self.kill_worker,
                self.freeze_worker,
                self.freeze_young,
                self.fail_commands,
                self.cut_connections,
            ),
            *(self.kill_worker, self.step_down, self.kill_primary, self.freeze_primary),
        )

    def strike(self) -> None:
        """One of them, chosen by the seed."""
        fault = self._scene.random.choice(self._every)
        fault()
        self.happened[fault.__name__] += 1

    def kill_worker(self) -> None:
        """One of the young; another takes its place."""
        place = self._scene.random.randrange(len(self._young))
        self._young[place].kill()
        self._young[place] = self._scene.worker(SPEC, wait=False)

    def freeze_worker(self) -> None:
        """One of the old, for more than a lease."""
        self._freeze(self._scene.random.choice(self.old))

    def freeze_young(self) -> None:
        """One of the young."""
        self._freeze(self._scene.random.choice(self._young))

    def _freeze(self, worker: Worker) -> None:
        worker.freeze()
        CLOCK.block(1.5 * LEASE)
        worker.thaw()

    def fail_commands(self) -> None:
        """The server answers with errors."""
        self._fail([self._scene.random.choice(COMMANDS)], self._scene.random.choice(WAYS), times=10)

    def cut_connections(self) -> None:
        """The server closes the connection of whoever asks."""
        self._fail(COMMANDS, WAYS[0], times=100)

    def _fail(self, commands: Sequence[str], way: Mapping[str, object], *, times: int) -> None:
        where = {"failCommands": list(commands), "appName": "oplogue", **way}
        with contextlib.suppress(PyMongoError):
            self._scene.fail_point.set(where, times=times)
            CLOCK.block(1)
            self._scene.fail_point.off()

    def step_down(self) -> None:
        """The primary is asked to."""
        with contextlib.suppress(PyMongoError):
            self._scene.client.admin.command("replSetStepDown", 3, secondaryCatchUpPeriodSecs=2)
        self._scene.server.await_ready(timeout=120)

    def kill_primary(self) -> None:
        """And it comes back."""
        primary = self._primary()
        primary.kill()
        CLOCK.block(3)
        primary.restart()
        self._scene.server.await_ready(timeout=120)

    def freeze_primary(self) -> None:
        """The others elect another."""
        primary = self._primary()
        primary.freeze()
        CLOCK.block(6)
        primary.thaw()
        self._scene.server.await_ready(timeout=120)

    def _primary(self) -> EmbeddedMember:
        def find() -> EmbeddedMember | None:
            with contextlib.suppress(PyMongoError):
                host = str(self._scene.client.admin.command("hello").get("primary", ""))
                members = self._scene.server.members
                return next((one for one in members if host.endswith(f":{one.port}")), None)
            return None

        found = until(find, timeout=30, what="a primary", every=0.05)
        assert found is not None
        return found


@pytest.mark.row("soak", "mixed faults on three members")
def test_nothing_is_lost_and_nothing_grows(scene_of_three: Scene, minutes: float) -> None:
    scene = scene_of_three
    faults = Faults(scene)
    writer = scene.writer(list(range(300)))
    writer.begin(per_second=40)
    samples: list[Mapping[str, Mapping[str, int]]] = []
    end = CLOCK.monotonic() + 60 * minutes
    while CLOCK.monotonic() < end:
        faults.strike()
        CLOCK.block(scene.random.uniform(1, 4))
        samples.append({worker.name: worker.holds() for worker in faults.old})
    writer.end()
    verdict = scene.settle(writer, timeout=120)
    grown = {name: _growth([sample[name] for sample in samples]) for name in samples[0]}
    scene.conclude(
        verdict,
        times=sum(faults.happened.values()),
        recoveries=writer.gaps,
        minutes=minutes,
        happened=dict(faults.happened),
        grown=grown,
        lease_lost=scene.count("task.lease_lost"),
    )
    assert all(worker.exit_status is None for worker in faults.old), "a worker has crashed"
    assert len(faults.happened) > 4
    for name, what in itertools.product(grown, MAY_GROW):
        before, after = grown[name][what]
        factor, more = MAY_GROW[what]
        assert after <= before * factor + more, f"{what} of {name} grew from {before} to {after}"


def _growth(samples: Sequence[Mapping[str, int]]) -> dict[str, tuple[float, float]]:
    """The medians of the second and of the last third: the first is for warming up."""
    third = len(samples) // 3
    assert third, "too short to tell"
    middle, last = samples[third : 2 * third], samples[2 * third :]
    return {
        what: (
            statistics.median(sample[what] for sample in middle),
            statistics.median(sample[what] for sample in last),
        )
        for what in MAY_GROW
    }
