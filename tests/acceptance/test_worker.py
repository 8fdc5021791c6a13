"""``oplogue worker`` with several processes: what dies starts again, what is told to stop stops."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from tests.support.processes import free_port

from oplogue.embedded import EmbeddedServer, start_embedded

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


@pytest.fixture
def free_address() -> str:
    """An address of this machine that nobody listens at."""
    return f"127.0.0.1:{free_port()}"


@pytest.fixture
def other_address() -> str:
    """Another one."""
    return f"127.0.0.1:{free_port()}"


@contextmanager
def worker(folder: Path, uri: str, *arguments: str, module: str = MODULE) -> Generator[subprocess.Popen[str]]:
    """A worker on a module of its own."""
    (folder / "shop.py").write_text(module.format(uri=uri))
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


def probed(address: str, path: str) -> tuple[int, dict[str, Any]]:
    """The status and the body of a probe's answer."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)


def scraped(address: str) -> tuple[int, str]:
    """The status and the body of a scrape's answer."""
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


def until(true: Callable[[], bool]) -> None:
    """Ask until it is true; the test's own limit ends it."""
    while not true():
        pass


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


def test_probes_are_answered_while_the_worker_starts_runs_and_stops(
    tmp_path: Path, database_uri: str, free_address: str
) -> None:
    slow = MODULE + "\n@app.on('instance.stopped')\ndef stopped(event):\n    time.sleep(1)\n"
    with worker(tmp_path, database_uri, "--health", free_address, "--processes", "2", module=slow) as process:
        line_of(process, r"instance (\S+) started")
        line_of(process, r"instance (\S+) started")
        assert probed(free_address, "/ready") == (200, {"live": True, "ready": True, "reasons": []})
        assert probed(free_address, "/livez")[0] == 200
        process.send_signal(signal.SIGTERM)
        until(lambda: probed(free_address, "/ready")[0] == 503)
        status, body = probed(free_address, "/live")
        assert (status, body["ready"]) == (200, False)
        assert "the worker is stopping" in body["reasons"]
        assert process.wait(30) == 0


def test_a_handler_that_blocks_the_event_loop_for_longer_than_a_lease_is_not_live(
    tmp_path: Path, database_uri: str, free_address: str
) -> None:
    patient = MODULE.replace('timeout="1s", retry', "timeout=None, retry")
    with (
        worker(tmp_path, database_uri, "--health", free_address, module=patient) as process,
        MongoClient[Any](database_uri) as client,
    ):
        line_of(process, "instance worker started")
        client.get_default_database()["orders"].insert_one({"_id": "blocks"})
        line_of(process, "ran blocks")
        with ThreadPoolExecutor() as asking:
            # A scrape waits for the loop: no probe waits for the scrape.
            scrape = asking.submit(scraped, free_address)
            until(lambda: probed(free_address, "/live")[0] == 503)
            assert not scrape.done()
            assert scrape.result() == (503, "the event loop has not answered for 5 s\n")
        (reason, *_) = probed(free_address, "/live")[1]["reasons"]
        assert re.fullmatch(r"the event loop has not turned for \d+ s, longer than a lease", reason)
        # A blocked loop hears no SIGTERM: only the second signal ends it.
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130


def test_a_scrape_without_the_extra_says_what_to_install(
    tmp_path: Path, database_uri: str, free_address: str
) -> None:
    without = "import sys\nsys.modules['prometheus_client'] = None\n" + MODULE
    with worker(tmp_path, database_uri, "--health", free_address, module=without) as process:
        line_of(process, "instance worker started")
        status, text = scraped(free_address)
        assert (status, text.partition(";")[2]) == (503, " expected pip install 'oplogue[prometheus]'\n")
        assert probed(free_address, "/ready")[0] == 200


def test_a_frozen_process_is_not_live_and_one_that_died_is_not_ready(
    tmp_path: Path, database_uri: str, free_address: str
) -> None:
    with (
        worker(tmp_path, database_uri, "--health", free_address) as process,
        MongoClient[Any](database_uri) as client,
    ):
        line_of(process, "instance worker started")
        client.get_default_database()["orders"].insert_one({"_id": 1})
        child = int(line_of(process, r"ran 1 in (\d+)")[1])
        assert probed(free_address, "/ready")[0] == 200
        os.kill(child, signal.SIGSTOP)
        status, body = probed(free_address, "/live")
        assert (status, body["reasons"]) == (503, ["the process has not answered for 2 s"])
        os.kill(child, signal.SIGKILL)
        until(lambda: probed(free_address, "/live")[0] == 200)
        assert probed(free_address, "/ready")[0] == 503
        line_of(process, "ended with -9; it is started again in 0.5 s")
        line_of(process, "instance worker started")
        assert probed(free_address, "/ready")[0] == 200


def test_children_stop_gracefully_when_their_parent_is_killed(tmp_path: Path, database_uri: str) -> None:
    with worker(tmp_path, database_uri, "--processes", "2") as process:
        assert {line_of(process, r"instance (\S+) started")[1] for _ in range(2)} == {"worker-1", "worker-2"}
        process.kill()
        line_of(process, "the parent of this worker process is gone: stopping")
        # They hold its output: it ends when the last of them has ended.
        assert process.stdout is not None
        stopped = [line for line in process.stdout if re.search(r"instance \S+ stopped", line)]
        assert len(stopped) == 2


def test_a_child_that_a_handler_blocks_ends_too_when_its_parent_is_killed(
    tmp_path: Path, database_uri: str
) -> None:
    patient = MODULE.replace('timeout="1s", retry', "timeout=None, retry")
    with (
        worker(tmp_path, database_uri, module=patient) as process,
        MongoClient[Any](database_uri) as client,
    ):
        line_of(process, "instance worker started")
        client.get_default_database()["orders"].insert_one({"_id": "blocks"})
        line_of(process, "ran blocks")
        process.kill()
        assert process.stdout is not None
        assert "the parent of this worker process is gone" in process.stdout.read()


def test_what_the_server_refuses_is_told_once_and_nothing_is_started_again(
    tmp_path: Path, database_uri: str
) -> None:
    refused = MODULE.replace("debounce=0,", "debounce=0, filter={{'$near': 1}},")
    with worker(tmp_path, database_uri, "--processes", "3", module=refused) as process:
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert said.count("oplogue: task 'handle'") == 1
    assert "started again" not in said


def test_a_module_that_fails_as_it_is_imported_is_told_once(tmp_path: Path, database_uri: str) -> None:
    with worker(tmp_path, database_uri, module="import nothing_of_that_name") as process:
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert said == (
        "oplogue: MODULE:APP='shop:app': it can't be imported: ModuleNotFoundError: "
        "No module named 'nothing_of_that_name'; expected shop.tasks:app, say\n"
    )


def test_a_worker_whose_database_does_not_answer_is_live_and_not_ready_until_it_does(
    tmp_path: Path, free_address: str
) -> None:
    with (
        start_embedded() as server,
        worker(tmp_path, server.uri_for("shop"), "--health", free_address) as process,
    ):
        line_of(process, "instance worker started")
        until(lambda: probed(free_address, "/ready")[0] == 200)
        server.members[0].freeze()
        until(lambda: probed(free_address, "/ready")[0] == 503)
        (reason,) = probed(free_address, "/ready")[1]["reasons"]
        assert re.fullmatch(r"the database has not answered for \d+ s, longer than a lease", reason)
        assert probed(free_address, "/live")[0] == 200
        server.members[0].thaw()
        until(lambda: probed(free_address, "/ready")[0] == 200)


def test_a_database_that_is_not_there_is_tried_again(
    tmp_path: Path, free_address: str, other_address: str
) -> None:
    nobody = f"mongodb://{other_address}/shop?serverSelectionTimeoutMS=100"
    with worker(tmp_path, nobody, "--health", free_address) as process:
        line_of(process, "oplogue: the app can't be started: ServerSelectionTimeoutError: 127.0.0.1:")
        line_of(process, "a worker process ended with 1; it is started again in 0.5 s")
        line_of(process, "a worker process ended with 1; it is started again in 1 s")
        # Nothing that ending this parent would mend.
        assert [probed(free_address, path)[0] for path in ("/live", "/ready")] == [200, 503]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_an_address_that_is_taken_is_refused_before_anything_starts(
    tmp_path: Path, database_uri: str, replica_set: EmbeddedServer
) -> None:
    taken = f"127.0.0.1:{replica_set.ports[0]}"
    with worker(tmp_path, database_uri, "--health", taken) as process:
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert said.startswith(f"oplogue: --health='{taken}': Address already in use; expected an address")


CHAIN = """
import asyncio
from oplogue import App, Context, Fixed

app = App({uri!r}, lease="2s", instance_id="worker", shutdown_timeout="1s")

@app.reactive_task(collection="orders", debounce="300ms", retry_policy=Fixed("300ms", max_attempts=2))
async def ship(ctx: Context) -> None:
    if ctx.doc_id == 3:
        raise ValueError("no")
    # Longer than the stream takes to be planned: a stop would let it end, but nobody would label its parcel.
    await asyncio.sleep(1.5)
    await app.database["parcels"].insert_one({{"_id": ctx.doc_id}})

@app.reactive_task(collection="parcels", debounce="2s")
async def label(ctx: Context) -> None:
    print(f"label {{ctx.doc_id}}", flush=True)

@app.reactive_task(collection="orders", debounce="1h")
async def remind(ctx: Context) -> None: ...

@app.reactive_task(collection="orders", debounce=0, retry_policy=Fixed("1h"))
async def audit(ctx: Context) -> None:
    raise ValueError("not today")
"""


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_burst_ends_when_all_is_planned_and_nothing_is_due(
    tmp_path: Path, database_uri: str, processes: str
) -> None:
    with MongoClient[dict[str, Any]](database_uri) as client:
        database = client.get_default_database()
        database["orders"].insert_many([{"_id": number} for number in range(4)])
        arguments = ("--burst", "--processes", processes)
        with worker(tmp_path, database_uri, *arguments, module=CHAIN) as process:
            said, _ = process.communicate(timeout=60)
        assert process.returncode == 0, said
        assert sorted(re.findall(r"label (\d)", said)) == ["0", "1", "2"]
        records = [*database["orders_tasks"].find(), *database["parcels_tasks"].find()]
        assert {(record["task"], record["status"]) for record in records} == {
            ("ship", "completed"),
            ("ship", "failed"),
            ("label", "completed"),
            ("remind", "pending"),
            ("audit", "pending"),
        }


def test_a_burst_does_not_wait_for_a_paused_task(tmp_path: Path, database_uri: str) -> None:
    with MongoClient[dict[str, Any]](database_uri) as client:
        database = client.get_default_database()
        database["orders"].insert_one({"_id": 1})
        paused = {"task": "handle", "pausedUntil": datetime(9999, 1, 1, tzinfo=UTC)}
        database["_oplogue_globals"].insert_one({"_id": "controls", "tasks": [paused]})
        with worker(tmp_path, database_uri, "--burst") as process:
            said, _ = process.communicate(timeout=60)
        assert process.returncode == 0, said
        (record,) = database["orders_tasks"].find()
        assert record["status"] == "pending"


def test_a_burst_of_an_instance_that_only_plans_ends_when_all_is_planned(
    tmp_path: Path, database_uri: str
) -> None:
    with MongoClient[dict[str, Any]](database_uri) as client:
        database = client.get_default_database()
        database["orders"].insert_many([{"_id": number} for number in range(3)])
        planner = MODULE.replace('lease="2s",', 'lease="2s", concurrency=0,')
        with worker(tmp_path, database_uri, "--burst", module=planner) as process:
            said, _ = process.communicate(timeout=60)
        assert process.returncode == 0, said
        assert "failed" not in said
        assert [record["status"] for record in database["orders_tasks"].find()] == ["pending"] * 3


def test_a_burst_without_its_database_fails(tmp_path: Path, free_address: str) -> None:
    nobody = f"mongodb://{free_address}/shop?serverSelectionTimeoutMS=100"
    with worker(tmp_path, nobody, "--burst") as process:
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "started again" not in said


def test_a_worker_reloads_when_a_file_changes_and_survives_broken_ones(
    tmp_path: Path, database_uri: str
) -> None:
    module = tmp_path / "shop.py"
    with worker(tmp_path, database_uri, "--reload") as process, MongoClient[Any](database_uri) as client:
        line_of(process, "instance worker started")
        client.get_default_database()["orders"].insert_one({"_id": 1})
        before = int(line_of(process, r"ran 1 in (\d+)")[1])
        good = module.read_text()
        module.write_text(good + "\nthis is no Python\n")
        line_of(process, "files have changed: starting again")
        line_of(process, "instance worker stopped")
        line_of(process, "it can't be imported: SyntaxError|SyntaxError")
        line_of(process, "it is started again when a file changes")
        (tmp_path / "prices.py").write_text("TOTAL = 7\n")
        module.write_text("import prices\n" + good.replace("ran {ctx", "now {prices.TOTAL} {ctx"))
        line_of(process, "instance worker started")
        client.get_default_database()["orders"].insert_one({"_id": 2})
        assert int(line_of(process, r"now 7 2 in (\d+)")[1]) != before
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
