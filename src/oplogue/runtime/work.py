"""What the engine and its sources of work have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol

from oplogue.model.definition import Namespace
from oplogue.model.outcomes import Outcome
from oplogue.runtime.context import Run
from oplogue.store.tasks import Look, Wanted


@dataclass(frozen=True, slots=True)
class Kind:
    """A task, as far as sharing the slots goes."""

    name: str
    priority: int
    concurrency: int | None
    version: int = 1


@dataclass(frozen=True, slots=True)
class Ended:
    """A run and what it came to."""

    run: Run
    outcome: Outcome


class Source(Protocol):
    """Where work comes from, and where its outcomes go."""

    @property
    def namespace(self) -> Namespace:
        """What this source's work is about; its name in reports."""
        ...

    @property
    def kinds(self) -> Sequence[Kind]:
        """The tasks of this source."""
        ...

    async def look(self, names: Sequence[str], wanted: Mapping[str, Wanted]) -> Look:
        """The agenda of these tasks, and the first due records of those that are wanted."""
        ...

    async def claim(self, ids: Sequence[Any]) -> list[Run]:
        """Take those that are still due."""
        ...

    async def reclaim(self, rooms: Mapping[str, int], limit: int, *, held: Set[Any]) -> list[Run]:
        """Take a group of suspects, of each task no more than it has room for; none that this instance still holds."""
        ...

    async def prepare(self, runs: Sequence[Run]) -> list[Ended]:
        """Verify and fetch what must be verified before a start; those that need no run any more."""
        ...

    async def execute(self, run: Run) -> Outcome | None:
        """Run the handler. Never raises but when it is cancelled; None where the outcome is written already."""
        ...

    async def settle(self, ended: Sequence[Ended]) -> None:
        """Write outcomes."""
        ...
