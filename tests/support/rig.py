"""One collection with tasks on it, worked by hand with the store's own verbs: what the engine does, step by step.

Time is moved by editing records (`age`, `make_due`), never by waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict, Unpack

from bson import Timestamp
from pymongo import AsyncMongoClient
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase

from oplogue.model.definition import Namespace, Task, define_task
from oplogue.model.durations import DurationLike
from oplogue.model.policies import Evolution
from oplogue.model.record import ClaimedRecord
from oplogue.model.retry import RetryPolicy
from oplogue.model.states import Transition
from oplogue.runtime.context import Context
from oplogue.store.definitions import planned
from oplogue.store.documents import SourceDocuments, server_time
from oplogue.store.planning import Change, Planning
from oplogue.store.plans import PlannedTask, Stamp
from oplogue.store.stream import operation_time
from oplogue.store.tasks import TaskRecords

Document = dict[str, Any]

BOUND = timedelta(seconds=20)
LEASE = timedelta(seconds=60)
SECOND = timedelta(seconds=1)
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
LATER = datetime(2100, 1, 1, tzinfo=UTC)
PAID: Document = {"status": "paid"}


class TaskOptions(TypedDict, total=False):
    """What a test may say about a task; the rest is as simple as it gets."""

    filter: Mapping[str, Any] | None
    watch: Mapping[str, Any] | Sequence[str] | None
    debounce: DurationLike
    max_wait: DurationLike | None
    retry_policy: RetryPolicy | None
    collection: str
    evolution: Evolution | None


class Rig:
    """A source collection, its task records, and a leader of any term to plan them."""

    def __init__(self, client: AsyncMongoClient[Document], db: AsyncDatabase[Document]) -> None:
        self.client = client
        self.db = db
        self.source = Namespace(db.name, "orders")
        self.documents: AsyncCollection[Document] = db["orders"]
        self.rows: AsyncCollection[Document] = db["orders_tasks"]
        self.globals = Namespace(db.name, "_oplogue_globals")
        self.records = TaskRecords(client, self.source, globals_=self.globals, bound=BOUND)
        self.sources = SourceDocuments(client, self.source, bound=BOUND)
        self._leaders: dict[int, Planning] = {}

    async def close(self) -> None:
        """End the leaders' sessions, and drop what was made: a database without collections drops 25 times faster."""
        await self.end_sessions()
        for name in await self.db.list_collection_names():
            await self.db.drop_collection(name)

    async def end_sessions(self) -> None:
        """The leaders leave."""
        for leader in self._leaders.values():
            await leader.close()

    def task(self, name: str = "sync", **options: Unpack[TaskOptions]) -> PlannedTask:
        """A task on this collection; by default it watches the total of paid orders."""

        async def handler(ctx: Context) -> None: ...

        return planned(self.define(handler, name, **options).definition)

    def define(self, handler: Callable[..., Any], name: str = "sync", **options: Unpack[TaskOptions]) -> Task:
        """The same task, with a handler to run."""
        task = define_task(
            handler,
            context_type=Context,
            task=name,
            collection=options.get("collection", self.source.collection),
            filter=options.get("filter", PAID),
            watch_projection=options.get("watch", ["total"]),
            debounce=options.get("debounce", "1s"),
            max_wait=options.get("max_wait"),
            retry_policy=options.get("retry_policy"),
            cleanup_policy=None,
            execution_history_limit=5,
            evolution=options.get("evolution"),
            timeout=None,
            concurrency=None,
            priority=0,
        )
        return replace(task, definition=task.definition.located(self.db.name))

    # -- time

    async def now(self) -> datetime:
        """The server's time."""
        return await server_time(self.client, bound=BOUND)

    async def event(self) -> Timestamp:
        """The cluster time of now: that of the newest event."""
        return await operation_time(self.client, bound=BOUND)

    # -- planning

    def leader(self, term: int = 1) -> Planning:
        """Who plans in that term."""
        if term not in self._leaders:
            self._leaders[term] = Planning(self.client, term)
        return self._leaders[term]

    async def plan(
        self,
        *tasks: PlannedTask,
        ids: Sequence[Any] | None = None,
        term: int = 1,
        event: Timestamp | None = None,
    ) -> None:
        """Plan changed documents, as the planner does: those that match, then the records of those that don't."""
        leader = self.leader(term)
        stamp = await self.stamp(*tasks, term=term, event=event)
        if ids is None:
            ids = [row["_id"] for row in await self.documents.find({}, {"_id": 1}).to_list()]
        await leader.plan(tasks, ids, stamp, BOUND)
        recorded = await leader.recorded(tasks, ids, stamp, BOUND)
        await leader.mark_left(tasks, recorded, stamp, BOUND)

    async def stamp(self, *tasks: PlannedTask, term: int = 1, event: Timestamp | None = None) -> Stamp:
        """What marks a plan that is made now."""
        return await self.leader(term).stamp(tasks, event or await self.event(), BOUND)

    async def delete(self, *ids: Any) -> list[Change]:
        """Delete documents; what the stream says of that."""
        for id_ in ids:
            await self.documents.delete_one({"_id": id_})
        at = await self.event()
        return [Change(id_, at, at, at) for id_ in ids]

    async def plan_deleted(self, task: PlannedTask, changes: Sequence[Change], *, term: int = 1) -> None:
        """Plan delete events, as the planner does."""
        stamp = await self.stamp(task, term=term, event=max(change.last for change in changes))
        names = [task.definition.task]
        await self.leader(term).mark_deleted(self.source, names, changes, stamp, BOUND)
        await self.plan(task, ids=[change.id for change in changes], term=term, event=stamp.event)

    # -- records

    async def all_rows(self) -> list[Document]:
        """Every record, as it is stored."""
        return await self.rows.find().sort("_id", 1).to_list()

    async def row(self, id_: Any = 1, task: str = "sync") -> Document:
        """The record of a document, as it is stored."""
        row = await self.rows.find_one({"sourceDocId": id_, "task": task})
        assert row is not None, f"no record of {task} for {id_!r}"
        return row

    async def edit(self, id_: Any = 1, /, **fields: Any) -> Document:
        """Edit a record by hand; double underscores stand for dots. As it was stored after that."""
        changes = {name.replace("__", "."): value for name, value in fields.items()}
        await self.rows.update_one({"sourceDocId": id_}, {"$set": changes})
        row = await self.rows.find_one({"sourceDocId": id_})
        assert row is not None
        return row

    async def age(self, by: timedelta, *fields: str) -> None:
        """Move dates of all records into the past."""
        ms = by // timedelta(milliseconds=1)
        aged = {field: {"$subtract": [f"${field}", ms]} for field in fields}
        await self.rows.update_many({}, [{"$set": aged}])

    async def claim(self, *ids: Any, suspects: bool = False, owner: str = "me") -> list[ClaimedRecord]:
        """Claim the records of these documents, due or not."""
        chosen = {"sourceDocId": {"$in": list(ids)}} if ids else {}
        await self.rows.update_many(
            {**chosen, "nextRunAt": {"$type": "date"}}, {"$set": {"nextRunAt": LONG_AGO}}
        )
        found = await self.rows.find(chosen, {"_id": 1}).sort("_id", 1).to_list()
        records = [row["_id"] for row in found]
        return await self.records.claim(records, owner=owner, lease=LEASE, suspects=suspects)

    async def claim_one(self, id_: Any = 1, *, suspects: bool = False, owner: str = "me") -> ClaimedRecord:
        """Claim the one record of a document."""
        (record,) = await self.claim(id_, suspects=suspects, owner=owner)
        return record

    async def settle(self, record: ClaimedRecord, transition: Transition) -> bool:
        """End a run; whether its record was still owned."""
        return not await self.records.settle(record.token, {record.id: transition})

    async def run(self, id_: Any, transition: Transition) -> Document:
        """Claim and settle; the record after that."""
        record = await self.claim_one(id_)
        assert await self.settle(record, transition)
        return await self.row(id_, record.task)

    # -- what was written

    async def written_since(self, event: Timestamp) -> list[Document]:
        """The oplog's entries about the task records after that time."""
        name = f"{self.db.name}.{self.rows.name}"
        newer: Document = {"ts": {"$gt": event}, "$or": [{"ns": name}, {"o.applyOps.ns": name}]}
        return await self.client.local["oplog.rs"].find(newer).to_list()


def is_about(
    moment: datetime | None, before: datetime, after: datetime, *, plus: timedelta = timedelta()
) -> bool:
    """Whether a stored date is that of a statement sent between two looks at the server's clock, and so much more."""
    return moment is not None and before + plus <= moment <= after + plus
