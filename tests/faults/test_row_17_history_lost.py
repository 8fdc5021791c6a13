"""Row 17: the oplog truncated past the saved position."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from bson import Timestamp
from harness import CLOCK, Scene, task, until
from harness.scene import GLOBALS
from pymongo.write_concern import WriteConcern

from oplogue.embedded import start_embedded

SMALL = ("--oplogSize", "8", "--syncdelay", "1", "--setParameter", "enableTestCommands=1")


@pytest.mark.row("17", "oplog truncated past the position")
def test_a_lost_history_ends_in_a_reconciliation(scene_on: Callable[..., Scene], full: bool) -> None:
    rounds = 5 if full else 1
    with start_embedded(extra_args=SMALL) as server:
        scene = scene_on(server)
        writer = scene.writer(list(range(300)))
        recoveries: list[float] = []
        for _ in range(rounds):
            # Nobody is there while the history goes by.
            worker = scene.worker(task())
            writer.burst(100)
            assert scene.settle(writer).clean
            assert worker.stop() == 0
            writer.burst(150)
            _truncate(scene, _position(scene))
            began = CLOCK.monotonic()
            worker = scene.worker(task())
            worker.await_event("planner.history_lost")
            assert scene.settle(writer).clean
            recoveries.append(CLOCK.monotonic() - began)
            # The leader itself is frozen, and wakes up behind the history.
            worker.freeze()
            writer.burst(150)
            _truncate(scene, scene.now())
            began = CLOCK.monotonic()
            worker.thaw()
            until(
                lambda known=worker: (
                    known.events("planner.stream_error") + known.events("planner.history_lost") > 1
                ),
                timeout=20,
                what="the stream to break",
            )
            assert scene.settle(writer).clean
            recoveries.append(CLOCK.monotonic() - began)
            worker.stop()
        scene.conclude(scene.settle(writer), times=2 * rounds, recoveries=recoveries)
        scene.close()


def _position(scene: Scene) -> Timestamp:
    leader = scene.database[GLOBALS].find_one({"_id": "leader"})
    assert leader is not None
    time = leader["position"]["time"]
    assert isinstance(time, Timestamp)
    return time


def _truncate(scene: Scene, past: Timestamp) -> None:
    junk = scene.client["junk"].get_collection("junk", write_concern=WriteConcern(1))
    oplog = scene.client["local"]["oplog.rs"]

    def gone() -> bool:
        junk.insert_many([{"filling": "x" * 100_000} for _ in range(100)])
        junk.delete_many({})
        first = oplog.find_one({}, sort=[("$natural", 1)])
        return first is not None and first["ts"] > past

    until(gone, timeout=60, what="the oplog's truncation", every=0.2)
