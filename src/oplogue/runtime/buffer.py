"""What is claimed and has not started: by priority, its tasks in turn, each in the order of its claims."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable

from oplogue.runtime.context import Run


class Buffer:
    """Claimed runs that wait for a slot."""

    def __init__(self) -> None:
        self._runs: defaultdict[int, dict[str, deque[Run]]] = defaultdict(dict)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, run: Run, priority: int) -> None:
        """Let it wait behind the others of its task."""
        self._runs[priority].setdefault(run.record.task, deque()).append(run)
        self._count += 1

    def pop(self) -> Run:
        """The next to start."""
        tasks = self._runs[max(self._runs)]
        task, runs = next(iter(tasks.items()))
        # Behind the other tasks of its priority: it is their turn.
        del tasks[task]
        run = runs.popleft()
        if runs:
            tasks[task] = runs
        self._drop_empty()
        self._count -= 1
        return run

    def take_back(self, unwanted: Callable[[Run], bool]) -> list[Run]:
        """Those that shall not start."""
        taken: list[Run] = []
        for tasks in self._runs.values():
            for task, runs in list(tasks.items()):
                taken += filter(unwanted, runs)
                tasks[task] = deque(run for run in runs if not unwanted(run))
                if not tasks[task]:
                    del tasks[task]
        self._drop_empty()
        self._count -= len(taken)
        return taken

    def _drop_empty(self) -> None:
        for priority in [priority for priority, tasks in self._runs.items() if not tasks]:
            del self._runs[priority]
