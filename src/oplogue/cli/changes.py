"""Have the source files changed? For ``--reload``: Python files below a folder are looked at now and then.

Folders of no source are passed over: hidden ones, caches, virtual environments, other languages' packages. A change
counts once the files have rested for a look: editors and checkouts write many, one after the other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from oplogue.clock import Clock

_EVERY = 0.25
_SHARE = 10
"""A look that took long is followed by a rest this many times as long."""
_PASSED_OVER = frozenset({"__pycache__", "node_modules", "build", "dist"})
_OF_AN_ENVIRONMENT = "pyvenv.cfg"

State = dict[str, tuple[int, int]]


class SourceFiles:
    """The Python files below a folder."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._known = self._latest = _state_of(folder)
        self._next_look = clock.monotonic() + _EVERY

    def have_changed(self) -> bool:
        """Whether they have since the last time that this was so. Cheap enough to be asked all the time."""
        began = self._clock.monotonic()
        if began < self._next_look:
            return False
        before, self._latest = self._latest, _state_of(self._folder)
        ended = self._clock.monotonic()
        self._next_look = ended + max(_EVERY, _SHARE * (ended - began))
        if self._latest == self._known or self._latest != before:
            return False
        self._known = self._latest
        return True


def _state_of(folder: Path) -> State:
    state: State = {}
    for path in _sources(folder):
        try:
            found = path.stat()
        except OSError:  # gone meanwhile
            continue
        state[str(path)] = (found.st_mtime_ns, found.st_size)
    return state


def _sources(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        if _OF_AN_ENVIRONMENT in files:
            folders.clear()
            continue
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _PASSED_OVER]
        yield from (Path(place, name) for name in files if name.endswith(".py"))
