"""Where commands print: tables that fit the terminal, or one JSON document; questions and progress.

Answers go to standard output; what only a person needs goes to standard error, so that a pipe gets answers alone.
Colours are rich's business: off without a terminal, and where NO_COLOR is set.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from oplogue.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.console import Console as Screen
    from rich.console import RenderableType

    from oplogue.cli.bars import Bars

_WITHOUT_TERMINAL = 240
"""Columns where nobody looks: nothing is cut that a pipe may need."""

Progress = Callable[[int], None]


class Output:
    """The command's output, as the user asked for it."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json: bool = as_json

    @cached_property
    def screen(self) -> Screen:
        """Standard output, as rich knows it."""
        return _screen(stderr=False)

    @cached_property
    def aside(self) -> Screen:
        """Standard error."""
        return _screen(stderr=True)

    def show(self, picture: Callable[[Screen], RenderableType], document: Any) -> None:
        """Print the answer: the picture, or the document."""
        if self.as_json:
            self.write(document, indent=2)
        else:
            self.screen.print(picture(self.screen), highlight=False)

    def write(self, document: Any, *, indent: int | None = None) -> None:
        """Print a document in extended JSON."""
        from oplogue.store.extended_json import write_json

        print(write_json(document, indent=indent), flush=True)

    def note(self, text: str) -> None:
        """Say something to the person before the terminal."""
        self.aside.print(text, highlight=False, markup=False, soft_wrap=True)

    def confirm(self, question: str, *, yes: bool) -> bool:
        """Whether to go on. Without a terminal nobody can be asked: `--yes` must have answered beforehand."""
        if yes:
            return True
        if not self.can_ask:
            raise ConfigurationError(
                f"{question} Nobody can be asked without a terminal", expected="--yes, or --dry-run"
            )
        print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    @property
    def can_ask(self) -> bool:
        """Whether somebody is before a terminal."""
        return sys.stdin.isatty()

    @contextmanager
    def bars(self, totals: Sequence[tuple[str, int]]) -> Generator[Bars]:
        """A bar for each of several things; nothing without a terminal."""
        if not self.aside.is_terminal:
            yield lambda _name, _done, _total: None
            return
        from oplogue.cli.bars import bars

        with bars(self.aside, totals) as tell:
            yield tell

    @contextmanager
    def progress(self, what: str, total: int | None) -> Generator[Progress]:
        """A bar with rate and estimate, while something long is done; nothing without a terminal."""
        if not self.aside.is_terminal:
            yield lambda _count: None
            return
        from oplogue.cli.bars import bar

        with bar(self.aside, what, total) as advance:
            yield advance


def _screen(*, stderr: bool) -> Screen:
    from rich.console import Console as Screen

    screen = Screen(stderr=stderr)
    return screen if screen.is_terminal else Screen(stderr=stderr, width=_WITHOUT_TERMINAL)
