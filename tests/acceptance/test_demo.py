"""The demo as a person starts it: a process with a server of its own, which ends as it should."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pymongo import MongoClient

from oplogue.embedded import EmbeddedServer

OPLOGUE = [sys.executable, "-m", "oplogue.cli"]


@contextmanager
def started(folder: Path, *arguments: str) -> Generator[subprocess.Popen[str]]:
    """The demo, with a folder of its own for temporary data; ended whatever the test does."""
    process = subprocess.Popen(
        [*OPLOGUE, "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def lines_until(process: subprocess.Popen[str], wanted: str) -> list[str]:
    """What the process says up to a line with that in it."""
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if wanted in line:
            return lines
    raise AssertionError(f"it never said {wanted!r}: {''.join(lines)}")


def servers_with_data_in(folder: Path) -> list[str]:
    """Processes whose command line names that folder."""
    found: list[str] = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # ended meanwhile
            continue
        if str(folder) in command:
            found.append(command)
    return found


def test_a_demo_of_some_seconds_checks_that_every_order_was_handled(tmp_path: Path) -> None:
    with started(tmp_path, "--seconds", "3") as process:
        said, _ = process.communicate(timeout=90)
    assert process.returncode == 0, said
    written = re.search(r"(\d+) orders, (\d+) paid, \d+ reviews", said)
    assert written is not None
    assert int(written[1]) == int(written[2]) > 0
    assert f"Every order was handled: {written[2]} of {written[2]}" in said
    assert "p50" in said
    assert list(tmp_path.iterdir()) == []


def test_a_demo_of_some_orders_writes_that_many(tmp_path: Path) -> None:
    with started(tmp_path, "--docs", "300") as process:
        said, _ = process.communicate(timeout=90)
    assert process.returncode == 0, said
    assert "Every order was handled: 300 of 300" in said


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("arguments", "code"), [((), 0), (("--seconds", "60"), 130)])
def test_ctrl_c_ends_the_demo_with_a_summary_and_no_server_left(
    tmp_path: Path, arguments: tuple[str, ...], code: int
) -> None:
    with started(tmp_path, *arguments) as process:
        lines_until(process, "orders written")
        assert servers_with_data_in(tmp_path)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == code, said
    assert "orders," in said
    assert "Interrupted" in said
    assert "Traceback" not in said
    assert servers_with_data_in(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_on_a_server_of_the_users_the_demo_keeps_to_a_database_that_it_drops(
    tmp_path: Path, replica_set: EmbeddedServer
) -> None:
    with MongoClient[dict[str, object]](replica_set.uri) as client:
        before = set(client.list_database_names())
        with started(tmp_path, "--docs", "50", "--uri", replica_set.uri_for("shop")) as process:
            said, _ = process.communicate(timeout=90)
        assert process.returncode == 0, said
        assert "shop" not in client.list_database_names()
        assert not {name for name in client.list_database_names() if name.startswith("oplogue_demo")} - before


def test_the_worker_runs_an_app_until_it_is_told_to_stop(tmp_path: Path, database_uri: str) -> None:
    (tmp_path / "tasks.py").write_text(
        "from oplogue import App, Context\n"
        "app = App()\n"
        "@app.reactive_task(collection='orders')\n"
        "def handle(ctx: Context) -> None: ...\n",
        encoding="utf-8",
    )
    process = subprocess.Popen(
        [*OPLOGUE, "worker", "tasks:app"],
        cwd=tmp_path,
        env={**os.environ, "OPLOGUE_MONGODB_URI": database_uri},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        try:
            lines_until(process, "started")
            process.send_signal(signal.SIGTERM)
            said, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0, said
    assert "stopped" in said
