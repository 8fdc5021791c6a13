"""How far a reconciliation has come, as it is told to people: in events, metrics, commands and pages."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from oplogue.model.definition import Namespace


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """One collection whose documents are being planned once more, or wait for that."""

    source: Namespace
    tasks: tuple[str, ...]
    """For whom."""
    documents: int = 0
    """How many are done."""
    estimate: int
    """About how many there are: what the server counts without looking."""
    per_second: float = 0.0
    """How fast it goes, its rests included; 0 while that is not known."""
    started_at: datetime | None = None
    """When it began, by the server's clock; None while it waits for its turn."""
    seen_at: datetime | None = None
    """When its leader last wrote how far it has come."""

    @property
    def waits(self) -> bool:
        """Whether no leader has begun with it."""
        return self.started_at is None

    @property
    def share(self) -> float:
        """The part that is done, from 0 to 1.

        >>> orders = Namespace("shop", "orders")
        >>> Reconciliation(source=orders, tasks=("sync",), documents=250, estimate=1000).share
        0.25
        """
        return min(self.documents / self.estimate, 1.0) if self.estimate else 0.0

    @property
    def remaining(self) -> timedelta | None:
        """How long the rest takes at that speed; None while that is not known.

        >>> half = {"tasks": ("sync",), "documents": 500, "estimate": 1000, "per_second": 50.0}
        >>> Reconciliation(source=Namespace("shop", "orders"), **half).remaining
        datetime.timedelta(seconds=10)
        """
        if self.per_second <= 0:
            return None
        return timedelta(seconds=max(self.estimate - self.documents, 0) / self.per_second)
