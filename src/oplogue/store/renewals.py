"""Renewing leases of many records at once, from a thread of their own or from the event loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from pymongo import MongoClient, UpdateMany

from oplogue.model.definition import Namespace
from oplogue.store import outcomes
from oplogue.store.connection import MAJORITY, Client, Document, bounded, ours
from oplogue.store.documents import key_of
from oplogue.store.expressions import milliseconds

Owned = Mapping[Any, Sequence[Any]]
"""Ids of records by the token of their claim."""
Lost = list[tuple[Any, Any]]
"""(token, id) of records that somebody else owns by now."""


def renew_blocking(
    client: MongoClient[Document], source: Namespace, owned: Owned, lease: timedelta, bound: timedelta
) -> Lost:
    """Another lease for these records of one collection; those that are lost."""
    records = client.get_database(source.database).get_collection(
        source.tasks.collection, write_concern=MAJORITY
    )
    with bounded(bound):
        result = records.bulk_write(_writes(owned, lease), ordered=False)
        if result.matched_count == sum(map(len, owned.values())):
            return []
        return _missing(owned, list(records.find(_held(owned), {"oplogue.token": 1})))


async def renew(client: Client, source: Namespace, owned: Owned, lease: timedelta, bound: timedelta) -> Lost:
    """The same from the event loop, for an app that was given a client and no URI."""
    records = ours(client, source.tasks)
    with bounded(bound):
        result = await records.bulk_write(_writes(owned, lease), ordered=False)
        if result.matched_count == sum(map(len, owned.values())):
            return []
        return _missing(owned, await records.find(_held(owned), {"oplogue.token": 1}).to_list())


def _writes(owned: Owned, lease: timedelta) -> list[UpdateMany]:
    update = outcomes.renewal(milliseconds(lease))
    return [UpdateMany(outcomes.fence(list(ids), token), update) for token, ids in owned.items()]


def _held(owned: Owned) -> dict[str, Any]:
    return {"$or": [{"_id": {"$in": list(ids)}, "oplogue.token": token} for token, ids in owned.items()]}


def _missing(owned: Owned, held: Sequence[Mapping[str, Any]]) -> Lost:
    # A record that was settled meanwhile still has its token: only another claim's token means lost.
    kept = {(document["oplogue"]["token"], key_of(document["_id"])) for document in held}
    return [(token, id_) for token, ids in owned.items() for id_ in ids if (token, key_of(id_)) not in kept]
