"""Which records this instance owns, and how long each of their leases is trusted."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from oplogue.clock import Clock
from oplogue.model.definition import Namespace
from oplogue.runtime.context import Run
from oplogue.store.renewals import Lost, Owned

Key = tuple[Any, Any]


class LeaseBook:
    """The runs whose leases are to be renewed. Shared by the event loop and the renewing thread."""

    def __init__(self, lease: timedelta, clock: Clock) -> None:
        self._lease = lease.total_seconds()
        self._clock = clock
        self._lock = threading.Lock()
        self._held: dict[Key, Run] = {}
        self._trusted_until: dict[Key, float] = {}

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, runs: Iterable[Run], claimed_at: float) -> None:
        """Own these; ``claimed_at`` is a moment before the claim was sent."""
        with self._lock:
            for run in runs:
                key = (run.record.token, run.record.id)
                self._held[key] = run
                self._trusted_until[key] = claimed_at + self._lease

    def drop(self, run: Run) -> None:
        """Renew this one no more."""
        key = (run.record.token, run.record.id)
        with self._lock:
            self._held.pop(key, None)
            self._trusted_until.pop(key, None)

    def fading(self) -> dict[Namespace, dict[Any, list[Any]]]:
        """Ids by collection and token of the records whose lease is a third through."""
        now = self._clock.monotonic()
        horizon = now + self._lease * 2 / 3
        owned: dict[Namespace, dict[Any, list[Any]]] = defaultdict(lambda: defaultdict(list))
        with self._lock:
            for key, run in self._held.items():
                timed_out = run.deadline is not None and run.deadline <= now
                if self._trusted_until[key] <= horizon and not timed_out:
                    owned[run.definition.source][key[0]].append(key[1])
        return owned

    def renewed(self, owned: Owned, lost: Lost, asked_at: float) -> list[Run]:
        """Note the answer of one renewal; the runs that were lost by it."""
        gone = set(lost)
        with self._lock:
            for token, ids in owned.items():
                for id_ in ids:
                    if (token, id_) in self._trusted_until and (token, id_) not in gone:
                        self._trusted_until[token, id_] = asked_at + self._lease
            return [self._held[key] for key in gone if key in self._held]

    def blocking(self, grace: float) -> Run | None:
        """A run whose timeout passed so long ago that the event loop, which should have ended it, is blocked."""
        latest = self._clock.monotonic() - grace
        with self._lock:
            for run in self._held.values():
                if run.deadline is not None and run.deadline <= latest and not run.timed_out:
                    return run
        return None

    def expired(self) -> list[Run]:
        """Runs whose lease has passed without a renewal."""
        now = self._clock.monotonic()
        with self._lock:
            return [self._held[key] for key, until in self._trusted_until.items() if until <= now]
