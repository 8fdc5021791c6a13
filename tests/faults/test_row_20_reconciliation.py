"""Row 20: leaders killed in the middle of a reconciliation, one after another, while somebody writes."""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import Binary, Decimal128, Int64, MaxKey, MinKey, ObjectId
from harness import CLOCK, Scene, Worker, task, until
from harness.oracle import Verdict
from harness.scene import GLOBALS, SOURCE, TASK
from pymongo import ReadPreference
from pymongo.write_concern import WriteConcern

LONGEST_RANGE = 4_000
ONCE: list[Any] = [MinKey(), MaxKey(), True, False, "", "$$ROOT", float("inf"), float("nan"), {}]


def ids(count: int) -> Iterator[Any]:
    """Ids of all types that there can be many of, mixed."""
    first = datetime(2001, 1, 1, tzinfo=UTC)
    yield from ONCE
    for number in range(count - len(ONCE)):
        match number % 8:
            case 0:
                yield number
            case 1:
                yield str(number)
            case 2:
                yield ObjectId()
            case 3:
                yield {"a": number, "b": {"c": "$x"}}
            case 4:
                yield Binary(uuid.UUID(int=number).bytes, 4)
            case 5:
                yield first + timedelta(seconds=number)
            case 6:
                yield Decimal128(f"{number}.5")
            case _:
                yield Int64(2**60 + number)


class Strokes:
    """Writes of documents that a scan has planned or will plan: every one of them makes another state."""

    def __init__(self, scene: Scene, written: list[Any]) -> None:
        database = scene.database.with_options(write_concern=WriteConcern("majority"))
        self._documents = database[SOURCE]
        self._random = scene.random
        self._ids = written
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.versions: dict[int, int] = {}

    def __enter__(self) -> Strokes:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(0.005):
            place = self._random.randrange(len(self._ids))
            self._documents.update_one({"_id": self._ids[place]}, {"$inc": {"v": 1}})
            self.versions[place] = self.versions.get(place, 1) + 1


@pytest.mark.row("20", "reconciliation killed, mixed ids, writes meanwhile")
def test_every_document_is_planned_and_little_is_planned_twice(scene: Scene, full: bool) -> None:
    count, kills = (1_000_000, 10) if full else (20_000, 3)
    all_ids = list(ids(count))
    for start in range(0, count, 10_000):
        scene.database[SOURCE].insert_many(
            [{"_id": id_, "v": 1} for id_ in all_ids[start : start + 10_000]], ordered=False
        )
    # Planned, not run: a million runs are another row's.
    environment = {"OPLOGUE_RECONCILIATION_PACE": "1" if full else "0.2"}
    reworked: list[int] = []
    recoveries: list[float] = []
    with Strokes(scene, all_ids) as strokes:
        worker = _planner(scene, environment)
        for number in range(kills):
            until(
                lambda least=count * (number + 1) // (kills + 2): _reached(scene) >= least,
                timeout=600 if full else 40,
                what=lambda known=worker: f"progress; {_reached(scene)}\n{known.log_tail()}",
                every=0.002,
            )
            planned = scene.database[f"{SOURCE}_tasks"].estimated_document_count()
            worker.kill()
            reached = _reached(scene)
            killed_at = CLOCK.monotonic()
            worker = _planner(scene, environment)
            worker.await_event("reconciliation.started", timeout=60)
            recoveries.append(CLOCK.monotonic() - killed_at)
            assert _resumed(worker) >= reached, "the scan went back behind its checkpoint"
            reworked.append(max(planned - reached, 0))
        worker.await_event("reconciliation.finished", timeout=900 if full else 60)
    verdict = until(
        lambda: verdict if (verdict := _verdict(scene, count)).clean else None,
        timeout=60,
        what=lambda: str(_verdict(scene, count)),
        every=0.5,
    )
    assert verdict is not None
    scene.conclude(
        verdict,
        times=kills,
        recoveries=recoveries,
        documents=count,
        written=len(strokes.versions),
        planned_twice_at_most=max(reworked),
    )
    assert strokes.versions, "nobody wrote meanwhile"
    assert max(reworked) <= LONGEST_RANGE + len(strokes.versions)


def _planner(scene: Scene, environment: dict[str, str]) -> Worker:
    """A worker without slots: what it plans stays pending, and can be compared with the documents."""
    return scene.worker(task(watch={"v": 1}), concurrency=0, environment=environment, wait=False)


def _reached(scene: Scene) -> int:
    scan = scene.database[GLOBALS].find_one({"_id": f"scan:{scene.database_name}.{SOURCE}"})
    return int(scan["documents"]) if scan is not None else 0


def _resumed(worker: Worker) -> int:
    """How many documents were done, by the word of the new leader."""
    said = [entry["message"] for entry in worker.log() if entry.get("code") == "reconciliation.started"]
    found = re.search(r"documents=(\d+)", said[0])
    assert found is not None
    return int(found[1])


def _verdict(scene: Scene, count: int) -> Verdict:
    """Every document has its record, and each record its document's values; compared where they are."""
    behind = scene.database.get_collection(SOURCE, read_preference=ReadPreference.PRIMARY).aggregate(
        [
            {
                "$lookup": {
                    "from": f"{SOURCE}_tasks",
                    "localField": "_id",
                    "foreignField": "sourceDocId",
                    "as": "records",
                }
            },
            {"$match": {"$expr": {"$ne": ["$records.lastObservedValues", [{"v": "$v"}]]}}},
            {"$project": {"_id": 1}},
        ]
    )
    lost = tuple(repr(document["_id"]) for document in behind)
    odd = scene.database[f"{SOURCE}_tasks"].count_documents({"task": TASK, "status": {"$ne": "pending"}})
    return Verdict(lost=lost, stuck=("not pending",) * odd, effects_off=0, duplicates=0, runs=0, writes=count)
