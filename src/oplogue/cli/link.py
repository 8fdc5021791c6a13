"""The line between the parent of worker processes and one of them: a pair of sockets, lines of JSON.

The parent asks (``{"id": 7, "ask": "health"}``), the child answers from a thread of its own, so that a handler that
blocks the event loop can't keep it from answering. What a child says unasked are its last words: why it can't
start. Each end learns of the other's death by the end of the line, whatever killed it: a child whose parent is gone
stops gracefully, because nobody would start it again, or stop it.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from oplogue.clock import Clock

LINE = "OPLOGUE_LINE"
"""Names the file descriptor of a child's end."""
_CHUNK = 65_536

Message = dict[str, Any]
Reply = Callable[[Message], None]


class Link:
    """The parent's end. Several threads may ask."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mine, self._theirs = socket.socketpair()
        self._lock = threading.Lock()
        self._unread = b""
        self._asked = 0
        self.answered: bool = False
        """Whether the child has ever answered: from then on silence is a bad sign."""
        self.last_words: str | None = None
        """Why the child could not start, in its own words."""

    @property
    def descriptor(self) -> int:
        """The child's end, to be passed on when it is started."""
        return self._theirs.fileno()

    def started(self) -> None:
        """The child has its end: the parent's copy of it is closed, or the line would never end."""
        self._theirs.close()

    def ask(self, what: str, within: float) -> Message | None:
        """The child's answer; None where there is none in so many seconds."""
        until = self._clock.monotonic() + within
        if not self._lock.acquire(timeout=within):
            return None
        try:
            self._asked += 1
            self._mine.settimeout(within)
            self._mine.sendall(_line({"id": self._asked, "ask": what}))
            while (message := self._next(until)) is not None:
                if message.get("id") == self._asked:
                    self.answered = True
                    return message
        except OSError:
            pass  # the line has ended, or the child is too slow: no answer either way
        finally:
            self._lock.release()
        return None

    def close(self) -> None:
        """The child has ended: hear its last words."""
        with self._lock:
            try:
                while self._next(self._clock.monotonic() + 1) is not None:
                    pass
            except OSError:
                pass
            self._mine.close()

    def _next(self, until: float) -> Message | None:
        while b"\n" not in self._unread:
            self._mine.settimeout(max(until - self._clock.monotonic(), 0.001))
            more = self._mine.recv(_CHUNK)
            if not more:
                return None
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        message = json.loads(line)
        self.last_words = message.get("failed", self.last_words)
        return message


class Tether:
    """The child's end: answers in a thread, and notices when the parent is gone."""

    def __init__(self, answer: Callable[[str, Reply], None], orphaned: Callable[[], None]) -> None:
        self._answer = answer
        self._orphaned = orphaned
        # Not for children of this process: they would keep the line open.
        self._line = socket.socket(fileno=int(os.environ.pop(LINE)))
        self._line.set_inheritable(False)
        self._sending = threading.Lock()

    def start(self) -> None:
        """Begin to answer."""
        threading.Thread(target=self._serve, name="oplogue-tether", daemon=True).start()

    def fail(self, words: str) -> None:
        """Say why this process can't start."""
        self._send({"failed": words})

    def _serve(self) -> None:
        with self._line.makefile("rb") as lines:
            for line in lines:
                try:
                    message = json.loads(line)
                except ValueError:  # cut off when this process was frozen and its parent stopped waiting
                    continue
                self._answer(message["ask"], self._reply(message["id"]))
        self._orphaned()

    def _reply(self, number: int) -> Reply:
        return lambda message: self._send({"id": number, **message})

    def _send(self, message: Message) -> None:
        # A parent that is gone is noticed by the reading end.
        with self._sending, suppress(OSError):
            self._line.sendall(_line(message))


def _line(message: Message) -> bytes:
    return json.dumps(message).encode() + b"\n"
