"""What pages say of their own output."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

from tests.acceptance.test_readme import ROOT, code_of, run

from oplogue.model.events import EVENTS

LOGGING = "docs/how-to/logging.md"


def test_the_recipe_for_json_writes_the_fields_of_events(tmp_path: Path, database_uri: str) -> None:
    ended = run(code_of(LOGGING), tmp_path, database_uri)
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = [json.loads(line) for line in ended.stdout.splitlines()]
    (failed,) = [line for line in lines if line.get("code") == "task.failed"]
    assert (
        failed.items()
        >= {
            "level": "ERROR",
            "logger": "oplogue.task",
            "task": "ship",
            "doc_id": 1,
            "attempt": 1,
            "error": "RuntimeError: no parcels left",
        }.items()
    )
    assert "raise RuntimeError" in failed["traceback"]
    assert {line["code"] for line in lines} <= EVENTS.keys()
    assert all(line["instance_id"] == failed["instance_id"] for line in lines)


def test_the_page_of_logging_names_every_logger() -> None:
    text = (ROOT / LOGGING).read_text(encoding="utf-8")
    named = set(re.findall(r"`(oplogue\.\w+)`", text.partition("| logger |")[2].partition("\n\n")[0]))
    assert named == {f"oplogue.{code.partition('.')[0]}" for code in EVENTS}


def test_a_normal_run_says_each_thing_once(tmp_path: Path, database_uri: str) -> None:
    code = """
import asyncio, logging
from oplogue import App, Context

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(code)s")
app, done = App(), asyncio.Event()

@app.reactive_task(collection="orders", debounce=0)
async def ship(ctx: Context) -> None:
    if ctx.doc_id == 99:
        done.set()

async def main() -> None:
    async with app:
        await app.database["orders"].insert_many([{"_id": id_} for id_ in range(100)])
        await app.database["orders"].delete_many({"_id": {"$lt": 50}})
        await done.wait()

asyncio.run(main())
"""
    ended = run(code, tmp_path, database_uri)
    assert ended.returncode == 0
    said = ended.stderr.splitlines()
    assert len(said) == len(set(said)), said
    assert {line.partition(" ")[0] for line in said} == {logging.getLevelName(logging.INFO)}


def test_the_program_that_shows_a_reconciliation_reconciles_everything(
    tmp_path: Path, database_uri: str
) -> None:
    ended = run(code_of("docs/explanation/reconciliation.md"), tmp_path, database_uri)
    lines = ended.stdout.splitlines()
    assert any(re.fullmatch(r"\d+ of about 3000, .* s left", line) for line in lines), ended
    assert "3000 documents are planned" in lines
    assert re.fullmatch(r"3000 records, the process has grown by \d+ MB", lines[-1])


def test_an_error_of_a_handler_carries_nothing_of_the_engine_s_start(
    tmp_path: Path, database_uri: str
) -> None:
    code = """
from oplogue import App, Context, Fixed

app = App()

@app.reactive_task(collection="orders", debounce=0, retry_policy=Fixed(0, max_attempts=1))
async def ship(ctx: Context) -> None:
    raise ValueError("mine")

@app.on("task.failed")
def show(event) -> None:
    print(repr(event.exception.__context__))

@app.on("instance.started")
async def write(event) -> None:
    await app.database["orders"].insert_one({"_id": 1})

app.run(burst=True)
"""
    ended = run(code, tmp_path, database_uri)
    assert (ended.returncode, ended.stdout) == (0, "None\n")
