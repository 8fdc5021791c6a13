"""Row 19: the collection or the database dropped, or renamed, under a running instance."""

from __future__ import annotations

import pytest
from harness import CLOCK, Scene, task, until
from harness.scene import SOURCE


@pytest.mark.row("19", "collection, database dropped or renamed")
def test_it_goes_on_unaided(scene: Scene, full: bool) -> None:
    rounds = 5 if full else 1
    scene.worker(task())
    scene.worker(task())
    writer = scene.writer(list(range(30)))
    recoveries: list[float] = []
    database, times = scene.database, 0

    def recovered() -> None:
        began = CLOCK.monotonic()
        verdict = scene.settle(writer, timeout=15)
        assert verdict.clean, f"{verdict}\n{scene.errors()[-10:]}"
        recoveries.append(CLOCK.monotonic() - began)

    for _ in range(rounds):
        writer.write_all()
        recovered()

        # Dropped, and inserted again with the same values: a new state, to be handled again.
        documents = list(database[SOURCE].find())
        wanted = len(scene.oracle.runs()) + len(documents)
        database.drop_collection(SOURCE)
        database[SOURCE].insert_many(documents)
        until(
            lambda wanted=wanted: len(scene.oracle.runs()) >= wanted,
            timeout=15,
            what="runs for documents that came back",
        )
        writer.burst(20)
        recovered()

        # Renamed away, and back.
        database[SOURCE].rename("elsewhere")
        CLOCK.block(0.3)
        database["elsewhere"].update_many({}, {"$inc": {"v": 1}})
        writer.latest.update({id_: version + 1 for id_, version in writer.latest.items()})
        database["elsewhere"].rename(SOURCE)
        recovered()

        # Another collection takes its name.
        database["other"].insert_many([{"_id": id_, "v": v + 1} for id_, v in writer.latest.items()])
        database["other"].rename(SOURCE, dropTarget=True)
        writer.latest.update({id_: version + 1 for id_, version in writer.latest.items()})
        recovered()

        # The records are dropped: they come back with the next reconciliation or change.
        database.drop_collection(f"{SOURCE}_tasks")
        writer.write_all()
        recovered()

        # The globals are dropped.
        database.drop_collection("_oplogue_globals")
        writer.write_all()
        recovered()

        # All of it is dropped.
        scene.client.drop_database(scene.database_name)
        writer.write_all()
        recovered()
        times += 7
    verdict = scene.settle(writer)
    gone = scene.count("planner.source_gone")
    scene.conclude(verdict, times=times, recoveries=recoveries, source_gone=gone)
    assert gone >= 2 * rounds
