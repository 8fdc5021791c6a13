"""Worker processes under one parent, which starts those again that die.

The parent opens no connection to the database and runs no task. Children are spawned, never forked: a forked driver
shares sockets and locks with its parent. A child that dies is started again after a pause that doubles with each
early death. One that can't start because its configuration is wrong is not: it would only fail again.

SIGTERM and SIGINT are noted, and the loop below acts on them: each child is told once to stop gracefully, also one
that was being started when the signal came; a second signal ends them at once. When the parent itself is killed, the
line to each child ends, and they stop gracefully by themselves (`oplogue.cli.link`).
"""

from __future__ import annotations

import math
import signal
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from types import FrameType

from oplogue.cli.child import Child, Death
from oplogue.cli.failures import INTERRUPTED, OK, USAGE, WRONG
from oplogue.cli.link import Message
from oplogue.clock import Clock
from oplogue.model.health import Health

_LOOK = 0.1
_ANSWERS_WITHIN = 2.0
_RELOAD_WITHIN = 10.0
"""Who edits a file waits for what runs, but not for ever."""
_METRICS_WITHIN = 8.0
"""Of the ten seconds that Prometheus waits."""


class Processes:
    """A parent's children."""

    def __init__(
        self,
        command: Sequence[str],
        count: int,
        clock: Clock,
        *,
        until_quiet: bool = False,
        changed: Callable[[], bool] | None = None,
    ) -> None:
        numbers = [""] if count == 1 else [str(number + 1) for number in range(count)]
        self._children = [Child(command, number, clock) for number in numbers]
        self._clock = clock
        self._until_quiet = until_quiet
        self._changed = changed
        self._signals = 0
        self._verdict: int | None = None

    def run(self) -> int:
        """Keep the children running until a signal, or until they are done; the exit code.

        0 when they stopped gracefully, 2 when one can't start as it is configured, 130 when they were ended.
        """
        with self._signals_noted():
            try:
                while not self._signals and self._verdict is None:
                    self._keep()
                    self._clock.block(_LOOK)
                self._stop()
            finally:
                for child in self._children:
                    child.tell(signal.SIGKILL)
        if self._signals > 1:
            return INTERRUPTED
        return OK if self._verdict is None else self._verdict

    def health(self) -> Health:
        """All children together: live if each is, ready if each is. Any thread may ask."""
        until = self._clock.monotonic() + _ANSWERS_WITHIN
        told = [
            # One that is silent must not take the time of all others.
            (child.number, child.health(max(until - self._clock.monotonic(), _LOOK)))
            for child in self._children
        ]
        reasons = [
            f"process {number}: {reason}" if number else reason
            for number, health in told
            for reason in health.reasons
        ]
        if self._signals:
            reasons.append("the worker is stopping")
        live, ready = (all(getattr(one, word) for _, one in told) for word in ("live", "ready"))
        return Health(live=live, ready=ready and not self._signals, reasons=tuple(reasons))

    def metrics(self) -> dict[str, Message]:
        """What each child says that answers, by its number. Any thread may ask."""
        asked = [(child.number, child.ask("metrics")) for child in self._children]
        until = self._clock.monotonic() + _METRICS_WITHIN
        told = {
            number: question.wait(until - self._clock.monotonic())
            for number, question in asked
            if question is not None
        }
        return {number: answer for number, answer in told.items() if answer is not None}

    def _keep(self) -> None:
        if self._changed is not None and self._changed():
            _say("files have changed: starting again")
            self._stop(within=_RELOAD_WITHIN)
            if self._signals:
                return
            for child in self._children:
                child.note_death()
                child.start_anew()
        for child in self._children:
            death = child.note_death()
            if death is not None:
                self._judge(child, death)
            child.start_if_due()
        if self._verdict is None and self._changed is None and not any(one.wanted for one in self._children):
            self._verdict = OK

    def _judge(self, child: Child, death: Death) -> None:
        if death.words is not None:
            self._hear(death.words)
        if death.code == USAGE and self._changed is not None:
            child.wanted = False
            _say("it is started again when a file changes")
        elif death.code == USAGE:
            self._verdict = USAGE
        elif self._until_quiet:
            child.wanted = False
            if death.code != OK:
                _say(f"a worker process ended with {death.code}")
                self._verdict = WRONG
        else:
            _say(f"a worker process ended with {death.code}; it is started again in {death.pause:g} s")

    def _hear(self, words: str) -> None:
        """What stops every child is told once."""
        if self._verdict is None:
            _say(words)

    def _stop(self, within: float = math.inf) -> None:
        """Gracefully; hard at a second signal, or after so many seconds."""
        until = self._clock.monotonic() + within
        while any(child.alive for child in self._children):
            hard = self._signals > 1 or self._clock.monotonic() > until
            for child in self._children:
                child.tell(signal.SIGKILL if hard else signal.SIGTERM)
            self._clock.block(_LOOK)

    @contextmanager
    def _signals_noted(self) -> Generator[None]:
        before = {number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1


def _say(line: str) -> None:
    print(f"oplogue: {line}", file=sys.stderr)
