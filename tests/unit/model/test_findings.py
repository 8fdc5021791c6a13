"""What the facts of a check-up are taken for."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from oplogue.model.checkup import (
    Access,
    Facts,
    Finding,
    Oplog,
    Privilege,
    Records,
    Server,
    Settings,
    TaskFacts,
)
from oplogue.model.findings import judge, weak_settings

NOW = datetime(2026, 1, 2, tzinfo=UTC)
SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
ALL = frozenset({"find", "insert", "update", "remove", "createCollection", "createIndex", "listIndexes"})
SERVER = Server((7, 0, 5), "rs0", sharded=False, clock_offset=timedelta(), clock_doubt=timedelta())
SOUND = Settings(SECOND, 2 * SECOND, None, 10 * SECOND, None, None, retries_writes=True)
OPLOG = Oplog(48 * HOUR, fill=1.0, oldest=NOW - 48 * HOUR)
TASK = TaskFacts("sync", carried=True, reconciled=True, paused_until=None, failed=0, parked=0)
ACCESS = Access(None, None, {"shop": frozenset({"_oplogue_globals", "orders_tasks"})}, frozenset({"shop"}))
WELL = Facts(
    server=SERVER,
    settings=SOUND,
    now=NOW,
    access=ACCESS,
    globals_collection="_oplogue_globals",
    default_write_concern=None,
    arbiters=0,
    oplog=OPLOG,
    position_at=NOW - SECOND,
    signals="capped",
    leader="one",
    instances=2,
    tasks=(TASK,),
    records=(Records("shop.orders", exists=True, missing_indexes=()),),
)


def amiss(facts: Facts) -> list[Finding]:
    """What is not well."""
    return [finding for finding in judge(facts) if finding.level != "ok"]


def only(facts: Facts) -> Finding:
    """The one thing that is not well; it says how to mend it."""
    (finding,) = amiss(facts)
    assert finding.mend
    return finding


def server(**changes: Any) -> Facts:
    return replace(WELL, server=replace(SERVER, **changes))


def task(**changes: Any) -> Facts:
    return replace(WELL, tasks=(replace(TASK, **changes),))


def user(*privileges: Privilege, **changes: Any) -> Facts:
    return replace(WELL, access=replace(ACCESS, user="app@admin", privileges=privileges, **changes))


def test_a_deployment_that_is_well_has_nothing_but_good_findings() -> None:
    assert not amiss(WELL)
    assert len(judge(WELL)) >= 10


@pytest.mark.parametrize(
    ("facts", "check", "level", "words"),
    [
        (server(version=(5, 0, 30)), "version", "problem", "MongoDB 5.0.30 is too old"),
        (server(clock_offset=-3 * SECOND), "clock", "warning", "-3.0 s off"),
        (server(member_offsets={"a": SECOND, "b": -SECOND}), "members' clocks", "warning", "by 2.0 s"),
        (server(member_offsets={"a": 0 * SECOND, "b": HOUR}), "members' clocks", "problem", "by 3600.0 s"),
        (replace(WELL, oplog=None), "oplog", "warning", "could not be read"),
        (replace(WELL, oplog=replace(OPLOG, window=12 * HOUR)), "oplog", "warning", "less than a day"),
        (replace(WELL, oplog=replace(OPLOG, window=HOUR / 2)), "oplog", "problem", "full reconciliation"),
        (replace(WELL, oplog=replace(OPLOG, window=HOUR, fill=0.1)), "oplog", "warning", "about 10h"),
        (replace(WELL, position_at=NOW - 30 * HOUR), "position", "problem", "more than half"),
        (replace(WELL, position_at=NOW - 50 * HOUR), "position", "problem", "no longer reaches back"),
        (replace(WELL, signals="plain"), "signals", "warning", "not capped"),
        (replace(WELL, signals="missing"), "signals", "warning", "missing"),
        (replace(WELL, default_write_concern=1), "write concern", "warning", "w: 1"),
        (replace(WELL, arbiters=1), "arbiters", "warning", "1 arbiter"),
        (replace(WELL, leader=None), "leader", "problem", "none leads"),
        (replace(WELL, instances=0, leader=None), "instances", "warning", "no instance is alive"),
        (task(carried=False), "tasks", "warning", "sync: no live instance runs it"),
        (task(paused_until=datetime(9999, 12, 31, tzinfo=UTC)), "tasks", "warning", "paused without an end"),
        (task(paused_until=NOW + HOUR), "tasks", "warning", "paused until 2026-01-02 01:00 UTC"),
        (task(failed=3), "tasks", "warning", "sync: 3 records failed for good"),
        (task(parked=1), "tasks", "warning", "sync: 1 records could not be planned (parked)"),
    ],
)
def test_what_is_not_well_is_one_finding_with_the_way_to_mend_it(
    facts: Facts, check: str, level: str, words: str
) -> None:
    finding = only(facts)
    assert (finding.check, finding.level) == (check, level)
    assert words in finding.text


@pytest.mark.parametrize(
    "facts",
    [
        server(clock_offset=3 * SECOND, clock_doubt=2.5 * SECOND),
        server(member_offsets={"a": SECOND, "b": -SECOND}, clock_doubt=SECOND / 2),
        replace(WELL, oplog=replace(OPLOG, window=SECOND, fill=0.001)),
        replace(WELL, signals="missing", instances=0, leader=None, tasks=()),
        task(paused_until=NOW - HOUR),
        task(reconciled=False),
    ],
)
def test_what_may_be_well_is_not_complained_of(facts: Facts) -> None:
    assert [finding.check for finding in amiss(facts) if finding.check != "instances"] == []


def test_each_missing_index_is_a_problem_with_the_command_that_builds_it() -> None:
    records = Records("shop.orders", exists=True, missing_indexes=(("oplogue_due", "createIndex(…)"),))
    finding = only(replace(WELL, records=(records,)))
    assert finding.text == "the records of shop.orders lack oplogue_due"
    assert "createIndex(…)" in (finding.mend or "")


def test_a_user_with_read_and_write_on_the_database_is_enough() -> None:
    assert not amiss(user(Privilege("shop", "", ALL | {"changeStream"})))
    assert not amiss(user(Privilege("", "", ALL | {"changeStream"}, on_anything=True)))


def test_each_collection_that_may_not_be_written_is_named_with_the_role_to_grant() -> None:
    first, second = amiss(user(Privilege("shop", "", frozenset({"find", "changeStream", "listIndexes"}))))
    assert first.level == second.level == "problem"
    assert first.text == (
        "app@admin may not createCollection, createIndex, insert, remove, update on shop._oplogue_globals"
    )
    assert "shop.orders_tasks" in second.text
    assert "grantRolesToUser('app', [{role: 'readWrite', db: 'shop'}])" in (first.mend or "")


def test_following_one_database_or_all_of_them_needs_privileges_of_its_own() -> None:
    one = only(user(Privilege("shop", "", ALL)))
    assert one.text == "app@admin may not changeStream on the whole of shop"
    several = user(Privilege("shop", "", ALL | {"changeStream"}), watched=frozenset({"shop", "crm"}))
    assert "readAnyDatabase" in (only(several).mend or "")


def test_settings_that_are_weaker_than_ours_are_named_with_their_value() -> None:
    assert weak_settings(SOUND) == []
    weak = replace(
        SOUND,
        heartbeat=10 * SECOND,
        connect_timeout=20 * SECOND,
        server_selection_timeout=HOUR,
        operation_timeout=SECOND,
        socket_timeout=SECOND,
        write_concern=1,
        retries_writes=False,
    )
    assert [(option, value) for option, value, _ in weak_settings(weak)] == [
        ("heartbeatFrequencyMS", "10000"),
        ("connectTimeoutMS", "20000"),
        ("serverSelectionTimeoutMS", "3600000"),
        ("timeoutMS", "1000"),
        ("socketTimeoutMS", "1000"),
        ("w", "1"),
        ("retryWrites", "false"),
    ]
