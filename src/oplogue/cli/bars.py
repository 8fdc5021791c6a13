"""Progress bars: how much is done, how fast, and how long it will still take."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from rich.console import Console as Screen
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

Bars = Callable[[str, int, int | None], None]
"""Told by name how many are done, and of how many if that has changed."""


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        """Per second, since it began."""
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f}/s", style="cyan")


class _Count(ProgressColumn):
    def render(self, task: Task) -> Text:
        """How many of how many."""
        total = "" if task.total is None else f" of {task.total:,.0f}"
        return Text(f"{task.completed:,.0f}{total}")


def columns() -> tuple[ProgressColumn, ...]:
    """What every bar of ours shows."""
    return (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        _Count(),
        _Rate(),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
    )


@contextmanager
def bars(screen: Screen, totals: Sequence[tuple[str, int]]) -> Generator[Bars]:
    """A bar for each of several things, by name."""
    with Progress(*columns(), console=screen, expand=True) as shown:
        tasks = {name: shown.add_task(name, total=total) for name, total in totals}

        def tell(name: str, done: int, total: int | None) -> None:
            # Estimates may be too low; nothing is done to more than all.
            most = shown.tasks[tasks[name]].total if total is None else total
            shown.update(tasks[name], completed=done, total=max(most or 0, done))

        yield tell


@contextmanager
def bar(screen: Screen, what: str, total: int | None) -> Generator[Callable[[int], None]]:
    """A bar; it is told how many are done so far."""
    with Progress(*columns(), console=screen, expand=True) as shown:
        task = shown.add_task(what, total=total)
        yield lambda count: shown.update(task, completed=count)
