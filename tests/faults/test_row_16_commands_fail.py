"""Row 16: every command that the engine sends fails once, in every way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from harness import CLOCK, Scene, task
from harness.scene import GLOBALS, LEASE, SOURCE

RECORDS = f"{SOURCE}_tasks"
SITES = (
    ("aggregate", SOURCE),  # plans, and marks of what left; verifying looks
    ("aggregate", RECORDS),  # looks
    ("update", RECORDS),  # claims, outcomes, renewals, marks of what was deleted
    ("find", RECORDS),  # reading claims, suspects
    ("find", SOURCE),  # get_document, ends of ranges
    ("find", GLOBALS),  # definitions, the saved position
    ("update", GLOBALS),  # renewing the office, positions, definitions, heartbeats
    ("delete", GLOBALS),  # dead instances
    ("findAndModify", GLOBALS),  # elections
    ("insert", f"{GLOBALS}_signals"),
    ("getMore", f"{GLOBALS}_signals"),
    ("find", f"{GLOBALS}_signals"),
    ("getMore", "$cmd.aggregate"),  # the change stream
    ("aggregate", "$cmd.aggregate"),  # opening it
    ("ping", None),  # the cluster time that a stream opens at
    ("hello", None),
)
# Sent by a leader that comes into office: there is an election before the strike.
IN_OFFICE = {("findAndModify", GLOBALS), ("find", GLOBALS), ("aggregate", "$cmd.aggregate"), ("ping", None)}
# Sent for a document that is asked for alone: of several at the same moment an aggregate reads all.
ALONE = ("find", SOURCE)
# Sent by the signals' listener when its cursor has ended.
LISTENING = ("find", f"{GLOBALS}_signals")
WAYS: Mapping[str, dict[str, Any]] = {
    "closed": {"closeConnection": True},
    "189": {"errorCode": 189},
    "112": {"errorCode": 112},
    "50": {"errorCode": 50},
    "136": {"errorCode": 136},
}
# A statement is sent again by the driver once: more strikes than that reach the engine.
STRIKES = 4


@pytest.mark.row("16", "every command fails: closed, 189, 112, 50, 136")
def test_whatever_command_fails_nothing_is_lost(scene: Scene, full: bool) -> None:
    for _ in range(2):
        scene.worker(task(fetch=True, hold=0.01), concurrency=20)
    writer = scene.writer(list(range(40)))
    writer.write_all()
    struck: dict[str, int] = {}
    recoveries: list[float] = []
    for command, collection in SITES:
        for way in list(WAYS) if full else scene.random.sample(list(WAYS), 2):
            where: dict[str, Any] = {"failCommands": [command], "appName": "oplogue", **WAYS[way]}
            if collection is not None:
                where["namespace"] = f"{scene.database_name}.{collection}"
            for _ in range(5 if full else 1):
                if (command, collection) in IN_OFFICE:
                    scene.database[GLOBALS].update_one(
                        {"_id": "leader"}, {"$set": {"by": "nobody", "expiresAt": None}}
                    )
                if (command, collection) == LISTENING:
                    scene.database.drop_collection(f"{GLOBALS}_signals")
                before = struck.get(f"{command} {collection} {way}", 0)
                struck[f"{command} {collection} {way}"] = before + _strike(
                    scene,
                    writer,
                    where,
                    recoveries,
                    one_by_one=(command, collection) == ALONE,
                    slow=(command, collection) in IN_OFFICE or command == "delete",
                )
    verdict = scene.settle(writer)
    missed = [site for site, times in struck.items() if not times]
    scene.conclude(verdict, times=sum(struck.values()), recoveries=recoveries, struck=struck, missed=missed)
    everywhere = {site.rpartition(" ")[0] for site, times in struck.items() if times}
    sites = {f"{command} {collection}" for command, collection in SITES}
    assert everywhere == sites, f"never struck: {sites - everywhere}"


def _strike(
    scene: Scene,
    writer: Any,
    where: dict[str, Any],
    recoveries: list[float],
    *,
    one_by_one: bool,
    slow: bool,
) -> int:
    scene.fail_point.set(where, times=STRIKES)
    began = CLOCK.monotonic()
    writer.burst(10)
    # Some are sent only now and then; and where none comes at all, the list of what was struck tells.
    while not scene.fail_point.strikes and CLOCK.monotonic() < began + 2 * LEASE:
        CLOCK.block(0.05)
        if one_by_one:
            writer.burst(1)
    # A leader that was put out of office notices when it renews: a third of a lease; a heartbeat comes in half.
    CLOCK.block(LEASE * 0.6 if slow else 0.25)
    times = scene.fail_point.off()
    while scene.oracle.stuck("mark", SOURCE, writer.latest) and CLOCK.monotonic() < began + 15:
        CLOCK.block(0.02)
    assert CLOCK.monotonic() < began + 15, f"no recovery from {where}:\n{scene.errors()[-10:]}"
    recoveries.append(CLOCK.monotonic() - began)
    return times
