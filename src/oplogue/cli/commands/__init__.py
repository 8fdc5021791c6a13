"""The commands, one module each: a function whose parameters are the options and whose docstring is the help."""

from __future__ import annotations

from collections.abc import Callable

from oplogue.cli.commands.demo import demo
from oplogue.cli.commands.worker import worker

COMMANDS: tuple[Callable[..., int], ...] = (demo, worker)
"""In the order of the help."""
