"""A lock as a user holds it: extended in the background while the block runs, given back at its end."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from types import TracebackType
from typing import Self

from oplogue.clock import Clock
from oplogue.errors import LockNotAcquiredError, NotStartedError
from oplogue.runtime.parts import check_cancelled, end
from oplogue.store.faults import StoreError
from oplogue.store.locks import Locks

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5


class Lock:
    """``async with app.lock("account-7") as lock``: one holder in the whole cluster.

    The lock is extended while the block runs. Should its holder be cut off for longer than ``expire_in``, another
    may take it: ``lock.lost`` is set then, and ``lock.token`` lets a resource refuse the older holder.
    """

    def __init__(
        self, *, locks: Locks, key: str, owner: str, expire_in: timedelta, max_wait: timedelta, clock: Clock
    ) -> None:
        self._locks = locks
        self._key = key
        self._owner = owner
        self._expire_in = expire_in
        self._max_wait = max_wait
        self._clock = clock
        self._token: str | None = None
        self._extending: asyncio.Task[None] | None = None
        self.lost: asyncio.Event = asyncio.Event()
        """Set when the lock could not be kept."""

    @property
    def token(self) -> str:
        """Of this holding of the lock alone."""
        if self._token is None:
            raise NotStartedError(f"lock {self._key!r} is not held")
        return self._token

    async def __aenter__(self) -> Self:
        started, pause = self._clock.monotonic(), _FIRST_PAUSE
        while True:
            self._token = await self._locks.acquire(self._key, self._owner, self._expire_in)
            if self._token is not None:
                self._extending = asyncio.create_task(self._extend(self._token), name="oplogue-lock")
                return self
            left = self._max_wait.total_seconds() - (self._clock.monotonic() - started)
            if left <= 0:
                raise LockNotAcquiredError(self._key, self._max_wait.total_seconds())
            await self._clock.sleep(min(left, pause * (0.5 + self._clock.random())))
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        token, self._token = self._token, None
        if self._extending is not None:
            await end(self._extending)
        if token is not None and not self.lost.is_set():
            await self._locks.release(self._key, token)

    async def _extend(self, token: str) -> None:
        trusted_until = self._clock.monotonic() + self._expire_in.total_seconds()
        while True:
            await self._clock.sleep(self._expire_in.total_seconds() / 3)
            asked_at = self._clock.monotonic()
            try:
                kept = await self._locks.extend(self._key, token, self._expire_in)
            except StoreError:
                check_cancelled()
                # Tried again at the next beat; the lock is given up when its time is over.
                kept = asked_at < trusted_until
            else:
                trusted_until = asked_at + self._expire_in.total_seconds()
            if not kept:
                self.lost.set()
                return
