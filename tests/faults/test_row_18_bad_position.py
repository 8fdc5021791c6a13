"""Row 18: a saved position that is corrupt, foreign, in the future, or of another pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from bson import Timestamp
from harness import CLOCK, Scene, task
from harness.scene import GLOBALS

Edit = Mapping[str, Any]


def _edits(scene: Scene) -> dict[str, Edit]:
    with scene.client["elsewhere"].watch() as changes:
        scene.client["elsewhere"]["things"].insert_one({})
        changes.next()
        foreign = changes.resume_token
    with scene.client["elsewhere"].watch() as changes:
        scene.client["elsewhere"].drop_collection("things")
        scene.client.drop_database("elsewhere")
        while changes.next()["operationType"] != "invalidate":
            pass
        invalidated = changes.resume_token
    now = scene.now()
    return {
        "token is no hex": {"position.token": {"_data": "zz"}},
        "token is empty": {"position.token": {"_data": ""}},
        "token is cut off": {"position.token": {"_data": "8264"}},
        "token is of another kind": {"position.token": {"_data": "1E0000"}},
        "token is no document": {"position.token": 17},
        "token is foreign": {"position.token": foreign},
        "token is an invalidation": {"position.token": invalidated},
        "pipeline is another": {"position.pipeline": "0" * 16},
        "target is another": {"position.target": "elsewhere"},
        "time is in the future": {"position.time": Timestamp(now.time + 86_400, 1)},
        "time and token are in the future": {
            "position.time": Timestamp(now.time + 86_400, 1),
            "position.token": {"_data": f"82{now.time + 86_400:08x}00000001".upper() + "2B0229296E04"},
        },
        "token is in the future": {
            "position.token": {"_data": f"82{now.time + 86_400:08x}00000001".upper() + "2B0229296E04"}
        },
        "time is no time": {"position.time": "yesterday"},
        "time is the first": {"position.time": Timestamp(1, 1), "position.token": None},
        "covers is no list": {"position.covers": 5},
        "position is no document": {"position": "here"},
    }


@pytest.mark.row("18", "position corrupt, foreign, in the future")
def test_a_bad_position_is_recovered_from(scene: Scene, full: bool) -> None:
    writer = scene.writer(list(range(20)))
    recoveries: list[float] = []
    every = _edits(scene)
    bad = {what: every[what] for what in (every if full else scene.random.sample(list(every), 8))}
    worker = scene.worker(task())
    for what, edit in bad.items():
        writer.burst(10)
        assert scene.settle(writer).clean
        worker.kill()
        writer.burst(15)
        # Nobody leads any more, and there is a position to spoil.
        changed = scene.database[GLOBALS].update_one(
            {"_id": "leader", "position": {"$exists": True}}, {"$set": {**edit, "expiresAt": None}}
        )
        assert changed.modified_count == 1, f"nothing to spoil: {what}"
        began = CLOCK.monotonic()
        worker = scene.worker(task())
        verdict = scene.settle(writer, timeout=10)
        assert verdict.clean, f"{what}: {verdict}\n{worker.log_tail()}"
        recoveries.append(CLOCK.monotonic() - began)
        # And what is written from now on is seen.
        writer.burst(10)
        verdict = scene.settle(writer, timeout=10)
        assert verdict.clean, f"after {what}: {verdict}\n{worker.log_tail()}"
        assert worker.events("planner.history_lost") <= 1, f"{what}: {worker.log_tail()}"
    scene.conclude(scene.settle(writer), times=len(bad), recoveries=recoveries, edits=list(bad))
