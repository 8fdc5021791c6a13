"""A command before a terminal of a certain size: what it prints is read, keys are typed."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Generator
from contextlib import contextmanager, suppress

_COLOURS_AND_MOVES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """One end of a pseudo-terminal, with a process at the other."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self._process = process
        self._descriptor = descriptor
        self.raw = ""
        """All that was printed so far, with its control sequences."""

    @property
    def text(self) -> str:
        """The same without them."""
        return _COLOURS_AND_MOVES.sub("", self.raw).replace("\r\n", "\n")

    def until(self, pattern: str) -> re.Match[str]:
        """Read until that has been printed; the test's own limit ends it."""
        while (found := re.search(pattern, self.text)) is None:
            if not self._read():
                raise AssertionError(f"it ended and never said {pattern!r}: {self.text}")
        return found

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._descriptor, keys.encode())

    def ended(self) -> int:
        """The exit code, when everything is read."""
        while self._read():
            pass
        return self._process.wait()

    def _read(self) -> bool:
        try:
            more = os.read(self._descriptor, 65_536)
        except OSError:  # Linux says so that the other end is closed
            return False
        self.raw += more.decode(errors="replace")
        return bool(more)


@contextmanager
def terminal(
    *arguments: str, uri: str, width: int = 80, height: int = 40, cwd: str | None = None
) -> Generator[Terminal]:
    """``oplogue`` with these arguments before a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "OPLOGUE_MONGODB_URI": uri}
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
        environment.pop(name, None)
    process = subprocess.Popen(
        [sys.executable, "-m", "oplogue.cli", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
        cwd=cwd,
        # Ctrl-C is a signal only where the terminal is the one of the session.
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait()
        os.close(ours)
