"""Who may claim how much: priority first, then fair shares between the tasks of a priority."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby


def fair_shares(free: int, offers: Mapping[str, int], priorities: Mapping[str, int]) -> dict[str, int]:
    """How many of each task's offered records to take, so that no task's backlog delays another's first.

    >>> fair_shares(10, {"big": 1000, "small": 2, "urgent": 3}, {"urgent": 1})
    {'urgent': 3, 'small': 2, 'big': 5}
    """
    shares: dict[str, int] = {}
    ranked = sorted(
        (name for name, count in offers.items() if count > 0), key=lambda n: -priorities.get(n, 0)
    )
    for _, group in groupby(ranked, key=lambda name: priorities.get(name, 0)):
        # The smallest offers first: what they leave of an equal share goes to the larger ones.
        names = sorted(group, key=lambda name: offers[name])
        for place, name in enumerate(names):
            share = min(offers[name], -(-free // (len(names) - place)))
            shares[name] = share
            free -= share
    return {name: share for name, share in shares.items() if share}
