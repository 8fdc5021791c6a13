"""The demo's writer: customers who order, pay, change their minds and review; and the list of what they wrote."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from oplogue.app import App
from oplogue.cli.shop import NOTIFY, RATE, SYNC, Key
from oplogue.clock import Clock

_NAMES = ("Ada", "Alan", "Barbara", "Edsger", "Frances", "Grace", "Ken", "Radia")
_PRODUCTS = ("kettle", "lamp", "chair", "clock", "vase", "radio")

_TICK = 0.05
_BATCH = 500
_PAYS_AFTER = 0.4
_CHANGES = 0.05
_STORM, _LULL = 1.2, 0.8


@dataclass(slots=True)
class Book:
    """Everything that the customers wrote, kept apart from the database."""

    orders: int = 0
    paid: dict[int, int] = field(default_factory=dict[int, int])
    """The total of each order that was paid, as it was last written."""
    changes: int = 0
    reviews: dict[str, int] = field(default_factory=dict[str, int])
    """How many reviews each product got."""

    def expected(self) -> dict[Key, Mapping[str, Any]]:
        """For each document of a task, the watched values with which it has to be handled."""
        keys: dict[Key, Mapping[str, Any]] = {}
        for id_, total in self.paid.items():
            keys[SYNC, id_] = {"total": total}
            keys[NOTIFY, id_] = {"status": "shipped"}
        for name, count in self.reviews.items():
            keys[RATE, name] = {"reviews": count}
        return keys


class Customers:
    """Write until told enough."""

    def __init__(
        self, app: App, *, seconds: float | None, docs: int | None, rate: float, clock: Clock
    ) -> None:
        self._orders = app.database["orders"]
        self._products = app.database["products"]
        self._seconds = seconds
        self._docs = docs
        self._rate = _rate(seconds, docs, rate)
        self._clock = clock
        self._unpaid: deque[tuple[float, int]] = deque()
        self._storm: tuple[str, float] = ("", 0.0)
        self.book: Book = Book()

    async def write(self) -> None:
        """Orders at their rate, or as fast as they go; in the end all are paid."""
        await self._products.insert_many([{"_id": name, "reviews": 0, "stars": 0} for name in _PRODUCTS])
        started = self._clock.monotonic()
        while not self._enough(elapsed := self._clock.monotonic() - started):
            await self._order(self._due(elapsed))
            await self._pay(self._clock.monotonic() - _PAYS_AFTER)
            await self._review()
            await self._clock.sleep(0 if self._rate is None else _TICK)
        await self._pay(self._clock.monotonic())

    def _enough(self, elapsed: float) -> bool:
        late = self._seconds is not None and elapsed >= self._seconds
        return late or (self._docs is not None and self.book.orders >= self._docs)

    def _due(self, elapsed: float) -> int:
        wanted = _BATCH if self._rate is None else int(self._rate * elapsed) - self.book.orders
        return min(wanted, _BATCH, wanted if self._docs is None else self._docs - self.book.orders)

    async def _order(self, count: int) -> None:
        if count <= 0:
            return
        ids = range(self.book.orders + 1, self.book.orders + count + 1)
        await self._orders.insert_many(
            [
                {"_id": id_, "status": "new", "customer": self._one_of(_NAMES), "total": self._total()}
                for id_ in ids
            ]
        )
        self.book.orders += count
        self._unpaid.extend((self._clock.monotonic(), id_) for id_ in ids)

    async def _pay(self, ordered_before: float) -> None:
        totals: dict[int, int] = {}
        while self._unpaid and (self._rate is None or self._unpaid[0][0] <= ordered_before):
            totals[self._unpaid.popleft()[1]] = 0
        if not totals:
            return
        ids = {"_id": {"$in": list(totals)}}
        async for order in self._orders.find(ids, {"total": 1}):
            totals[order["_id"]] = order["total"]
        await self._orders.update_many(ids, {"$set": {"status": "paid"}})
        self.book.paid.update(totals)
        for id_ in totals:
            if self._clock.random() < _CHANGES:
                await self._change(id_)

    async def _change(self, id_: int) -> None:
        total = self._total()
        changed = await self._orders.update_one({"_id": id_, "status": "paid"}, {"$set": {"total": total}})
        if changed.modified_count:  # else it was shipped before
            self.book.paid[id_] = total
            self.book.changes += 1

    async def _review(self) -> None:
        name, until = self._storm
        now = self._clock.monotonic()
        if now >= until + _LULL:
            name, until = self._storm = (self._one_of(_PRODUCTS), now + _STORM)
        if now < until:
            stars = 1 + int(5 * self._clock.random())
            await self._products.update_one({"_id": name}, {"$inc": {"reviews": 1, "stars": stars}})
            self.book.reviews[name] = self.book.reviews.get(name, 0) + 1

    def _total(self) -> int:
        return 500 + int(20_000 * self._clock.random())

    def _one_of(self, names: tuple[str, ...]) -> str:
        return names[int(len(names) * self._clock.random())]


def _rate(seconds: float | None, docs: int | None, usual: float) -> float | None:
    """Orders per second; None: as fast as they go."""
    if docs is None:
        return usual
    # A little ahead, so that the last one is written in time.
    return None if seconds is None else docs / (0.9 * seconds)
