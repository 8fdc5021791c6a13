"""The task records of one source collection: indexes, claims and outcomes.

Every claim is three round trips for any number of records: *look* (what is due, and when the next will be),
*update* (fenced by state and due time), *read* (what was really taken). Every settle is one per kind of outcome.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from bson import ObjectId
from bson.errors import InvalidDocument
from pymongo import ASCENDING, IndexModel, UpdateMany, UpdateOne
from pymongo.asynchronous.client_session import AsyncClientSession as Session
from pymongo.errors import OperationFailure, PyMongoError

from oplogue.model.definition import Namespace
from oplogue.model.record import ClaimedRecord
from oplogue.model.states import RUNNING, Status, Transition
from oplogue.store import outcomes
from oplogue.store.connection import Client, Collection, Document, bounded, ours
from oplogue.store.controls import CONTROLS, Control, Controls, read_controls
from oplogue.store.documents import collation_of
from oplogue.store.expressions import NOW, literal, milliseconds
from oplogue.store.faults import UNSENDABLE, is_passing, is_refusal
from oplogue.store.fields import aware, aware_or_none, document_in

_DUE = {"$expr": {"$lte": ["$nextRunAt", NOW]}}
HAS_DATE = {"nextRunAt": {"$type": "date"}}
WAITING: Mapping[str, Any] = {"status": Status.PENDING, "startedAt": {"$type": "date"}}
"""Pending again after a run: only these may have been due long before they run next."""
_CLAIMED_FIELDS = {
    "task": 1,
    "status": 1,
    "sourceDocId": 1,
    "attempts": 1,
    "lastObservedValues": 1,
    "firstErrorAt": 1,
    "oplogue.hash": 1,
    "oplogue.trace": 1,
}

RECORD_KEY = [("sourceDocId", ASCENDING), ("task", ASCENDING)]
INDEXES = (
    IndexModel(RECORD_KEY, name="oplogue_record", unique=True),
    IndexModel(
        [("status", ASCENDING), ("task", ASCENDING), ("nextRunAt", ASCENDING)],
        name="oplogue_due",
        partialFilterExpression=HAS_DATE,
    ),
    # For counts and lags alone: no record that runs once and succeeds is ever in one of these.
    IndexModel(
        [("status", ASCENDING), ("task", ASCENDING)],
        name="oplogue_failed",
        partialFilterExpression={"status": Status.FAILED},
    ),
    IndexModel(
        [("task", ASCENDING), ("dueAt", ASCENDING)],
        name="oplogue_waiting",
        partialFilterExpression=WAITING,
    ),
)
_EQUAL_INDEX_EXISTS = 85


@dataclass(frozen=True, slots=True)
class Wanted:
    """How many of a task's first due records to ask for."""

    limit: int
    since: datetime | None = None
    """Only those due from then on: spares the scan of what a flood of claims left in the index."""


@dataclass(slots=True)
class Look:
    """What a look at the records found."""

    next_at: dict[str, datetime] = field(default_factory=dict[str, datetime])
    """For each task with pending records, when its first is due."""
    now: datetime | None = None
    """The server's time; None where nothing is pending."""
    due: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    """Ids of due records of the tasks that were asked for, in the order of their due times."""
    reached: dict[str, datetime] = field(default_factory=dict[str, datetime])
    """For each task, the due time of the last of those."""
    controls: Mapping[str, Control] = field(default_factory=dict[str, Control])
    """What holds tasks back in the whole cluster."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A record whose lease was lost: its process may have died of it."""

    id: Any
    task: str
    attempts: int
    lost: int
    alone: bool


class TaskRecords:
    """The records beside one source collection."""

    def __init__(self, client: Client, source: Namespace, *, globals_: Namespace, bound: timedelta) -> None:
        self.source = source
        self._globals = globals_
        self._controls = Controls(client, globals_, bound=bound)
        self._client = client
        self._records: Collection = ours(client, source.tasks)
        # A transaction refuses concerns of a collection's own.
        self._plain: Collection = client.get_database(source.database)[source.tasks.collection]
        self._bound = bound

    async def ensure_indexes(self) -> None:
        """Build what is missing. An equal index under another name is as good."""
        for index in [*INDEXES, *await self._collated()]:
            try:
                await self._records.create_indexes([index])
            except OperationFailure as error:
                if error.code != _EQUAL_INDEX_EXISTS:
                    raise

    async def _collated(self) -> list[IndexModel]:
        """One more unique index where the source compares in a way of its own: its plans are merged by that."""
        collation = await collation_of(self._client, self.source, bound=self._bound)
        if collation is None:
            return []
        digest = hashlib.sha256(repr(sorted(collation.items())).encode()).hexdigest()[:8]
        # Another collation makes another name: a collection may be dropped and made anew.
        return [IndexModel(RECORD_KEY, name=f"oplogue_record_{digest}", unique=True, collation=collation)]

    async def look(self, tasks: Sequence[str], wanted: Mapping[str, Wanted]) -> Look:
        """The agenda of these tasks, and the first due records of those in ``wanted``, in one round trip."""
        look = Look()
        pipeline = look_pipeline(self.source.tasks, tasks, wanted)
        rows = len(tasks) + sum(want.limit for want in wanted.values()) + 2
        beside = self._globals.database == self.source.database
        if beside:
            pipeline.append(_with_controls(self._globals))
        with bounded(self._bound):
            async for row in await self._records.aggregate(pipeline, batchSize=rows):
                if "at" in row:
                    look.now = aware(row["now"])
                    look.next_at[row["_id"]] = aware(row["at"])
                elif "task" in row:
                    if _is_hashable(row["_id"]):
                        look.due[row["task"]].append(row["_id"])
                    look.reached[row["task"]] = aware(row["nextRunAt"])
                else:
                    look.now = aware(row["now"])
                    look.controls = read_controls(row)
        if not beside and look.next_at:
            look.controls = await self._controls.all()
        return look

    async def claim(
        self,
        ids: Sequence[Any],
        *,
        owner: str,
        lease: timedelta,
        suspects: bool = False,
        patience: timedelta | None = None,
    ) -> list[ClaimedRecord]:
        """Take those of the records that are still due; what comes back is owned under one new token.

        What the server refuses for one record is halved down to that one: the others are claimed.
        """
        try:
            return await self._claim_group(ids, owner, lease, suspects, patience)
        except OperationFailure as error:
            if len(ids) == 1 or not is_refusal(error):
                raise
            refusal = error
        claimed: list[ClaimedRecord] = []
        middle = len(ids) // 2
        for half in (ids[:middle], ids[middle:]):
            try:
                claimed += await self.claim(
                    half, owner=owner, lease=lease, suspects=suspects, patience=patience
                )
            except OperationFailure as error:
                refusal = error
        if not claimed:
            raise refusal
        return claimed

    async def _claim_group(
        self, ids: Sequence[Any], owner: str, lease: timedelta, suspects: bool, patience: timedelta | None
    ) -> list[ClaimedRecord]:
        token = ObjectId()
        taken = {
            "_id": {"$in": list(ids)},
            "status": {"$in": list(RUNNING)} if suspects else Status.PENDING,
            **HAS_DATE,
            **_DUE,
        }
        update = outcomes.claim_update(
            token, owner, milliseconds(lease), suspect=suspects, alone=suspects and len(ids) == 1
        )
        refused: PyMongoError | None = None
        try:
            with bounded(patience or self._bound):
                result = await self._records.update_many(taken, update)
                if not result.matched_count:
                    return []
        except PyMongoError as error:
            # What of it was done is not known: only the read below can tell, and repeating it could take more.
            refused = None if is_passing(error) else error
        with bounded(self._bound):
            owned = {"_id": {"$in": list(ids)}, "oplogue.token": token}
            documents = await self._records.find(owned, _CLAIMED_FIELDS, batch_size=len(ids) + 1).to_list()
        if refused is not None and not documents:
            raise refused
        await self._take_newer(documents, token)
        order = {id_: place for place, id_ in enumerate(ids)}
        documents.sort(key=lambda document: order[document["_id"]])
        return [_claimed(document, token) for document in documents]

    async def _take_newer(self, documents: Sequence[Document], token: Any) -> None:
        """Values that moved on between the claim's two steps were read: they are what runs, and not once more."""
        writes = [
            UpdateOne(
                {
                    "_id": document["_id"],
                    "oplogue.token": token,
                    "status": Status.PROCESSING_DIRTY,
                    "oplogue.manual": {"$ne": True},
                    "$expr": {"$eq": ["$lastObservedValues", literal(document.get("lastObservedValues"))]},
                },
                {"$set": {"status": Status.PROCESSING}},
            )
            for document in documents
            if document.get("status") == Status.PROCESSING_DIRTY
        ]
        if writes:
            with bounded(self._bound):
                await self._records.bulk_write(writes, ordered=False)

    async def suspects(self, tasks: Sequence[str], limit: int) -> list[Suspect]:
        """Records whose lease ended without an outcome, the oldest first."""
        expired = {"status": {"$in": list(RUNNING)}, "task": {"$in": list(tasks)}, **HAS_DATE, **_DUE}
        fields = {"task": 1, "attempts": 1, "oplogue.lost": 1, "oplogue.alone": 1}
        with bounded(self._bound):
            found = await self._records.find(expired, fields).sort("nextRunAt", 1).limit(limit).to_list()
        return [_suspect(document) for document in found if _is_hashable(document["_id"])]

    async def held_back(self, versions: Mapping[str, int]) -> set[str]:
        """Which of these tasks, with these handler versions, are held back in the whole cluster."""
        return await self._controls.held_back(versions)

    async def fail_suspects(self, ids: Sequence[Any], error: str, history_limit: int) -> int:
        """Dead letters: records that cost their process its life, or its lease, each time they ran."""
        expired = {"_id": {"$in": list(ids)}, "status": {"$in": list(RUNNING)}, **HAS_DATE, **_DUE}
        with bounded(self._bound):
            result = await self._records.update_many(
                expired, outcomes.dead_letter_update(error, history_limit)
            )
        return result.modified_count

    async def settle_all(self, claims: Mapping[Any, Mapping[Any, Transition]]) -> dict[Any, set[Any]]:
        """Write outcomes of several claims, by token; the ids whose lease was lost, of which nothing was written.

        May be sent again after an unknown result: what the first try settled is told from what was lost by the
        token, which stays on the record until the next claim.
        """
        writes = [
            UpdateMany(outcomes.fence(list(group), token), outcomes.settle_update(group))
            for token, transitions in claims.items()
            for group in _alike(transitions)
        ]
        try:
            with bounded(self._bound):
                result = await self._records.bulk_write(writes, ordered=False)
        except (InvalidDocument, OverflowError, UnicodeError) as error:
            # What the driver can't send is refused as by the server.
            raise OperationFailure(str(error), code=UNSENDABLE) from error
        if result.matched_count == sum(map(len, claims.values())):
            return {}
        return {token: await self._lost(token, transitions) for token, transitions in claims.items()}

    async def settle(self, token: Any, transitions: Mapping[Any, Transition]) -> set[Any]:
        """The same for one claim."""
        return (await self.settle_all({token: transitions})).get(token, set())

    async def _lost(self, token: Any, ids: Iterable[Any]) -> set[Any]:
        wanted = list(ids)
        with bounded(self._bound):
            kept = await self._records.find(
                {"_id": {"$in": wanted}, "oplogue.token": token}, {"_id": 1}
            ).to_list()
        return set(wanted) - {document["_id"] for document in kept}

    async def settle_one(
        self, token: Any, id_: Any, transition: Transition
    ) -> Literal["applied", "settled before", "lost"]:
        """Write one outcome, and tell whether it was written now, or the record had been settled before."""
        update = outcomes.settle_update({id_: transition})
        with bounded(self._bound):
            result = await self._records.update_one(outcomes.fence([id_], token), update)
        if result.matched_count:
            return "applied"
        return "lost" if await self._lost(token, [id_]) else "settled before"

    async def complete(self, token: Any, id_: Any, transition: Transition, session: Session | None) -> bool:
        """Write a completion for the handler itself, in its transaction where it has one; whether it is owned."""
        update = outcomes.settle_update({id_: transition})
        owned = outcomes.fence([id_], token)
        if session is not None and session.in_transaction:
            # The transaction's own concerns and bounds hold; an error aborts it.
            return bool((await self._plain.update_one(owned, update, session=session)).matched_count)
        with bounded(self._bound):
            if (await self._records.update_one(owned, update)).matched_count:
                return True
        return not await self._lost(token, [id_])


def look_pipeline(
    records: Namespace, tasks: Sequence[str], wanted: Mapping[str, Wanted]
) -> list[dict[str, Any]]:
    """The agenda is a distinct scan of the due index; each task's first due records are a bounded range of it.

    While all looks come back full nobody sleeps, so nobody needs the agenda: it is left out.
    """
    parts = [_first_due(task, want) for task, want in wanted.items() if want.limit > 0]
    flooded = len(parts) == len(tasks) and all(want.since is not None for want in wanted.values())
    if not flooded:
        parts.insert(0, _agenda(tasks))
    first, *others = parts
    return first + [{"$unionWith": {"coll": records.collection, "pipeline": other}} for other in others]


def _agenda(tasks: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {"$match": {"status": Status.PENDING, "task": {"$in": list(tasks)}, **HAS_DATE}},
        {"$sort": {"status": 1, "task": 1, "nextRunAt": 1}},
        {"$group": {"_id": "$task", "at": {"$first": "$nextRunAt"}}},
        {"$set": {"now": NOW}},
    ]


def _first_due(task: str, want: Wanted) -> list[dict[str, Any]]:
    return [
        {"$match": {"status": Status.PENDING, "task": task, **_due_since(want.since)}},
        {"$sort": {"nextRunAt": 1}},
        {"$limit": want.limit},
        {"$project": {"task": 1, "nextRunAt": 1}},
    ]


def _due_since(since: datetime | None) -> dict[str, Any]:
    floor = {} if since is None else {"$gte": since}
    return {"nextRunAt": {"$type": "date", **floor}, **_DUE}


def _with_controls(globals_: Namespace) -> dict[str, Any]:
    return {
        "$unionWith": {
            "coll": globals_.collection,
            "pipeline": [{"$match": {"_id": CONTROLS}}, {"$set": {"now": NOW}}],
        }
    }


def _alike(transitions: Mapping[Any, Transition]) -> list[dict[Any, Transition]]:
    """Groups that one statement can write: equal transitions, or of one kind where there are many different."""
    # Most are one and the same object: told apart by identity first, because a transition is dear to hash.
    same: dict[int, list[Any]] = defaultdict(list)
    for id_, transition in transitions.items():
        same[id(transition)].append(id_)
    kinds: dict[tuple[Any, ...], list[list[Any]]] = defaultdict(list)
    for ids in same.values():
        kinds[_kind(transitions[ids[0]])].append(ids)
    return [group for kind in kinds.values() for group in _split(kind, transitions)]


_MOST_STATEMENTS = 16


def _split(kind: list[list[Any]], transitions: Mapping[Any, Transition]) -> list[dict[Any, Transition]]:
    """Constants are cheaper than a table, so few different transitions of a kind get a statement each."""
    equal: dict[Any, dict[Any, Transition]] = defaultdict(dict)
    for ids in kind:
        transition = transitions[ids[0]]
        if transition.values is not None:
            # Their values may be large: a statement holds a few, not thousands.
            return [{id_: transitions[id_]} for ids in kind for id_ in ids]
        equal[transition].update(dict.fromkeys(ids, transition))
        if len(equal) > _MOST_STATEMENTS:
            return [{id_: transitions[id_] for ids in kind for id_ in ids}]
    return list(equal.values())


def _kind(transition: Transition) -> tuple[Any, ...]:
    return (
        transition.reason,
        transition.status,
        transition.history_limit,
        transition.error is None,
        transition.trace is None,
        transition.run_at is None,
        transition.leaves,
    )


def _claimed(document: Document, token: Any) -> ClaimedRecord:
    marks = document_in(document.get("oplogue"))
    return ClaimedRecord(
        id=document["_id"],
        task=document["task"],
        doc_id=document.get("sourceDocId"),
        attempts=document["attempts"],
        values=document_in(document.get("lastObservedValues")),
        token=token,
        first_error_at=aware_or_none(document.get("firstErrorAt")),
        planned_under=marks.get("hash"),
        trace=marks.get("trace"),
    )


def _suspect(document: Document) -> Suspect:
    marks = document_in(document.get("oplogue"))
    attempts, lost = document.get("attempts"), marks.get("lost")
    return Suspect(
        id=document["_id"],
        task=document["task"],
        attempts=attempts if isinstance(attempts, int) else 0,
        lost=lost if isinstance(lost, int) else 0,
        alone=marks.get("alone") is True,
    )


def _is_hashable(id_: Any) -> bool:
    """Record ids are ObjectIds; of those that somebody put in by hand, documents can't be worked with."""
    if type(id_) is ObjectId:
        return True
    try:
        hash(id_)
    except TypeError:
        return False
    return True
