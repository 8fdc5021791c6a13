"""Row 23: task and meta records edited by hand into nonsense."""

from __future__ import annotations

from typing import Any

import pytest
from harness import CLOCK, Scene, task, until
from harness.scene import GLOBALS, SOURCE

NONSENSE: tuple[Any, ...] = (None, "nonsense", -1, 3.5, True, [1, [2]], {"a": {"$b": 1}}, float("nan"))
FIELDS = (
    *("status", "nextRunAt", "dueAt", "attempts", "lastObservedValues", "lastError", "firstErrorAt"),
    *("createdAt", "updatedAt", "startedAt", "completedAt", "lastFinalizedAt", "lastSuccess"),
    *("executionHistory", "oplogue", "oplogue.token", "oplogue.term", "oplogue.hash", "oplogue.event"),
    *("oplogue.left", "oplogue.touched", "oplogue.lost", "oplogue.alone", "oplogue.changedAt"),
)


@pytest.mark.row("23", "task records edited into nonsense")
def test_the_loop_lives_with_nonsense_in_task_records(scene: Scene, full: bool) -> None:
    edits = [(field, value) for field in FIELDS for value in NONSENSE]
    if not full:
        edits = scene.random.sample(edits, 100)
    worker = scene.worker(task(), concurrency=50)
    spoilt, healthy = scene.writer(list(range(1000, 1000 + len(edits)))), scene.writer(list(range(50)))
    spoilt.write_all()
    healthy.write_all()
    assert scene.settle(spoilt).clean
    records = scene.database[f"{SOURCE}_tasks"]
    due = scene.client.admin.command("hello")["localTime"]
    for number, (field, value) in enumerate(edits):
        theirs = {"sourceDocId": 1000 + number}
        # Half of them are due as they stand, so that they are claimed with the nonsense in them.
        running = {"status": "pending", "nextRunAt": due} if number % 2 else {}
        change = {name: it for name, it in running.items() if name != field}
        assert records.update_one(theirs, {"$set": {**change, field: value}}).matched_count == 1
    began = CLOCK.monotonic()
    healthy.write_all()
    verdict = scene.settle(healthy)
    took = CLOCK.monotonic() - began
    assert verdict.clean, f"{verdict}\n{scene.errors()[-5:]}"
    # A change of the documents plans the nonsense anew.
    spoilt.write_all()
    healthy.write_all()
    verdict = scene.settle(healthy)
    left = scene.settle(spoilt, timeout=8)
    odd = {edits[int(one.partition(":")[0]) - 1000]: one for one in left.stuck}
    parked = scene.count("planner.parked")
    scene.conclude(
        verdict,
        times=len(edits),
        recoveries=[took],
        left_odd=[f"{field}={value!r}: {how}" for (field, value), how in odd.items()],
        parked=parked,
        part_failed=worker.events("part.failed"),
    )
    assert worker.events("part.failed") == 0, scene.errors()[:5]
    # The field that says whether a record may run is the one that nobody can guess.
    beyond = [
        f"{field}={value!r}: {how}"
        for (field, value), how in odd.items()
        if field not in ("status", "nextRunAt")
    ]
    assert not beyond, "\n".join(beyond)


@pytest.mark.row("23m", "meta records edited into nonsense")
def test_the_loop_lives_with_nonsense_in_the_globals(scene: Scene, full: bool) -> None:
    scene.worker(task())
    scene.worker(task())
    writer = scene.writer(list(range(20)))
    globals_ = scene.database[GLOBALS]
    edits: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for value in NONSENSE:
        edits += [
            ({"_id": "leader"}, {field: value}) for field in ("term", "by", "expiresAt", "position", "since")
        ]
        edits += [
            ({"_id": "task:mark"}, {field: value})
            for field in (
                "trigger",
                "hash",
                "reconciled",
                "replaced",
                "debounce",
                "retryPolicy",
                "collection",
            )
        ]
        edits += [({"_id": {"$regex": "^instance:"}}, {field: value}) for field in ("carries", "expiresAt")]
        edits += [
            ({"_id": "controls"}, {"tasks": value}),
            ({"_id": "controls"}, {"tasks": [{"task": value}]}),
        ]
    edits += [({"_id": "leader"}, {"term": 2**62}), ({"_id": "leader"}, {"expiresAt": scene.random.random()})]
    if not full:
        edits = scene.random.sample(edits, 10)
    recoveries: list[float] = []
    for which, change in edits:
        globals_.update_one(which, {"$set": change}, upsert="$regex" not in str(which))
        writer.burst(10)
        began = CLOCK.monotonic()
        verdict = scene.settle(writer, timeout=30)
        logs = "\n".join(worker.log_tail(15) for worker in scene.workers)
        assert verdict.clean, f"{which} {change}: {verdict}\n{logs}"
        recoveries.append(CLOCK.monotonic() - began)
        globals_.delete_one({"_id": "controls"})
    until(lambda: scene.leader(), timeout=10, what="a leader")
    scene.conclude(
        scene.settle(writer), times=len(edits), recoveries=recoveries, edits=[str(one) for one in edits]
    )
