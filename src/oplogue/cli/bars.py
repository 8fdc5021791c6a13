"""Progress bars: how much is done, how fast, and how long it will still take."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console as Screen
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text


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
def bar(screen: Screen, what: str, total: int | None) -> Generator[Callable[[int], None]]:
    """A bar; it is told how many are done so far."""
    with Progress(*columns(), console=screen, expand=True) as shown:
        task = shown.add_task(what, total=total)
        yield lambda count: shown.update(task, completed=count)
