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


class LeaseBook:
    """The runs whose leases are to be renewed. Shared by the event loop and the renewing thread."""

    def __init__(self, lease: timedelta, clock: Clock) -> None:
        self._lease = lease.total_seconds()
        self._clock = clock
        self._lock = threading.Lock()
        # By the runs themselves: ids are dear to hash, and this is filled and emptied with every record.
        self._trusted_until: dict[Run, float] = {}

    def __len__(self) -> int:
        return len(self._trusted_until)

    def hold(self, runs: Iterable[Run], claimed_at: float) -> None:
        """Own these; ``claimed_at`` is a moment before the claim was sent."""
        until = claimed_at + self._lease
        with self._lock:
            self._trusted_until.update(dict.fromkeys(runs, until))

    def drop(self, run: Run) -> None:
        """Renew this one no more."""
        with self._lock:
            self._trusted_until.pop(run, None)

    def held_of(self, source: Namespace) -> set[Any]:
        """The ids of the records of one collection."""
        with self._lock:
            return {run.record.id for run in self._trusted_until if run.definition.source == source}

    def fading(self) -> dict[Namespace, dict[Any, list[Any]]]:
        """Ids by collection and token of the records whose lease is a third through."""
        now = self._clock.monotonic()
        horizon = now + self._lease * 2 / 3
        owned: dict[Namespace, dict[Any, list[Any]]] = defaultdict(lambda: defaultdict(list))
        with self._lock:
            for run, until in self._trusted_until.items():
                timed_out = run.deadline is not None and run.deadline <= now
                if until <= horizon and not timed_out:
                    owned[run.definition.source][run.record.token].append(run.record.id)
        return owned

    def renewed(self, owned: Owned, lost: Lost, asked_at: float) -> list[Run]:
        """Note the answer of one renewal; the runs that were lost by it."""
        gone = set(lost)
        with self._lock:
            held = {(run.record.token, run.record.id): run for run in self._trusted_until}
            for token, ids in owned.items():
                for id_ in ids:
                    run = held.get((token, id_))
                    if run is not None and (token, id_) not in gone:
                        self._trusted_until[run] = asked_at + self._lease
            return [held[key] for key in gone if key in held]

    def blocking(self, grace: float) -> Run | None:
        """A run whose timeout passed so long ago that the event loop, which should have ended it, is blocked."""
        latest = self._clock.monotonic() - grace
        with self._lock:
            for run in self._trusted_until:
                if run.deadline is not None and run.deadline <= latest and not run.timed_out:
                    return run
        return None

    def expired(self) -> list[Run]:
        """Runs whose lease has passed without a renewal."""
        now = self._clock.monotonic()
        with self._lock:
            return [run for run, until in self._trusted_until.items() if until <= now]
