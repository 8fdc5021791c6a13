"""Planning one collection's documents: the statements of `plans`, sent in one causal session per leadership."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import bson
from bson import Timestamp
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import DuplicateKeyError
from pymongo.read_concern import ReadConcern

from oplogue.model.definition import Namespace
from oplogue.model.states import RUNNING, Status
from oplogue.store import plans
from oplogue.store.connection import MAJORITY, PLAIN, Client, Collection, bounded, ours
from oplogue.store.documents import collation_of, key_of, server_time
from oplogue.store.expressions import IS_RUNNING, MARKS, NOW, ROOT, first_set, literal, merged, when
from oplogue.store.plans import PlannedTask, Stamp

_GONE = 2_000
FEW = 100
"""Up to so many documents are planned without asking first which of them are new."""
Recorded = dict[str, list[Any]]
_COULD_NOT = "could not be planned: "


@dataclass(slots=True)
class Change:
    """What happened to one document since it was last planned."""

    id: Any
    time: Timestamp
    """The first of its events in hand: the position may not pass it."""
    last: Timestamp
    deleted_at: Timestamp | None = None
    inserted: bool = False
    """Nothing but its insertion happened: it can't have left a filter."""
    refusals: int = 0

    def later(self, other: Change) -> None:
        """Take in another event of the same document."""
        self.time = min(self.time, other.time)
        self.last = max(self.last, other.last)
        # What was held back may be older than what came meanwhile.
        deletions = [time for time in (self.deleted_at, other.deleted_at) if time is not None]
        self.deleted_at = max(deletions, default=None)
        self.inserted = False
        self.refusals = max(self.refusals, other.refusals)


class Planning:
    """Statements that only the leader of a term may send."""

    def __init__(self, client: Client, term: int) -> None:
        self._client = client
        self._term = term
        # A session takes one operation at a time: the second is for statements that are sent beside another.
        self._session: AsyncClientSession = client.start_session(causal_consistency=True)
        self._beside: AsyncClientSession = client.start_session(causal_consistency=True)

    async def close(self) -> None:
        """End the sessions."""
        await self._session.end_session()
        await self._beside.end_session()

    async def stamp(self, tasks: Iterable[PlannedTask], event: Timestamp, bound: timedelta) -> Stamp:
        """What marks a batch: the term, its newest event, and the server's time where a filter asks for it."""
        needs_now = any(task.definition.filter.needs_now for task in tasks)
        now: datetime | None = await server_time(self._client, bound=bound) if needs_now else None
        # Reads after this see at least what the event announced.
        self._session.advance_operation_time(event)
        self._beside.advance_operation_time(event)
        return Stamp(self._term, event, now)

    async def compares_to_the_letter(self, source: Namespace, bound: timedelta) -> bool:
        """Whether the collection has no collation of its own, by which values that differ may be found equal."""
        return await collation_of(self._client, source, bound=bound) is None

    async def plan(
        self,
        tasks: Sequence[PlannedTask],
        ids: Sequence[Any],
        stamp: Stamp,
        bound: timedelta,
        *,
        all_new: bool = False,
        beside: bool = False,
    ) -> None:
        """Plan these documents for all tasks of their collection; ``beside`` another such statement."""
        selection = {"_id": {"$in": list(ids)}}
        await self.plan_where(tasks, selection, stamp, bound, all_new=all_new, beside=beside)

    async def plan_where(
        self,
        tasks: Sequence[PlannedTask],
        selection: Mapping[str, Any],
        stamp: Stamp,
        bound: timedelta,
        *,
        all_new: bool = False,
        beside: bool = False,
    ) -> bool:
        """Plan a selection of documents; whether all were as new as they were expected to be."""
        source = tasks[0].definition.source
        if all_new:
            try:
                pipeline = plans.plan_pipeline(tasks, selection, source.tasks, stamp, all_new=True)
                await self._aggregate(source, pipeline, bound)
            except DuplicateKeyError:
                pass  # Some have a record: decided below, where those inserted just now are found unchanged.
            else:
                return True
        pipeline = plans.plan_pipeline(tasks, selection, source.tasks, stamp)
        await self._aggregate(source, pipeline, bound, beside=beside)
        return False

    async def mark_deleted(
        self,
        source: Namespace,
        names: Sequence[str],
        deleted: Sequence[Change],
        stamp: Stamp,
        bound: timedelta,
    ) -> None:
        """Mark the records of deleted documents: what is inserted again under such an id is new."""
        times = [(change.id, change.deleted_at) for change in deleted]
        theirs = {"sourceDocId": {"$in": [id_ for id_, _ in times]}, "task": {"$in": list(names)}}
        with bounded(bound):
            await ours(self._client, source.tasks).update_many(
                theirs, plans.deletion_update(times, stamp), session=self._session
            )

    async def mark_gone(
        self, source: Namespace, names: Sequence[str], time: Timestamp, stamp: Stamp, bound: timedelta
    ) -> None:
        """Mark the records of a collection that was dropped or renamed, some thousand at a time."""
        records = ours(self._client, source.tasks)
        update = plans.deletion_update([(None, time)], stamp)
        theirs: dict[str, Any] = {"task": {"$in": list(names)}}
        while True:
            with bounded(bound):
                page = await records.find(theirs, {"_id": 1}).sort("_id", 1).limit(_GONE).to_list()
                if not page:
                    return
                ids = [row["_id"] for row in page]
                await records.update_many({"_id": {"$in": ids}}, update, session=self._session)
            theirs["_id"] = {"$gt": ids[-1]}

    async def recorded(
        self, tasks: Sequence[PlannedTask], ids: Sequence[Any], stamp: Stamp, bound: timedelta
    ) -> Recorded:
        """Which of these documents have a record, by task; of a few, only those that this batch did not write."""
        source = tasks[0].definition.source
        names = [task.definition.task for task in tasks]
        known: dict[str, Any] = {"sourceDocId": {"$in": list(ids)}, "task": {"$in": names}}
        if len(ids) <= FEW:
            # What this batch's plan has just written did match. Of many the covered query is cheaper.
            known["oplogue.event"] = {"$ne": stamp.event}
        found: Recorded = {}
        with bounded(bound):
            fields = {"_id": 0, "sourceDocId": 1, "task": 1}
            async for row in self._records(source).find(
                known, fields, session=self._session, batch_size=len(ids) * len(names) + 1
            ):
                found.setdefault(row["task"], []).append(row["sourceDocId"])
        return found

    async def mark_left(
        self, tasks: Sequence[PlannedTask], recorded: Recorded, stamp: Stamp, bound: timedelta
    ) -> None:
        """Mark those of the records whose documents are outside their filter now."""
        source = tasks[0].definition.source
        candidates = [
            (task.definition, recorded[task.definition.task])
            for task in tasks
            if task.definition.task in recorded and not task.definition.filter.matches_all
        ]
        if candidates:
            await self._aggregate(source, plans.leave_pipeline(candidates, source.tasks, stamp), bound)

    async def running_among(
        self, source: Namespace, names: Sequence[str], ids: Sequence[Any], bound: timedelta
    ) -> set[Any]:
        """Keys of those documents of which a record is running: a handler's open transaction may hold it."""
        theirs = {
            "sourceDocId": {"$in": list(ids)},
            "task": {"$in": list(names)},
            "status": {"$in": list(RUNNING)},
        }
        with bounded(bound):
            rows = await self._records(source).find(theirs, {"sourceDocId": 1}).to_list()
        return {key_of(row["sourceDocId"]) for row in rows}

    async def park(self, task: PlannedTask, id_: Any, error: str, stamp: Stamp, bound: timedelta) -> None:
        """Show a document that can't be planned as a failed record of its task."""
        source: Namespace = task.definition.source
        marks = {"parked": True, **stamp.marks()}
        parked = {
            "status": literal(Status.FAILED),
            "nextRunAt": None,
            "attempts": first_set("$attempts", 0),
            "lastError": literal(_COULD_NOT + error),
            "lastFinalizedAt": NOW,
            "createdAt": first_set("$createdAt", NOW),
            "updatedAt": NOW,
            "oplogue": merged(MARKS, marks),
        }
        # A run that is under way is left alone.
        update = [{"$replaceWith": when(IS_RUNNING, ROOT, merged(ROOT, parked))}]
        with bounded(bound):
            await ours(self._client, source.tasks).update_one(
                {"sourceDocId": id_, "task": task.definition.task}, update, upsert=True
            )

    def _records(self, source: Namespace) -> Collection:
        """The task records of a collection, whose ids look as those of its events."""
        return ours(self._client, source.tasks).with_options(codec_options=PLAIN)

    async def _aggregate(
        self, source: Namespace, pipeline: plans.Pipeline, bound: timedelta, *, beside: bool = False
    ) -> None:
        documents = self._client.get_database(source.database).get_collection(
            source.collection,
            codec_options=bson.DEFAULT_CODEC_OPTIONS,
            # Not majority: such a read waits for the journal's next flush. The record's write follows the
            # document's in one oplog, so its acknowledgement by a majority covers what was read.
            read_concern=ReadConcern("local"),
            write_concern=MAJORITY,
        )
        with bounded(bound):
            session = self._beside if beside else self._session
            cursor = await documents.aggregate(pipeline, session=session, allowDiskUse=True)
            await cursor.to_list()
