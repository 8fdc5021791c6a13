"""Named locks for users' shared resources: one document each, a lease on the server's clock, a token as fence."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from bson import ObjectId
from pymongo.errors import DuplicateKeyError

from oplogue.model.definition import Namespace
from oplogue.store.connection import Client, Collection, bounded, ours
from oplogue.store.expressions import NOW, after, literal, milliseconds

_PREFIX = "lock:"


class Locks:
    """The locks in one globals collection."""

    def __init__(self, client: Client, globals_: Namespace, *, bound: timedelta) -> None:
        self._globals: Collection = ours(client, globals_)
        self._bound = bound

    async def acquire(self, key: str, owner: str, expire_in: timedelta) -> str | None:
        """Take the lock if it is free or expired; its new token, or None."""
        token = str(ObjectId())
        takes = [{"$set": {"by": literal(owner), "token": token, "expiresAt": _end(expire_in)}}]
        free: dict[str, Any] = {"_id": _PREFIX + key, "$expr": {"$lte": ["$expiresAt", NOW]}}
        with bounded(self._bound):
            if (await self._globals.update_one(free, takes)).matched_count:
                return token
            try:
                # A filter on the server's time can't be part of an upsert; an insert can't take a held lock.
                made = await self._globals.update_one(
                    {"_id": _PREFIX + key, "token": token}, takes, upsert=True
                )
            except DuplicateKeyError:
                return None
        return token if made.upserted_id is not None else None

    async def extend(self, key: str, token: str, expire_in: timedelta) -> bool:
        """Keep the lock for longer; whether it was still held."""
        with bounded(self._bound):
            result = await self._globals.update_one(
                {"_id": _PREFIX + key, "token": token}, [{"$set": {"expiresAt": _end(expire_in)}}]
            )
        return bool(result.matched_count)

    async def release(self, key: str, token: str) -> bool:
        """Give the lock back; whether it was still held."""
        with bounded(self._bound):
            result = await self._globals.delete_one({"_id": _PREFIX + key, "token": token})
        return bool(result.deleted_count)


def _end(expire_in: timedelta) -> Any:
    return after(NOW, milliseconds(expire_in))
