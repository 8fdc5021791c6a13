"""``oplogue worker`` with several processes: what dies starts again, what is told to stop stops."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pymongo import MongoClient

MODULE = """
import os, threading, time
from oplogue import App, Context, Fixed

app = App({uri!r}, lease="2s", instance_id="worker", shutdown_timeout="1s")

@app.reactive_task(collection="orders", debounce=0, timeout="1s", retry_policy=Fixed(0, max_attempts=1))
async def handle(ctx: Context) -> None:
    print(f"ran {{ctx.doc_id}} in {{os.getpid()}} as {{ctx.instance_id}}", flush=True)
    while ctx.doc_id == "blocks":
        pass

@app.reactive_task(collection="calls", debounce=0)
def call(ctx: Context) -> None:
    print("calling", flush=True)
    threading.Event().wait()
"""


@contextmanager
def worker(folder: Path, uri: str, *arguments: str) -> Generator[subprocess.Popen[str]]:
    """A worker on a module of its own."""
    (folder / "shop.py").write_text(MODULE.format(uri=uri))
    process = subprocess.Popen(
        [sys.executable, "-m", "oplogue.cli", "worker", "shop:app", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        process.communicate()


def line_of(process: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    """The next line that matches."""
    assert process.stdout is not None
    said: list[str] = []
    for line in process.stdout:
        said.append(line)
        found = re.search(pattern, line)
        if found is not None:
            return found
    raise AssertionError(f"it never said {pattern!r}: {''.join(said)}")


def test_each_process_is_an_instance_and_one_that_is_killed_is_started_again(
    tmp_path: Path, database_uri: str
) -> None:
    with (
        worker(tmp_path, database_uri, "--processes", "2") as process,
        MongoClient[Any](database_uri) as client,
    ):
        orders = client.get_default_database()["orders"]
        assert {line_of(process, r"instance (\S+) started")[1] for _ in range(2)} == {"worker-1", "worker-2"}
        orders.insert_one({"_id": 1})
        ran = line_of(process, r"ran 1 in (\d+) as (\S+)")
        os.kill(int(ran[1]), signal.SIGKILL)
        line_of(process, r"a worker process ended with -9; it is started again")
        assert line_of(process, r"instance (\S+) started")[1] == ran[2]
        process.send_signal(signal.SIGTERM)
        assert {line_of(process, r"instance (\S+) stopped")[1] for _ in range(2)} == {"worker-1", "worker-2"}
        assert process.wait(30) == 0


def test_process_that_a_handler_blocks_past_its_timeout_ends_and_is_started_again(
    tmp_path: Path, database_uri: str
) -> None:
    with worker(tmp_path, database_uri) as process, MongoClient[Any](database_uri) as client:
        line_of(process, "instance worker started")
        client.get_default_database()["orders"].insert_one({"_id": "blocks"})
        line_of(process, "ran blocks")
        line_of(process, "task handle blocks the event loop past its timeout")
        line_of(process, "a worker process ended with 70; it is started again")
        line_of(process, "instance worker started")


def test_plain_handler_that_never_returns_does_not_keep_a_stopped_worker_alive(
    tmp_path: Path, database_uri: str
) -> None:
    with MongoClient[dict[str, Any]](database_uri) as client, worker(tmp_path, database_uri) as process:
        client.get_default_database()["calls"].insert_one({"_id": 1})
        line_of(process, "calling")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_second_signal_ends_a_worker_at_once(tmp_path: Path, database_uri: str) -> None:
    with worker(tmp_path, database_uri) as process, MongoClient[Any](database_uri) as client:
        line_of(process, "instance worker started")
        client.get_default_database()["orders"].insert_one({"_id": "blocks"})
        line_of(process, "ran blocks")
        # Of the same kind, the second could be lost in the first.
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 130
