"""The leader's document: a lease with a term, and the stream's position.

One document in the globals collection. Whoever changes it matches ``{_id, term, by}``: when nothing matches, a
newer leader exists and the writer must step down. The term is ``max(previous + 1, the server's milliseconds)``,
so that losing the collection cannot lower it.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from bson import Timestamp
from pymongo import MongoClient, ReturnDocument
from pymongo.errors import DuplicateKeyError

from oplogue.errors import LeadershipLostError
from oplogue.model.definition import Namespace
from oplogue.store.connection import MAJORITY, Client, Collection, Document, bounded, ours
from oplogue.store.expressions import NOW, after, literal, milliseconds
from oplogue.store.fields import aware_or_none, document_in

LEADER = "leader"

# What somebody edited into nonsense must not end elections for ever: no date is an expired lease, no number term 0.
_ENDS_AT = {"$cond": [{"$eq": [{"$type": "$expiresAt"}, "date"]}, "$expiresAt", NOW]}
_EXPIRED = {"$lte": [_ENDS_AT, NOW]}
_TERM = {
    "$cond": [
        {"$and": [{"$isNumber": "$term"}, {"$gte": ["$term", 0]}, {"$lt": ["$term", 2**52]}]},
        {"$toLong": "$term"},
        0,
    ]
}


@dataclass(frozen=True, slots=True)
class Term:
    """One leadership: what every write that only a leader may do carries."""

    number: int
    owner: str

    def match(self) -> dict[str, Any]:
        """The leader's document, as long as this term holds."""
        return {"_id": LEADER, "term": self.number, "by": self.owner}


@dataclass(frozen=True, slots=True)
class Vacancy:
    """Somebody else leads, by the server's clock for so long."""

    by: str | None
    ends_in: timedelta


@dataclass(frozen=True, slots=True)
class Incumbent:
    """Who leads."""

    id: str
    term: int
    since: datetime | None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far planning has come, for those who don't lead."""

    led: bool
    """Whether an instance leads."""
    behind: timedelta | None = None
    """How far behind the database the saved position was; None before the first was saved."""
    silent: timedelta = timedelta()
    """How long ago that was."""


class Leadership:
    """Acquiring, renewing and resigning, for one globals collection."""

    def __init__(self, client: Client, globals_: Namespace, *, bound: timedelta) -> None:
        self._globals: Collection = ours(client, globals_)
        self._bound = bound

    async def acquire(self, owner: str, lease: timedelta) -> Term | Vacancy:
        """Become leader if nobody is. A new term begins each time, also for the same owner."""
        number = {"$max": [{"$add": [_TERM, 1]}, {"$toLong": NOW}]}
        takes_over = {
            "by": literal(owner),
            "term": number,
            "expiresAt": after(NOW, milliseconds(lease)),
            "since": NOW,
        }
        with bounded(self._bound):
            document = await self._globals.find_one_and_update(
                {"_id": LEADER, "$expr": _EXPIRED},
                [{"$set": takes_over}],
                return_document=ReturnDocument.AFTER,
                projection={"term": 1},
            )
        if document is not None:
            return Term(int(document["term"]), owner)
        vacancy = await self._vacancy()
        return vacancy if vacancy.by is not None else await self.acquire(owner, lease)

    async def _vacancy(self) -> Vacancy:
        rest = {"$subtract": [_ENDS_AT, NOW]}
        with bounded(self._bound):
            document = await self._globals.find_one({"_id": LEADER}, {"by": 1, "rest": rest})
        if document is None:
            await self._found()
            return Vacancy(None, timedelta())
        return Vacancy(document.get("by"), timedelta(milliseconds=int(document.get("rest", 0))))

    async def _found(self) -> None:
        """The first election of all: a filter on the server's time can't be part of an upsert."""
        with contextlib.suppress(DuplicateKeyError), bounded(self._bound):
            await self._globals.insert_one({"_id": LEADER, "term": 0})

    async def resign(self, term: Term) -> None:
        """Let another instance take over at once."""
        with bounded(self._bound):
            await self._globals.update_one(term.match(), [{"$set": {"expiresAt": NOW}}])

    async def save(self, term: Term, position: Document, behind: timedelta = timedelta()) -> None:
        """Save the stream's position, and how far behind the database it is, in this term only."""
        saved = {"position": position, "behindMs": milliseconds(behind)}
        with bounded(self._bound):
            result = await self._globals.update_one(
                term.match(), {"$set": saved, "$currentDate": {"savedAt": True}}
            )
        if not result.matched_count:
            raise LeadershipLostError(f"term {term.number} is over")

    async def saved(self) -> Document | None:
        """The position that the last leader left."""
        with bounded(self._bound):
            document = await self._globals.find_one({"_id": LEADER}, {"position": 1})
        return document_in((document or {}).get("position")) or None

    async def saved_time(self) -> Timestamp | None:
        """Every change before it is planned, as the last leader has noted."""
        time = (await self.saved() or {}).get("time")
        return time if isinstance(time, Timestamp) else None

    async def leader(self) -> Incumbent | None:
        """Who leads; None where nobody does."""
        with bounded(self._bound):
            document = await self._globals.find_one({"_id": LEADER, "$expr": {"$not": [_EXPIRED]}})
        if document is None:
            return None
        term = document.get("term")
        return Incumbent(
            str(document.get("by")),
            int(term) if isinstance(term, (int, float)) else 0,
            aware_or_none(document.get("since")),
        )

    async def progress(self) -> Progress:
        """Whether anybody leads, and how far planning has come, as the database knows it."""
        silent = {"$subtract": [NOW, "$savedAt"]}
        fields = {"behindMs": 1, "silent": silent, "leads": {"$not": [_EXPIRED]}}
        with bounded(self._bound):
            document = await self._globals.find_one({"_id": LEADER, "savedAt": {"$type": "date"}}, fields)
        if document is None:
            return Progress(await self.leader() is not None)
        return Progress(document["leads"], _span(document.get("behindMs")), _span(document["silent"]))


def _span(milliseconds: Any) -> timedelta:
    return timedelta(milliseconds=milliseconds if isinstance(milliseconds, int) else 0)


def _renewal(lease: timedelta) -> list[dict[str, Any]]:
    return [{"$set": {"expiresAt": after(NOW, milliseconds(lease))}}]


async def renew(client: Client, globals_: Namespace, term: Term, lease: timedelta, bound: timedelta) -> bool:
    """Stay in office for another lease; False when a newer term exists."""
    with bounded(bound):
        result = await ours(client, globals_).update_one(term.match(), _renewal(lease))
    return bool(result.matched_count)


def renew_blocking(
    client: MongoClient[Document], globals_: Namespace, term: Term, lease: timedelta, bound: timedelta
) -> bool:
    """The same, from the thread that renews leases."""
    collection = client.get_database(globals_.database).get_collection(
        globals_.collection, write_concern=MAJORITY
    )
    with bounded(bound):
        return bool(collection.update_one(term.match(), _renewal(lease)).matched_count)
