"""Handlers that take the document itself: verified, fetched and converted before they are called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bson import Decimal128
from pydantic import BaseModel, Field
from pymongo.asynchronous.collection import AsyncCollection
from tests.integration.runtime.conftest import MakeStage
from tests.support.running import Stage

from oplogue import Context, Fixed

Document = dict[str, Any]
Orders = AsyncCollection[Document]
ONCE = Fixed(0, max_attempts=1)


@dataclass
class Order:
    """As a dataclass."""

    id: int
    total: float
    lines: list[Line]


@dataclass
class Line:
    """A part of it."""

    sku: str
    count: int = 1


class OrderModel(BaseModel):
    """As a model."""

    id: int = Field(alias="_id")
    total: float


async def test_a_handler_may_take_the_document(stage: Stage, orders: Orders) -> None:
    seen: list[Any] = []

    @stage.app.reactive_task(collection="orders", debounce=0, watch_projection=["total"])
    async def _sync(order: dict[str, Any]) -> None:
        seen.append(order)

    await stage.app.start()
    await orders.insert_one({"_id": 7, "total": 1, "note": "x"})
    await stage.next("task.completed")
    assert seen == [{"_id": 7, "total": 1, "note": "x"}]


async def test_a_handler_may_take_a_dataclass_and_the_context(stage: Stage, orders: Orders) -> None:
    seen: list[Any] = []

    @stage.app.reactive_task(collection="orders", debounce=0)
    async def _sync(order: Order, ctx: Context) -> None:
        seen.extend([order, ctx.attempt])

    await stage.app.start()
    await orders.insert_one({"_id": 7, "total": 1, "lines": [{"sku": "a"}, {"sku": "b", "count": 2}]})
    await stage.next("task.completed")
    assert seen == [Order(7, 1.0, [Line("a"), Line("b", 2)]), 1]


async def test_a_handler_may_take_a_model(stage: Stage, orders: Orders) -> None:
    seen: list[OrderModel] = []

    @stage.app.reactive_task(collection="orders", debounce=0)
    def _sync(order: OrderModel) -> None:
        seen.append(order)

    await stage.app.start()
    await orders.insert_one({"_id": 7, "total": 2.5})
    await stage.next("task.completed")
    assert (seen[0].id, seen[0].total) == (7, 2.5)


async def test_a_document_that_does_not_fit_a_dataclass_fails_the_attempt_and_names_the_field(
    stage: Stage, orders: Orders
) -> None:
    @stage.app.reactive_task(collection="orders", debounce=0, retry_policy=ONCE)
    async def _sync(order: Order) -> None: ...

    await stage.app.start()
    await orders.insert_many(
        [
            {"_id": 7, "total": 1, "lines": [{"sku": "a"}, {"sku": 5}]},
            {"_id": 8, "total": 1, "lines": []},
        ]
    )
    await stage.next("task.completed", doc_id=8)
    error = (await stage.next("task.failed", doc_id=7)).fields["error"]
    assert "lines[1].sku" in error


async def test_a_document_that_does_not_fit_a_model_fails_the_attempt_and_names_the_field(
    stage: Stage, orders: Orders
) -> None:
    @stage.app.reactive_task(collection="orders", debounce=0, retry_policy=ONCE)
    async def _sync(order: OrderModel) -> None: ...

    await stage.app.start()
    await orders.insert_one({"_id": 7, "total": "much"})
    assert "total" in (await stage.next("task.failed", doc_id=7)).fields["error"]


async def test_a_document_that_was_mended_is_converted_at_the_next_attempt(
    stage: Stage, orders: Orders
) -> None:
    @stage.app.reactive_task(collection="orders", debounce=0, retry_policy=Fixed("1h"))
    async def _sync(order: OrderModel) -> None: ...

    await stage.app.start()
    await orders.insert_one({"_id": 7, "total": "much"})
    await stage.next("task.retried", doc_id=7)
    await orders.update_one({"_id": 7}, {"$set": {"total": 5}})
    await stage.app.retry_reactive_tasks()
    await stage.next("task.completed", doc_id=7)


async def test_a_document_outside_the_filter_never_reaches_the_handler(
    make_stage: MakeStage, orders: Orders
) -> None:
    planner, stage = make_stage(concurrency=0), make_stage()
    seen: list[Any] = []
    for one in (planner, stage):

        @one.app.reactive_task(
            task="sync",
            collection="orders",
            debounce=0,
            filter={"status": "paid"},
            watch_projection=["status"],
        )
        async def _sync(order: dict[str, Any]) -> None:
            seen.append(order["_id"])

    await planner.app.start()
    await orders.insert_many([{"_id": number, "status": "paid"} for number in (1, 2, 3)])
    await planner.planned(3)
    await planner.app.stop()
    await orders.update_one({"_id": 1}, {"$set": {"status": "refunded"}})
    await orders.delete_one({"_id": 2})
    await stage.app.start()
    await stage.next("task.completed", doc_id=3)
    await stage.next("task.skipped", doc_id=1)
    await stage.next("task.skipped", doc_id=2)
    assert seen == [3]


async def test_a_record_planned_under_another_filter_is_verified_before_any_handler(
    make_stage: MakeStage, orders: Orders
) -> None:
    """Also before one that never fetches its document."""
    old, new = make_stage(concurrency=0), make_stage()

    @old.app.reactive_task(task="sync", collection="orders", debounce=0, filter={"total": {"$gt": 0}})
    async def _old(ctx: Context) -> None: ...

    @new.app.reactive_task(task="sync", collection="orders", debounce=0, filter={"total": {"$gt": 10}})
    async def _new(ctx: Context) -> None: ...

    await old.app.start()
    await orders.insert_many([{"_id": 1, "total": 5}, {"_id": 2, "total": 50}])
    await old.planned(2)
    await old.app.stop()
    await new.app.start()
    await new.next("task.completed", doc_id=2)
    await new.next("task.skipped", doc_id=1)
    assert new.heard("task.started", doc_id=1) == []


async def test_ids_that_python_finds_alike_or_unlike_are_each_their_own_document(
    make_stage: MakeStage, orders: Orders
) -> None:
    ids = [
        *(1, True, 1.5, "1", "NaN", float("nan"), float("inf"), float("-inf")),
        *(Decimal128("2.5"), b"1", {"a": 1}, {"a": [1, 2]}),
    ]
    stage = make_stage(concurrency=len(ids))
    seen: list[tuple[str, str]] = []

    @stage.app.reactive_task(collection="orders", debounce=0)
    async def _sync(order: dict[str, Any], ctx: Context) -> None:
        seen.append((repr(order["_id"]), repr(ctx.doc_id)))

    await orders.insert_many([{"_id": id_} for id_ in ids])
    await stage.app.start()
    await stage.counted(len(ids), status="completed")
    assert sorted(seen) == sorted((repr(id_), repr(id_)) for id_ in ids)
