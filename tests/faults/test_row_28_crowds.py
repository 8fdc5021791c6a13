"""Row 28: one task's crowd beside another's few; an update storm on a debounced document."""

from __future__ import annotations

import itertools

import pytest
from harness import CLOCK, Scene, percentile, task, until
from harness.scene import SOURCE


@pytest.mark.row("28", "one task's crowd beside another's few")
def test_a_crowd_does_not_delay_the_few(scene: Scene, full: bool) -> None:
    crowd = 1_000_000 if full else 80_000
    tasks = [task("crowd", collection="crowd"), task()]
    documents = scene.database["crowd"]
    for start in range(0, crowd, 10_000):
        documents.insert_many([{"_id": start + place, "v": 1} for place in range(10_000)], ordered=False)
    scene.worker(*tasks, concurrency=50)
    until(lambda: scene.oracle.runs("crowd"), timeout=60, what="the crowd to be planned")
    writer = scene.writer(list(range(100)))
    for id_ in range(100):
        writer.write(id_)
        CLOCK.block(0.01)
    verdict = scene.settle(writer, timeout=60)
    waits = [
        run.started - writer.acknowledged_at[int(run.id), run.version]
        for run in scene.oracle.runs("mark")
        if run.attempt == 1
    ]
    still = documents.count_documents({}) - len(scene.oracle.runs("crowd"))
    scene.conclude(verdict, times=crowd, recoveries=waits, crowd_left=still)
    assert still > 0, "the crowd was gone before the few came"
    assert (percentile(waits, 99) or 0) < 3


@pytest.mark.row("28s", "an update storm on a debounced document")
def test_a_document_that_never_rests_runs_within_max_wait(scene: Scene, full: bool) -> None:
    seconds, max_wait = (60, 3) if full else (8, 2)
    scene.worker(task(debounce=1, max_wait=max_wait))
    writer = scene.writer(["restless"])
    writer.begin(per_second=20)
    CLOCK.block(seconds)
    writer.end()
    during = [run.started for run in scene.oracle.runs()]
    verdict = scene.settle(writer)
    gaps = [later - earlier for earlier, later in itertools.pairwise(during)]
    scene.conclude(verdict, times=len(writer.acknowledged_at), recoveries=gaps)
    assert gaps, "it never ran while it changed"
    assert max(gaps) < max_wait + 1.5
    assert min(gaps) > 0.9, "it ran before its debounce"
    assert scene.database[SOURCE].count_documents({}) == 1
