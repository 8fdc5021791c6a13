"""Processes of other programs: where they may listen, and what they say."""

from __future__ import annotations

import re
import socket
import threading
from typing import IO


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        return held.getsockname()[1]


def await_words(stream: IO[str] | None, pattern: str, times: int = 1) -> None:
    """Read until a process has said that so often. The rest is read and dropped: it may not wait for room."""
    assert stream is not None
    said = ""
    while len(re.findall(pattern, said)) < times:
        line = stream.readline()
        said += line
        assert line, f"it ended, and never said {pattern!r}: {said}"
    threading.Thread(target=_drain, args=(stream,)).start()


def _drain(stream: IO[str]) -> None:
    with stream:
        stream.read()
