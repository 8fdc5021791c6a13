"""The demo's example: a shop whose orders move from new over paid to shipped, and whose products are reviewed.

Three tasks, none of which anybody enqueues:

- ``sync-order`` sends paid orders to a warehouse, which is busy at times (then it is retried), and ships them;
- ``notify-customer`` runs on what that shipped: one task's write is the next one's event;
- ``refresh-rating`` makes one run of a storm of reviews, by its debounce.

The handlers keep a ledger of what they did. The demo compares it in the end with what was written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from oplogue.app import App
from oplogue.clock import Clock
from oplogue.model.retry import Exponential
from oplogue.runtime.context import Context

SYNC, NOTIFY, RATE = "sync-order", "notify-customer", "refresh-rating"

Key = tuple[str, Hashable]
"""A task and the id of a document."""

_BUSY = 0.08
_SAMPLES = 10_000
_NEWS = 20


class WarehouseBusyError(Exception):
    """The warehouse takes no order now."""


@dataclass(frozen=True, slots=True)
class Order:
    """What the customer's message needs of an order."""

    id: int
    customer: str
    total: int


@dataclass(slots=True)
class Ledger:
    """What the handlers did, told by themselves."""

    ran: dict[Key, Mapping[str, Any]] = field(default_factory=dict[Key, Mapping[str, Any]])
    """For each document of a task, the watched values with which its handler last ran to its end."""
    latencies: deque[float] = field(default_factory=lambda: deque[float](maxlen=_SAMPLES))
    """Seconds from an order's shipment being written to its handler being called."""

    news: deque[tuple[datetime, str]] = field(
        default_factory=lambda: deque[tuple[datetime, str]](maxlen=_NEWS)
    )
    """What a person might want to read."""

    def enter(self, ctx: Context) -> None:
        """The handler has come to its end."""
        self.ran[ctx.task, ctx.doc_id] = ctx.watched_values


@dataclass(frozen=True, slots=True)
class Shop:
    """The app, and what its handlers noted."""

    app: App
    ledger: Ledger


def open_shop(uri: str, database: str, *, clock: Clock) -> Shop:
    """The shop on this database; its app is not started yet."""
    app = App(uri, database=database, instance_id="demo", concurrency=50, shutdown_timeout="5s")
    ledger = Ledger()
    _take_orders(app, ledger, clock)
    _rate_products(app, ledger, clock)
    return Shop(app, ledger)


def _take_orders(app: App, ledger: Ledger, clock: Clock) -> None:
    written_at: dict[int, float] = {}

    @app.reactive_task(
        task=SYNC,
        collection="orders",
        filter={"status": "paid"},
        watch_projection=["total"],
        debounce="200ms",
        retry_policy=Exponential(min="250ms", max="2s", max_attempts=20),
    )
    async def sync_order(ctx: Context) -> None:
        order = await ctx.get_document()
        if clock.random() < _BUSY:
            raise WarehouseBusyError(f"order {order['_id']} must wait")
        # An order that its customer changed meanwhile is not shipped: the change runs this again.
        as_sent = {"_id": order["_id"], "status": "paid", "total": order["total"]}
        written_at[ctx.doc_id] = clock.monotonic()
        await app.database["orders"].update_one(as_sent, {"$set": {"status": "shipped"}})
        ledger.enter(ctx)

    @app.reactive_task(
        task=NOTIFY,
        collection="orders",
        filter={"status": "shipped"},
        watch_projection=["status"],
        debounce=0,
        priority=1,
    )
    async def notify_customer(order: Order, ctx: Context) -> None:
        if order.id in written_at:
            ledger.latencies.append(clock.monotonic() - written_at.pop(order.id))
        await clock.sleep(0.002)  # a message to order.customer
        ledger.enter(ctx)


def _rate_products(app: App, ledger: Ledger, clock: Clock) -> None:
    @app.reactive_task(
        task=RATE,
        collection="products",
        filter={"reviews": {"$gt": 0}},
        watch_projection=["reviews"],
        debounce="400ms",
        max_wait="3s",
    )
    async def refresh_rating(ctx: Context) -> None:
        product = await ctx.get_document(projection={"stars": 1, "reviews": 1})
        rating = round(product["stars"] / product["reviews"], 2)
        await app.database["products"].update_one({"_id": ctx.doc_id}, {"$set": {"rating": rating}})
        before = ledger.ran.get((RATE, ctx.doc_id), {"reviews": 0})
        more = product["reviews"] - before["reviews"]
        ledger.news.append((clock.now(), f"{RATE}: {more} more reviews of the {ctx.doc_id} were one run"))
        ledger.enter(ctx)
