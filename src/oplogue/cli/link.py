"""The line between the parent of worker processes and one of them: a pair of sockets, lines of JSON.

The parent asks (``{"id": 7, "ask": "health"}``), the child answers from a thread of its own, so that a handler that
blocks the event loop can't keep it from answering. Answers come in any order: one that takes long, or never comes,
keeps no other question waiting. What a child says unasked are its last words: why it can't start. Each end learns of
the other's death by the end of the line, whatever killed it: a child whose parent is gone stops gracefully, because
nobody would start it again, or stop it.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from itertools import count
from typing import Any

LINE = "OPLOGUE_LINE"
"""Names the file descriptor of a child's end."""
_LAST_WORDS_WITHIN = 1.0

Message = dict[str, Any]
Reply = Callable[[Message], None]


class Link:
    """The parent's end. Several threads may ask."""

    def __init__(self) -> None:
        self._mine, self._theirs = socket.socketpair()
        self._sending = threading.Lock()
        self._numbers = count(1)
        self._asked: dict[int, Future[Message | None]] = {}
        self._ended = False
        self._reader = threading.Thread(target=self._read, name="oplogue-link", daemon=True)
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
        self._reader.start()

    def ask(self, what: str) -> Question:
        """Ask the child; it need not answer."""
        number, answer = next(self._numbers), Future[Message | None]()
        self._asked[number] = answer
        try:
            with self._sending:
                # A frozen child stops reading: its parent must not wait for room on the line.
                self._mine.send(_line({"id": number, "ask": what}), socket.MSG_DONTWAIT)
        except OSError:
            pass  # the line has ended, or is full: no answer either way
        if self._ended:
            self._answer(number, None)
        return Question(answer, lambda: self._asked.pop(number, None))

    def close(self) -> None:
        """The child has ended: hear its last words."""
        self._reader.join(_LAST_WORDS_WITHIN)
        # What the child started may hold the line still.
        with suppress(OSError):
            self._mine.shutdown(socket.SHUT_RDWR)
        self._reader.join()
        self._mine.close()

    def _read(self) -> None:
        self._hear()
        # Whoever waits need not wait on, nor whoever asks from now on.
        self._ended = True
        for number in list(self._asked):
            self._answer(number, None)

    def _answer(self, number: int, message: Message | None) -> None:
        answer = self._asked.pop(number, None)
        if answer is not None:
            answer.set_result(message)

    def _hear(self) -> None:
        with suppress(OSError), self._mine.makefile("rb") as lines:
            for line in lines:
                try:
                    message: Message = json.loads(line)
                except ValueError:  # cut off when the child was killed
                    continue
                self.last_words = message.get("failed", self.last_words)
                if "id" in message:
                    self.answered = True
                    self._answer(message["id"], message)


class Question:
    """What a child was asked."""

    def __init__(self, answer: Future[Message | None], forget: Callable[[], object]) -> None:
        self._answer = answer
        self._forget = forget

    def wait(self, within: float) -> Message | None:
        """The child's answer; None where there is none in so many seconds."""
        try:
            return self._answer.result(max(within, 0))
        except TimeoutError:
            return None
        finally:
            self._forget()


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
