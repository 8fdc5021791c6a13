"""Who may claim how much: priority first, then fair shares between the tasks of a priority.

Shares are levelled with what each task holds already, so that a task which fills the slots with slow runs gives way
to one that has none. What can't be split evenly goes to those who have waited the longest: where slots come free
one by one, that is all there is to share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby


@dataclass(frozen=True, slots=True)
class Offer:
    """What one task has to run."""

    task: str
    count: int
    priority: int = 0
    held: int = 0
    """How many of it are claimed already."""
    served: int = 0
    """In which round it got its last share."""

    def up_to(self, level: int) -> int:
        """How many to take, to hold so many."""
        return min(self.count, max(0, level - self.held))


def fair_shares(free: int, offers: Sequence[Offer]) -> dict[str, int]:
    """How many of each task's offered records to take, so that no task's backlog delays another's first.

    >>> fair_shares(10, [Offer("big", 1000), Offer("small", 2), Offer("urgent", 3, priority=1)])
    {'urgent': 3, 'big': 5, 'small': 2}
    >>> fair_shares(1, [Offer("big", 1000, served=2), Offer("small", 2, served=1)])
    {'small': 1}
    """
    shares: dict[str, int] = {}
    ranked = sorted(offers, key=lambda offer: -offer.priority)
    for _, group in groupby(ranked, key=lambda offer: offer.priority):
        taken = _levelled(free, list(group))
        shares |= taken
        free -= sum(taken.values())
    return {task: share for task, share in shares.items() if share}


def _levelled(free: int, offers: Sequence[Offer]) -> dict[str, int]:
    level = _highest_level(free, offers)
    shares = {offer.task: offer.up_to(level) for offer in offers}
    left = free - sum(shares.values())
    # Less than one for each is left of those who would take one more.
    hungry = [offer for offer in offers if offer.up_to(level + 1) > shares[offer.task]]
    for offer in sorted(hungry, key=lambda offer: offer.served)[:left]:
        shares[offer.task] += 1
    return shares


def _highest_level(free: int, offers: Sequence[Offer]) -> int:
    low, high = 0, free + max(offer.held for offer in offers)
    while low < high:
        middle = (low + high + 1) // 2
        if sum(offer.up_to(middle) for offer in offers) <= free:
            low = middle
        else:
            high = middle - 1
    return low
