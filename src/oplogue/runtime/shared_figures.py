"""What all instances have counted, as one of them knows it: the stored totals, and what it has not added to them yet.

An instance adds what it counted every ``push_interval``, when it stops, and with every answer that it gives. The
last is what keeps the totals monotonic behind a load balancer: whoever answers next has seen what the last one
said. While the database can't be reached the totals stand as they were last seen, and this instance's part is live.
"""

from __future__ import annotations

import asyncio

from oplogue.model.figures import Figures
from oplogue.runtime.meter import Meter
from oplogue.store.totals import Totals


class SharedFigures:
    """Adds one instance's figures to the totals."""

    def __init__(self, meter: Meter, totals: Totals) -> None:
        self._meter = meter
        self._store = totals
        # What was counted before the instance was started is there already.
        self._added = meter.read()
        self._totals = Figures()
        self._sending: Figures | None = None
        self._number = 0
        self._lock = asyncio.Lock()

    async def share(self) -> Figures:
        """Add what is new; the totals with that, and with what others have added.

        What is counted while they travel is not among them: the next answer, another instance's perhaps, must not
        know less than this one.
        """
        async with self._lock:
            if self._sending is not None:
                await self._send(self._sending)
            new = self._new()
            if new.counters or new.histograms:
                self._number += 1
                self._sending = new
                await self._send(new)
            else:
                self._totals = await self._store.read()
            return self._totals

    async def _send(self, figures: Figures) -> None:
        """Sent again with the same number until the answer is known: it counts once."""
        self._totals = await self._store.add(figures, self._number)
        self._added = self._added.plus(figures)
        self._sending = None

    def estimate(self) -> Figures:
        """The totals as they were last seen, and this instance's part as it is now."""
        return self._totals.plus(self._new())

    def _new(self) -> Figures:
        return self._meter.read().plus(self._added, -1)
