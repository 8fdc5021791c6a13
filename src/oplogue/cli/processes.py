"""Worker processes under one parent, which starts those again that die.

The parent does nothing else: it opens no connection and runs no event loop. Children are spawned, never forked: a
forked driver shares sockets and locks with its parent. A child that dies is started again after a pause that
doubles with each death and is short again once a child has lived for a while. SIGTERM and SIGINT reach every
child once and let it stop gracefully; a second signal ends them at once.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

from oplogue.app import SUPERVISED
from oplogue.clock import Clock

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_SETTLED = 60.0
_LOOK = 0.1


class Child:
    """One worker process, and when to start it again."""

    def __init__(self, command: Sequence[str], number: str, clock: Clock) -> None:
        self._command = list(command)
        self._number = number
        self._clock = clock
        self._pause = _FIRST_PAUSE
        self._due = 0.0
        self._started = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    def start_if_due(self) -> None:
        """Start it, or start it again when its pause is over."""
        if self.alive or self._clock.monotonic() < self._due:
            return
        self._started = self._clock.monotonic()
        # A session of its own: Ctrl-C reaches the parent alone, which tells each child once.
        self._process = subprocess.Popen(
            self._command, env={**os.environ, SUPERVISED: self._number}, start_new_session=True
        )

    def note_death(self) -> int | None:
        """Its exit code, once, when it has died; it is due again after a pause."""
        process = self._process
        if process is None or process.poll() is None:
            return None
        self._process = None
        lived = self._clock.monotonic() - self._started
        self._pause = _FIRST_PAUSE if lived > _SETTLED else min(2 * self._pause, _LONGEST_PAUSE)
        self._due = self._clock.monotonic() + self._pause
        return process.returncode

    def tell(self, number: int) -> None:
        """Send it a signal."""
        if self._process is not None and self.alive:
            self._process.send_signal(number)


class Processes:
    """A parent's children."""

    def __init__(self, command: Sequence[str], count: int, clock: Clock) -> None:
        numbers = [""] if count == 1 else [str(number + 1) for number in range(count)]
        self._children = [Child(command, number, clock) for number in numbers]
        self._clock = clock
        self._signals = 0

    def run(self) -> int:
        """Keep the children running until a signal; 0 when they stopped gracefully, 130 when they were ended."""
        before = {number: signal.signal(number, self._told) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            while not self._signals:
                self._keep()
                self._clock.block(_LOOK)
            while any(child.alive for child in self._children):
                self._clock.block(_LOOK)
        finally:
            for child in self._children:
                child.tell(signal.SIGKILL)
            for number, handler in before.items():
                signal.signal(number, handler)
        return 0 if self._signals == 1 else 130

    def _keep(self) -> None:
        for child in self._children:
            code = child.note_death()
            if code is not None:
                print(f"oplogue: a worker process ended with {code}; it is started again", file=sys.stderr)
            child.start_if_due()

    def _told(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        for child in self._children:
            child.tell(signal.SIGTERM if self._signals == 1 else signal.SIGKILL)


def run_processes(target: str, count: int) -> int:
    """Run ``oplogue worker`` for the target in so many processes."""
    command = [sys.executable, "-m", "oplogue.cli", "worker", target]
    return Processes(command, count, Clock()).run()
