"""Transactions of users, with hooks that run once they are committed."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from pymongo.asynchronous.client_session import AsyncClientSession as Session

from oplogue.errors import ConfigurationError
from oplogue.store.connection import Client

Result = TypeVar("Result")
Hook = Callable[[], Awaitable[Any] | Any]

_HOOKS: WeakKeyDictionary[Session, list[Hook]] = WeakKeyDictionary()


def on_commit(session: Session, callback: Hook) -> None:
    """Call the function, sync or async, once the transaction of this session is committed; never if it aborts.

    Each hook is called whatever the others raise; the first error is raised when all have been called.

    The session is the one that ``app.with_transaction`` handed to its callback. A callback that is called again,
    because the transaction had to be, registers its hooks anew.
    """
    hooks = _HOOKS.get(session)
    if hooks is None:
        raise ConfigurationError(
            "not a session of app.with_transaction",
            option="session",
            value=session,
            expected="the session that app.with_transaction() hands to its callback",
        )
    hooks.append(callback)


async def with_transaction(client: Client, callback: Callable[[Session], Awaitable[Result]]) -> Result:
    """Run the callback in a transaction, again where the server asks for that; its value."""

    async def attempt(session: Session) -> Result:
        _HOOKS[session] = []
        return await callback(session)

    async with client.start_session() as session:
        result = await session.with_transaction(attempt)
        failed = [error for hook in _HOOKS.pop(session, []) if (error := await _called(hook)) is not None]
    if failed:
        raise failed[0]
    return result


async def _called(hook: Hook) -> Exception | None:
    """What the hook raised: the commit stands, and the next hooks are called all the same."""
    try:
        answer = hook()
        if inspect.isawaitable(answer):
            await answer
    except Exception as error:  # noqa: BLE001 - raised when all hooks have been called
        return error
    return None
