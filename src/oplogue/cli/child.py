"""One worker process, as its parent sees it: started, told to stop, and due again some time after it has died."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from oplogue.app import SUPERVISED
from oplogue.cli.link import LINE, Link, Question
from oplogue.clock import Clock
from oplogue.model.health import Health

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_SETTLED = 60.0


@dataclass(frozen=True, slots=True)
class Death:
    """How a process ended."""

    code: int
    words: str | None
    """Why it could not start, in its own words."""
    pause: float
    """Seconds until it is started again."""


class Child:
    """A process that is started again when it dies, later each time that it dies young."""

    def __init__(self, command: Sequence[str], number: str, clock: Clock) -> None:
        self._command = list(command)
        self._clock = clock
        self._pause = _FIRST_PAUSE
        self._due = 0.0
        self._started = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._link: Link | None = None
        self._told: int | None = None
        self.number: str = number
        """Its number, as text; empty where it is the only one."""
        self.wanted: bool = True
        """Whether it is to be started."""

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    def start_if_due(self) -> None:
        """Start it, or start it again when its pause is over."""
        if not self.wanted or self._process is not None or self._clock.monotonic() < self._due:
            return
        self._started = self._clock.monotonic()
        self._told = None
        link = Link()
        environment = {**os.environ, SUPERVISED: self.number, LINE: str(link.descriptor)}
        try:
            # A session of its own: Ctrl-C reaches the parent alone, which tells each child once.
            self._process = subprocess.Popen(
                self._command, env=environment, start_new_session=True, pass_fds=(link.descriptor,)
            )
        finally:
            link.started()
        self._link = link

    def start_anew(self) -> None:
        """Start it at once, whatever became of it before."""
        self.wanted, self._due, self._pause = True, 0.0, _FIRST_PAUSE

    def note_death(self) -> Death | None:
        """How it ended, once; it is due again after a pause."""
        if self._process is None or self.alive:
            return None
        code, words = self._process.returncode, None
        self._process = None
        link, self._link = self._link, None
        if link is not None:
            link.close()
            words = link.last_words
        if self._clock.monotonic() - self._started > _SETTLED:
            self._pause = _FIRST_PAUSE
        pause, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)
        self._due = self._clock.monotonic() + pause
        return Death(code, words, pause)

    def tell(self, number: signal.Signals) -> None:
        """Send it a signal, unless it was sent that one already."""
        if self._process is not None and self.alive and self._told != number:
            self._told = number
            self._process.send_signal(number)

    def ask(self, what: str) -> Question | None:
        """Ask it something; None where there is nobody to ask. Any thread may ask."""
        link = self._link
        return None if link is None else link.ask(what)

    def health(self, within: float) -> Health:
        """What it says of itself. Any thread may ask."""
        link = self._link
        answer = None if link is None else link.ask("health").wait(within)
        if answer is not None:
            return Health(answer["live"], answer["ready"], tuple(answer["reasons"]))
        if link is None or not self.alive:
            # No reason to end its parent, which starts it again.
            return Health(live=True, ready=False, reasons=("the process does not run; it is started again",))
        if not link.answered:
            return Health(live=True, ready=False, reasons=("the process is starting",))
        reason = f"the process has not answered for {max(within, 1):.0f} s"
        return Health(live=False, ready=False, reasons=(reason,))
