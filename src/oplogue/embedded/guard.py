"""Starts one mongod and ends it with the process that asked for it. The package's docstring says why.

Runs by path in an interpreter without site-packages (``python -I -S guard.py ORDERS``): it imports the
standard library only. The first line on standard output is mongod's process id; the exit code
is mongod's, or 128 + its signal.
"""

from __future__ import annotations

import json
import os
import queue
import select
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypedDict

_PR_SET_PDEATHSIG = 1

News = queue.SimpleQueue[str]


class Orders(TypedDict):
    """What the parent says, as JSON in the only argument."""

    command: list[str]
    parent: int
    scratch: str | None
    """A folder to remove once the server was ended."""
    grace: float
    """Seconds for a clean end; zero kills."""


def main(orders: Orders) -> int:
    """Run the server until it ends or must end."""
    news: News = queue.SimpleQueue()

    def on_signal(number: int, frame: object) -> None:
        news.put("stop")

    signal.signal(signal.SIGTERM, on_signal)
    child = subprocess.Popen(
        orders["command"], stdin=subprocess.DEVNULL, stdout=2, stderr=2, preexec_fn=_bound_to_this_process()
    )
    print(child.pid, flush=True)  # noqa: T201 - the parent reads it
    _watch(lambda: child.wait(), "ended", news)
    _watch(lambda: os.read(0, 1), "stop", news)
    if sys.platform == "linux":
        _watch(lambda: _await_end_of(orders["parent"]), "stop", news)
    if news.get() == "stop":
        _end(child, orders["grace"])
        if orders["scratch"] is not None:
            shutil.rmtree(orders["scratch"], ignore_errors=True)
    code = child.wait()
    return code if code >= 0 else 128 - code


def _bound_to_this_process() -> Callable[[], None] | None:
    """What the child does before exec, so that it dies with the guard. Safe: no other thread runs yet."""
    if sys.platform != "linux":
        return None
    try:
        import ctypes

        prctl = ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):  # an interpreter built without it: the pipe still guards
        return None
    guard = os.getpid()

    def bind() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:  # it died before the signal was asked for
            os._exit(1)

    return bind


def _watch(wait: Callable[[], object], word: str, news: News) -> None:
    def watch() -> None:
        with suppress(NotImplementedError):
            wait()
            news.put(word)

    threading.Thread(target=watch, daemon=True).start()


def _await_end_of(parent: int) -> None:
    """Wait for a process that is not a child of ours."""
    if sys.platform != "linux":
        raise NotImplementedError
    try:
        handle = os.pidfd_open(parent)
    except ProcessLookupError:
        return
    except OSError as error:  # an old kernel, or a container that forbids it: the pipe still guards
        raise NotImplementedError from error
    if os.getppid() == parent:  # else the number may be another process's by now
        select.select([handle], [], [])


def _end(child: subprocess.Popen[bytes], grace: float) -> None:
    if grace:
        child.terminate()
        with suppress(subprocess.TimeoutExpired):
            child.wait(grace)
    child.kill()
    child.wait()


if __name__ == "__main__":
    # Nothing is left to tidy, and a thread that still waits must not delay the end.
    os._exit(main(json.loads(sys.argv[1])))
