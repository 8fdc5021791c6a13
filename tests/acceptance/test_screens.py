"""Commands before a real terminal, and the same without one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

from tests.support.terminal import terminal


def test_a_status_that_is_watched_is_left_by_ctrl_c_and_the_terminal_is_as_it_was(database_uri: str) -> None:
    with terminal("status", "--watch", uri=database_uri, width=60) as screen:
        screen.until("nobody leads")
        screen.until("Ctrl-C leaves")
        screen.type("\x03")
        assert screen.ended() == 0
    assert screen.raw.rindex("\x1b[?25h") > screen.raw.rindex("\x1b[?25l")  # the cursor is back
    assert "Traceback" not in screen.text
    assert max(map(len, screen.text.splitlines())) <= 60


def test_a_status_that_is_watched_without_a_terminal_is_a_line_for_each_look(database_uri: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "oplogue.cli", "status", "--watch", "--json", "--uri", database_uri],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        looks = [json.loads(process.stdout.readline()) for _ in range(2)]
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()
    assert process.returncode == 0
    assert looks[0]["at"]["$date"] < looks[1]["at"]["$date"]
