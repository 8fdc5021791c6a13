"""``oplogue tasks``: what it finds, shows and changes, what it asks first, and its exit codes."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from bson import ObjectId
from pymongo.asynchronous.collection import AsyncCollection
from tests.integration.cli.conftest import Command
from tests.support.running import Stage
from tests.support.typed import Typed

from oplogue import Context, Fixed

Document = dict[str, Any]
Orders = AsyncCollection[Document]

ERROR = "The accounting system refused it: 503"


@pytest.fixture
async def filled(stage: Stage, orders: Orders) -> Stage:
    """Six orders, of which those with an odd number failed, until they are mended."""

    @stage.app.reactive_task(
        task="sync", collection="orders", debounce=0, retry_policy=Fixed(0, max_attempts=2)
    )
    async def _sync(ctx: Context) -> None:
        order = await ctx.get_document()
        if order["total"] % 2 and not order.get("mended"):
            raise ConnectionError(ERROR)

    await stage.app.start()
    await stage.next("reconciliation.finished")
    await orders.insert_many([{"_id": f"order-{n}", "total": n} for n in range(6)])
    await stage.counted(3, status="failed")
    await stage.counted(3, status="completed")
    return stage


async def test_a_list_has_a_line_for_each_record_and_says_how_many_there_are(
    filled: Stage, oplogue: Command
) -> None:
    said = await oplogue("tasks", "list")
    assert (said.code, said.err) == (0, "")
    lines = said.out.splitlines()
    assert lines[0].split() == ["record", "task", "document", "state"]
    assert len(lines) == 8
    assert lines[-1].strip() == "6 records"
    failed = next(line for line in lines if '"order-3"' in line)
    record = await filled.record("order-3")
    assert failed.startswith(str(record.id))
    assert f"2 attempts: ConnectionError: {ERROR}" in failed


async def test_a_page_of_a_list_says_which_it_is(filled: Stage, oplogue: Command) -> None:
    said = await oplogue("tasks", "list", "--sort", "-source_doc_id", "--limit", "2", "--skip", "1")
    assert ['"order-4"' in said.out, '"order-3"' in said.out] == [True, True]
    assert said.out.splitlines()[-1].strip() == "2–3 of 6 records"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), range(6)),
        (("--task", "sync"), range(6)),
        (("--status", "failed"), (1, 3, 5)),
        (("-s", "failed", "-s", "pending"), (1, 3, 5)),
        (("--status", "pending"), ()),
        (("--has-error",), (1, 3, 5)),
        (("--no-error",), (0, 2, 4)),
        (("--error-message", "refused IT: 5"), (1, 3, 5)),
        (("--source-doc-filter", '{"total": {"$gt": 3}}'), (4, 5)),
        (("--source-doc-filter", '{"_id": "order-2"}'), (2,)),
        (("--status", "failed", "--source-doc-filter", '{"total": {"$gt": 3}}'), (5,)),
    ],
    ids=str,
)
async def test_every_filter_of_a_list(
    filled: Stage, oplogue: Command, arguments: tuple[str, ...], expected: Any
) -> None:
    said = await oplogue("tasks", "list", "--json", "--sort", "source_doc_id", *arguments)
    assert said.code == 0
    assert [item["source_doc_id"] for item in said.document["items"]] == [f"order-{n}" for n in expected]
    assert said.document["total"] == len(said.document["items"])


async def test_a_record_is_found_by_its_id_and_shown_whole(filled: Stage, oplogue: Command) -> None:
    record = await filled.record("order-3")
    listed = await oplogue("tasks", "list", "--json", "--id", str(record.id))
    assert [item["id"] for item in listed.document["items"]] == [{"$oid": str(record.id)}]
    said = await oplogue("tasks", "show", str(record.id))
    assert said.code == 0
    for part in (
        str(record.id),
        '"order-3" in orders',
        "failed",
        ERROR,
        '"total": 3',
        f"{record.created_at:%Y-%m-%d %H:%M:%S} UTC",
    ):
        assert part in said.out
    document = (await oplogue("tasks", "show", str(record.id), "--json")).document
    assert document["id"] == {"$oid": str(record.id)}
    assert document["attempts"] == 2
    assert [entry["status"] for entry in document["execution_history"]] == ["failed", "failed"]
    assert record.created_at is not None
    created = datetime.fromisoformat(document["created_at"]["$date"])
    assert abs(created - record.created_at) < timedelta(milliseconds=1)


async def test_a_record_that_is_not_there_is_exit_code_1(filled: Stage, oplogue: Command) -> None:
    nobody = str(ObjectId())
    said = await oplogue("tasks", "show", nobody)
    assert (said.code, said.out) == (1, "")
    assert nobody in said.err


async def test_records_whose_ids_are_no_object_ids_are_named_in_extended_json(
    filled: Stage, oplogue: Command, orders: Orders
) -> None:
    records = orders.database["orders_tasks"]
    row = await records.find_one({"sourceDocId": "order-3"})
    assert row is not None
    await records.delete_one({"_id": row["_id"]})
    await records.insert_one({**row, "_id": {"of": 7}})
    said = await oplogue("tasks", "show", '{"of": 7}', "--json")
    assert (said.code, said.document["id"]) == (0, {"of": 7})


async def test_a_dry_run_counts_and_changes_nothing(filled: Stage, oplogue: Command) -> None:
    said = await oplogue("tasks", "retry", "--status", "failed", "--dry-run")
    assert (said.code, said.out) == (0, "would retry 3 records\n")
    said = await oplogue("tasks", "delete", "--all", "--dry-run", "--json")
    assert said.document == {"matched": 6, "deleted": 0, "dry_run": True}
    assert await filled.app.count_reactive_tasks(status="failed") == 3


async def test_a_retry_runs_records_again_on_the_live_instances(
    filled: Stage, oplogue: Command, orders: Orders
) -> None:
    await filled.app.pause_task("sync")
    await orders.update_many({}, {"$set": {"mended": True}})
    await filled.app.resume_task("sync")
    said = await oplogue("tasks", "retry", "--status", "failed", "--yes", "--json")
    assert said.code == 0
    assert said.document["retried"] == said.document["matched"]
    await filled.counted(6, status="completed")


async def test_a_deletion_takes_the_records_that_are_meant(filled: Stage, oplogue: Command) -> None:
    said = await oplogue("tasks", "delete", "--status", "failed", "-y")
    assert (said.code, said.out) == (0, "deleted 3 records\n")
    assert await filled.app.count_reactive_tasks() == 3
    said = await oplogue("tasks", "delete", "--status", "failed")
    assert (said.code, said.out) == (0, "deleted 0 records\n")  # nothing to ask about


@pytest.mark.parametrize("command", ["retry", "delete"])
async def test_many_records_are_not_changed_where_nobody_can_be_asked(
    filled: Stage, oplogue: Command, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", StringIO("y\n"))
    said = await oplogue("tasks", command, "--status", "failed")
    assert (said.code, said.out) == (2, "")
    assert "3 records" in said.err
    assert "--yes" in said.err
    assert said.err.count("\n") == 1
    assert await filled.app.count_reactive_tasks(status="failed") == 3


@pytest.mark.parametrize(("answer", "left", "code"), [("y", 3, 0), ("YES", 3, 0), ("n", 6, 1), ("", 6, 1)])
async def test_before_a_terminal_it_asks(
    filled: Stage, oplogue: Command, answer: str, left: int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Typed(f"{answer}\n"))
    said = await oplogue("tasks", "delete", "--status", "failed")
    assert said.code == code
    assert "Delete 3 records? [y/N]" in said.err
    assert await filled.app.count_reactive_tasks() == left


async def test_a_record_that_is_named_by_its_id_is_changed_without_a_question(
    filled: Stage, oplogue: Command
) -> None:
    record = await filled.record("order-3")
    said = await oplogue("tasks", "delete", "--id", str(record.id))
    assert (said.code, said.out) == (0, "deleted 1 record\n")
    assert await filled.app.count_reactive_tasks() == 5


async def test_a_task_is_paused_and_resumed(filled: Stage, oplogue: Command, orders: Orders) -> None:
    said = await oplogue("tasks", "pause", "sync", "--json")
    assert said.document == {"task": "sync", "paused_until": {"$date": "9999-12-31T00:00:00Z"}}
    await orders.insert_one({"_id": "order-6", "total": 6})
    await filled.counted(1, status="pending")
    said = await oplogue("tasks", "resume", "sync")
    assert (said.code, said.out) == (0, "sync runs again\n")
    await filled.counted(4, status="completed")
    said = await oplogue("tasks", "pause", "sync", "--until", "2999-01-31T08:00+01:00")
    assert said.out == "sync is paused until 2999-01-31 07:00:00 UTC\n"
    said = await oplogue("tasks", "pause", "sync", "--until", "2h", "--json")
    until = datetime.fromisoformat(said.document["paused_until"]["$date"])
    assert timedelta(hours=1) < until - datetime.now(UTC) < timedelta(hours=3)  # noqa: TID251


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tasks", "list", "--status", "done"), ("--status='done'", "'failed'")),
        (("tasks", "list", "--limit", "0"), ("--limit='0'", "from 1 to 500")),
        (("tasks", "list", "--limit", "many"), ("--limit='many'", "from 1 to 500")),
        (("tasks", "list", "--skip", "-1"), ("--skip='-1'", "from 0")),
        (("tasks", "list", "--sort", "nextRunAt"), ("--sort", "nextRunAt", "next_run_at")),
        (("tasks", "list", "--id", "abc"), ("--id='abc'", "24 hexadecimal digits")),
        (("tasks", "list", "--source-doc-filter", "{vip"), ("--source-doc-filter='{vip'", "extended JSON")),
        (("tasks", "list", "--source-doc-filter", "[]"), ("--source-doc-filter", "a query")),
        (("tasks", "list", "--source-doc-filter", '{"a": {"$b": 1}}'), ("--source-doc-filter", "$b")),
        (("tasks", "list", "--task", "nobody"), ("'nobody'", "known: sync")),
        (("tasks", "pause", "nobody"), ("'nobody'", "known: sync")),
        (("tasks", "pause", "sync", "--until", "soon"), ("--until='soon'", "'2h'")),
        (("tasks", "retry"), ("--status", "--all")),
        (("tasks", "delete"), ("--status", "--all")),
        (("tasks", "show"), ("ID", "oplogue tasks show --help")),
        (("tasks", "lst"), ("lst", "oplogue tasks --help")),
    ],
    ids=str,
)
async def test_what_cannot_be_meant_is_one_line_and_exit_code_2(
    filled: Stage, oplogue: Command, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    said = await oplogue(*arguments)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("oplogue")
    assert said.err.count("\n") == 1
    assert all(word in said.err for word in words), said.err


async def test_a_server_that_does_not_answer_is_one_line_and_exit_code_1(oplogue: Command) -> None:
    uri = "mongodb://127.0.0.1:1/shop?serverSelectionTimeoutMS=100"
    said = await oplogue("tasks", "list", "--uri", uri)
    assert (said.code, said.out) == (1, "")
    assert "127.0.0.1:1" in said.err
    assert said.err.count("\n") == 1


async def test_without_a_terminal_there_are_neither_colours_nor_cut_lines(
    filled: Stage, oplogue: Command, orders: Orders
) -> None:
    said = await oplogue("tasks", "list")
    assert "\x1b" not in said.out
    assert "…" not in said.out
