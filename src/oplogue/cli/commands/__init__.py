"""The commands, one module each: a function whose parameters are the options and whose docstring is the help."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from oplogue.cli.commands import tasks
from oplogue.cli.commands.demo import demo
from oplogue.cli.commands.dev import dev
from oplogue.cli.commands.doctor import doctor
from oplogue.cli.commands.grafana import grafana
from oplogue.cli.commands.plan import plan
from oplogue.cli.commands.reconcile import reconcile
from oplogue.cli.commands.status import status
from oplogue.cli.commands.worker import worker

Command = Callable[..., int]

COMMANDS: Sequence[Command] = (demo, dev, worker, plan, status, reconcile, doctor, grafana)
"""In the order of the help."""

GROUPS: Mapping[str, tuple[str, Mapping[str, Command]]] = {"tasks": (tasks.HELP, tasks.COMMANDS)}
"""Commands of a second word: the group's help, and its commands."""
