"""``oplogue dev``: an app on a MongoDB of its own, whose data are kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pymongo import MongoClient
from tests.acceptance.test_worker import line_of

MODULE = """
from oplogue import App, Context

app = App(lease="2s")

@app.reactive_task(collection="orders", debounce=0)
async def handle(ctx: Context) -> None:
    print(f"ran {ctx.doc_id}", flush=True)
"""


@contextmanager
def dev(folder: Path, *arguments: str) -> Generator[subprocess.Popen[str]]:
    """The command in a folder of its own."""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("MONGODB_URI")}
    process = subprocess.Popen(
        [sys.executable, "-m", "oplogue.cli", "dev", "shop:app", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env={**environment, "PYTHONUNBUFFERED": "1"},
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()


def test_it_runs_the_app_after_each_change_and_keeps_the_data(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(MODULE)
    with dev(tmp_path) as process:
        uri = line_of(process, r"MongoDB at (\S+); its data are kept in \.oplogue")[1]
        line_of(process, "instance .* started")
        with MongoClient[Any](uri) as client:
            client.get_default_database()["orders"].insert_one({"_id": 1})
        line_of(process, "ran 1")
        (tmp_path / "shop.py").write_text(MODULE.replace("ran", "did"))
        line_of(process, "files have changed: starting again")
        line_of(process, "instance .* started")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 0
    with dev(tmp_path) as process:
        assert line_of(process, r"MongoDB at (\S+);")[1] == uri
        line_of(process, "instance .* started")
        with MongoClient[Any](uri) as client:
            orders = client.get_default_database()["orders"]
            assert [order["_id"] for order in orders.find()] == [1]
            orders.insert_one({"_id": 2})
        line_of(process, "did 2")
    assert (tmp_path / ".oplogue" / ".gitignore").read_text() == "*\n"


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with dev(tmp_path, "--data", "taken") as process:
        said, _ = process.communicate(timeout=60)
    assert (process.returncode, said.count("\n")) == (2, 1)
    assert "--data='taken'" in said
