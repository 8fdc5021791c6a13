"""Row 29: deployments one instance after the other, with another filter and a higher handler version each."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest
from bson import Timestamp
from harness import CLOCK, Scene, task, until
from harness.scene import GLOBALS, TASK

INSTANCES = 2
POLICIES = ("none", "reprocess_failed", "reprocess_all")


@pytest.mark.row("29", "rolling deployments, two versions side by side")
def test_a_rolling_deployment_is_reconciled_once_and_settles(scene: Scene, full: bool) -> None:
    rounds = 24 if full else 3  # the last one reprocesses everything
    writer = scene.writer(list(range(100)))
    since = scene.now()
    old = [scene.worker(code(0)) for _ in range(INSTANCES)]
    settled: list[float] = []
    killed = 0
    writer.begin(per_second=100)
    for number in range(1, rounds + 1):
        began = CLOCK.monotonic()
        new = [scene.worker(code(number))]
        # An old instance that restarts meanwhile must not bring its definition back.
        old.append(scene.worker(code(number - 1)))
        leader = scene.leader()
        for worker in old:
            if worker is leader and number % 2:
                worker.kill()  # perhaps in the middle of the scan, or of the reset
                killed += 1
            else:
                worker.stop()
            if len(new) < INSTANCES:
                new.append(scene.worker(code(number)))
        until(
            lambda: is_settled(scene),
            timeout=60,
            what="a definition that is reconciled, and nothing to reset",
        )
        settled.append(CLOCK.monotonic() - began)
        old = new
    writer.end()
    verdict = scene.settle(writer, timeout=60)
    in_force, scans = history(scene, since)
    scene.conclude(
        verdict, times=rounds, recoveries=settled, definitions=len(in_force), scans=scans, killed=killed
    )
    assert killed, "no leader was killed"
    assert len(in_force) == len(set(in_force)) == rounds + 1, (
        "a definition came back, or never came into force"
    )
    assert scans == rounds + 1, "not one scan for each change"
    assert last_runs(scene) <= {worker.name for worker in old}, "older code had the last word"


def code(number: int) -> dict[str, Any]:
    """The task as a version of the code has it: all of them match all documents."""
    return task(
        filter={"v": {"$gt": -number}},
        evolution={
            "handler_version": number + 1,
            "on_handler_version_change": POLICIES[(number - 1) % len(POLICIES)],
        },
    )


def is_settled(scene: Scene) -> bool:
    """Whether the leader has nothing more to do for the last deployment."""
    stored = scene.database[GLOBALS].find_one({"_id": f"task:{TASK}"})
    return stored is not None and bool(stored["reconciled"]) and not stored["reprocess"]


def history(scene: Scene, since: Timestamp) -> tuple[list[str], int]:
    """The triggers that were in force, in order, and how often one was noted to be reconciled."""
    states: list[tuple[str, bool]] = []
    now: dict[str, Any] = {}
    end = scene.now()
    with scene.database[GLOBALS].watch(start_at_operation_time=since, max_await_time_ms=200) as changes:
        while (change := changes.try_next()) is not None and change["clusterTime"] <= end:
            if change["documentKey"]["_id"] != f"task:{TASK}":
                continue
            now |= change.get("fullDocument") or change["updateDescription"]["updatedFields"]
            states.append((now["hash"], now["reconciled"]))
    in_force = [hash_ for hash_, _ in groupby(hash_ for hash_, _ in states)]
    scans = sum(reconciled for reconciled, _ in groupby(reconciled for _, reconciled in states))
    return in_force, scans


def last_runs(scene: Scene) -> set[str]:
    """Who ran each document's record last, after a deployment that runs all of them again."""
    last = {run.id: run for run in sorted(scene.oracle.runs(), key=lambda run: run.started)}
    return {run.worker for run in last.values()}
