"""Locks, transactions with hooks, and batches."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import OperationFailure
from tests.integration.runtime.conftest import MakeStage
from tests.support.running import Stage, within

from oplogue import App, ConfigurationError, LockNotAcquiredError, NotStartedError, on_commit

Document = dict[str, Any]
Orders = AsyncCollection[Document]


@pytest.fixture
async def app(stage: Stage) -> App:
    """A started app without tasks."""
    await stage.app.start()
    return stage.app


# -- locks


async def test_a_lock_has_one_holder(app: App) -> None:
    held, most = 0, 0

    async def hold() -> str:
        nonlocal held, most
        async with app.lock("account") as lock:
            held += 1
            most = max(most, held)
            await app.client.admin.command("ping")
            held -= 1
            return lock.token

    tokens = await within(asyncio.gather(*(hold() for _ in range(5))))
    assert most == 1
    assert len(set(tokens)) == 5


async def test_a_lock_that_is_held_is_not_acquired_and_says_so(make_stage: MakeStage, app: App) -> None:
    other = make_stage()
    await other.app.start()
    async with app.lock("account"):
        with pytest.raises(LockNotAcquiredError, match="account"):
            async with other.app.lock("account", max_wait=0):
                pass
        async with other.app.lock("another", max_wait=0):
            pass
    async with other.app.lock("account", max_wait=0):
        pass


async def test_a_lock_is_given_back_when_the_block_raises(app: App) -> None:
    with pytest.raises(ValueError, match="inside"):
        async with app.lock("account"):
            raise ValueError("inside")
    async with app.lock("account", max_wait=0):
        pass


async def test_a_lock_is_kept_for_longer_than_it_would_last(app: App, db: AsyncDatabase[Document]) -> None:
    globals_ = db["_oplogue_globals"]
    async with app.lock("account", expire_in="300ms") as lock:
        first = await globals_.find_one({"token": lock.token})
        assert first is not None

        async def extended() -> bool:
            now = await globals_.find_one({"token": lock.token})
            assert now is not None
            return now["expiresAt"] > first["expiresAt"] + timedelta(milliseconds=300)

        async with asyncio.timeout(5):
            while not await extended():
                pass
        assert not lock.lost.is_set()


async def test_a_lock_whose_holder_died_is_taken_when_it_has_expired(
    app: App, db: AsyncDatabase[Document]
) -> None:
    async with app.lock("account") as lock:
        document = await db["_oplogue_globals"].find_one({"token": lock.token})
    assert document is not None
    await db["_oplogue_globals"].insert_one(document | {"token": "of the dead"})
    with pytest.raises(LockNotAcquiredError):
        async with app.lock("account", max_wait="50ms"):
            pass
    await db["_oplogue_globals"].update_one({"token": "of the dead"}, [{"$set": {"expiresAt": "$$NOW"}}])
    async with app.lock("account", max_wait=0):
        pass


async def test_a_lock_that_was_taken_away_says_so(app: App, db: AsyncDatabase[Document]) -> None:
    async with app.lock("account", expire_in="300ms") as lock:
        await db["_oplogue_globals"].update_one({"token": lock.token}, {"$set": {"token": "another's"}})
        await within(lock.lost.wait())
    assert await db["_oplogue_globals"].find_one({"token": "another's"}) is not None


async def test_a_locks_token_is_known_while_it_is_held(app: App) -> None:
    lock = app.lock("account")
    with pytest.raises(NotStartedError):
        _ = lock.token
    async with lock:
        assert lock.token
    with pytest.raises(NotStartedError):
        _ = lock.token


@pytest.mark.parametrize("key", ["", 7, None])
async def test_a_lock_without_a_name_is_refused(app: App, key: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"key={key!r}"):
        app.lock(key)


async def test_a_lock_that_would_never_last_is_refused(app: App) -> None:
    with pytest.raises(ConfigurationError, match="expire_in"):
        app.lock("account", expire_in="1ms")


# -- transactions


async def test_the_value_of_a_transactions_callback_is_returned(
    app: App, db: AsyncDatabase[Document]
) -> None:
    async def write(session: Any) -> str:
        await app.database["orders"].insert_one({"_id": 1}, session=session)
        return "done"

    assert await app.with_transaction(write) == "done"
    assert await db["orders"].count_documents({}) == 1


async def test_a_transaction_whose_callback_raises_leaves_nothing(
    app: App, db: AsyncDatabase[Document]
) -> None:
    async def write(session: Any) -> None:
        await app.database["orders"].insert_one({"_id": 1}, session=session)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await app.with_transaction(write)
    assert await db["orders"].count_documents({}) == 0


async def test_hooks_run_after_the_commit_in_their_order(app: App, db: AsyncDatabase[Document]) -> None:
    seen: list[Any] = []

    async def count() -> None:
        seen.append(await db["orders"].count_documents({}))

    async def write(session: Any) -> None:
        on_commit(session, lambda: seen.append("first"))
        on_commit(session, count)
        await app.database["orders"].insert_one({"_id": 1}, session=session)
        assert seen == []

    await app.with_transaction(write)
    assert seen == ["first", 1]


async def test_hooks_of_an_aborted_transaction_never_run(app: App) -> None:
    seen: list[str] = []

    async def write(session: Any) -> None:
        on_commit(session, lambda: seen.append("committed"))
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await app.with_transaction(write)
    assert seen == []


async def test_hooks_of_a_callback_that_is_called_again_run_once(app: App) -> None:
    seen: list[int] = []
    calls: list[int] = []

    async def write(session: Any) -> None:
        calls.append(len(calls) + 1)
        on_commit(session, lambda call=calls[-1]: seen.append(call))
        if len(calls) < 3:
            raise OperationFailure("conflict", 112, {"errorLabels": ["TransientTransactionError"]})

    await app.with_transaction(write)
    assert (calls, seen) == ([1, 2, 3], [3])


async def test_a_hook_on_a_session_of_ones_own_is_refused(app: App) -> None:
    async with app.client.start_session() as session:
        with pytest.raises(ConfigurationError, match="session"):
            on_commit(session, lambda: None)


async def test_a_hook_that_raises_is_told_and_leaves_the_commit_and_the_other_hooks(
    app: App, db: AsyncDatabase[Document]
) -> None:
    seen: list[str] = []

    def broken() -> None:
        raise ValueError("the hook")

    async def write(session: Any) -> None:
        on_commit(session, broken)
        on_commit(session, lambda: seen.append("the next one"))
        await app.database["orders"].insert_one({"_id": 1}, session=session)

    with pytest.raises(ValueError, match="the hook"):
        await app.with_transaction(write)
    assert await db["orders"].count_documents({}) == 1
    assert seen == ["the next one"]


# -- batches


async def test_batches_of_all_documents(app: App, orders: Orders) -> None:
    await orders.insert_many([{"_id": number, "total": number} for number in range(7)])
    batches: list[list[int]] = []

    def total(document: Document) -> int:
        return document["total"]

    async def execute(items: list[int]) -> None:
        batches.append(sorted(items))

    assert await app.process_in_batches("orders", {}, total, execute, batch_size=3) == 7
    assert [len(batch) for batch in batches] == [3, 3, 1]
    assert sorted(number for batch in batches for number in batch) == list(range(7))


async def test_a_document_may_be_one_item_several_or_none(app: App, orders: Orders) -> None:
    await orders.insert_many([{"_id": number} for number in range(4)])
    items: list[int] = []

    async def as_often_as_its_id(document: Document) -> list[int] | int | None:
        match document["_id"]:
            case 0:
                return None
            case 1:
                return 1
            case number:
                return [number] * number

    assert await app.process_in_batches("orders", {}, as_often_as_its_id, items.extend, batch_size=2) == 6
    assert sorted(items) == [1, 2, 2, 3, 3, 3]


async def test_batches_of_a_filter_or_a_pipeline(app: App, orders: Orders) -> None:
    await orders.insert_many([{"_id": number, "total": 10 * number} for number in range(4)])
    found: list[int] = []

    def total(document: Document) -> int:
        return document["total"]

    assert await app.process_in_batches("orders", {"total": {"$gt": 10}}, total, found.extend) == 2
    pipeline = [{"$match": {"_id": {"$lt": 2}}}, {"$set": {"total": {"$add": ["$total", 1]}}}]
    assert await app.process_in_batches("orders", pipeline, total, found.extend) == 2
    assert sorted(found) == [1, 11, 20, 30]


async def test_an_empty_collection_is_no_batch(app: App) -> None:

    def never(_items: list[Any]) -> None:
        raise AssertionError("no batch was expected")

    assert await app.process_in_batches("orders", {}, lambda document: document, never) == 0


async def test_a_batch_that_raises_ends_the_walk(app: App, orders: Orders) -> None:
    await orders.insert_many([{"_id": number} for number in range(4)])

    def refuse(_items: list[Any]) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await app.process_in_batches("orders", {}, lambda document: document, refuse, batch_size=2)


@pytest.mark.parametrize("size", [0, "10", True])
async def test_a_batch_of_no_number_is_refused(app: App, size: Any) -> None:
    with pytest.raises(ConfigurationError, match="batch_size"):
        await app.process_in_batches(
            "orders", {}, lambda document: document, lambda _items: None, batch_size=size
        )
