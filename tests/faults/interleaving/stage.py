"""The stage of the model: one collection for all examples, and what may happen on it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from pymongo import WriteConcern
from pymongo.errors import PyMongoError

from interleaving.instances import BOUND, Handlers, Instance
from interleaving.strands import Call, HaltingClient, Strand
from interleaving.world import GONE, STATES, Document, Story, World
from oplogue.model.definition import Namespace, Task, define_task
from oplogue.model.retry import Fixed
from oplogue.runtime.context import Context
from oplogue.store.tasks import TaskRecords

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
TASKS = ("plain", "verified")
_MOST_ROUNDS, _MOST_TURNS = 12, 6
T = TypeVar("T")


class Stage:
    """What all examples share: a loop, a client, a collection with its records; and what happened on it."""

    def __init__(self, uri: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.client: HaltingClient = HaltingClient(uri, tz_aware=True)
        database = self.client.get_default_database()
        self.source = Namespace(database.name, "orders")
        self.globals = Namespace(database.name, "_oplogue_globals")
        fast = WriteConcern(1)
        self.documents = database.get_collection("orders", write_concern=WriteConcern("majority"))
        self.rows = database.get_collection("orders_tasks", write_concern=fast)
        self.leader = database.get_collection("_oplogue_globals", write_concern=fast)
        self.threads = ThreadPoolExecutor(1)
        self.examples = 0
        self.killed: Counter[str] = Counter()
        """Where strands were killed, and how often."""
        self.failed: Counter[str] = Counter()
        """Where statements met an error."""
        self.landed = 0
        """How many statements of the dead were done after all."""
        self.writes = self.calls = self.fenced = self.again = 0
        records = TaskRecords(self.client, self.source, globals_=self.globals, bound=BOUND)
        self.wait_for(records.ensure_indexes())

    def wait_for(self, doing: Awaitable[T]) -> T:
        """Let the loop run until this is done."""
        return self.loop.run_until_complete(asyncio.wait_for(doing, 5))

    def close(self) -> None:
        """The end of all."""
        self.wait_for(self.client.close())
        self.threads.shutdown()
        self.loop.close()


class Example:
    """One example: its documents are told from others' by the prefix of their ids."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        stage.examples += 1
        self._prefix = f"{stage.examples:06}-"
        self.world = World(
            stage.source, {id_: Story(id_) for id_ in (f"{self._prefix}{n}" for n in range(3))}
        )
        self.instances: list[Instance] = []
        self.on_its_way: list[Call] = []
        self._started = 0
        self._session = stage.client.start_session()

    @property
    def strands(self) -> list[Strand]:
        """All that can go on."""
        return [strand for one in self.instances for strand in one.strands if not strand.ended]

    async def begin(self) -> None:
        """Nobody leads, and there is no position."""
        await self._stage.leader.update_one(
            {"_id": "leader"}, {"$unset": {"position": 1}, "$set": {"expiresAt": None}}, upsert=True
        )

    async def start(self) -> None:
        """One more instance."""
        self._started += 1
        stage, handlers = self._stage, Handlers(self.world)

        def tasks() -> list[Task]:
            return [
                _task(stage.source, "plain", handlers.plain),
                _task(stage.source, "verified", handlers.verified),
            ]

        one = Instance(f"i{self._started}", stage.client, self.world, stage.globals, tasks, stage.threads)
        self.instances.append(one)
        for strand in one.strands:
            await strand.begin()
            await strand.go_on()

    async def write(self, number: int, state: str) -> None:
        """A document changes."""
        id_ = sorted(self.world.stories)[number]
        story = self.world.stories[id_]
        if state == GONE and story.state == GONE:
            return
        documents, session = self._stage.documents, self._session
        if state == GONE:
            await documents.delete_one({"_id": id_}, session=session)
        else:
            # A counter that nobody watches: no write is without an event.
            whole = {**STATES[state], "n": len(self.world.events)}
            await documents.replace_one({"_id": id_}, whole, upsert=True, session=session)
        assert session.operation_time is not None
        self.world.written(id_, state, session.operation_time)

    async def go_on(self, strand: Strand, halts: int) -> None:
        """Some halts further, or until it rests."""
        for _ in range(halts):
            await strand.go_on()
            await self._begin_new()
            if strand.rests or strand.ended:
                return

    async def _begin_new(self) -> None:
        for strand in self.strands:
            await strand.begin()

    async def fail(self, strand: Strand, error: Exception) -> None:
        """The statement that the strand is at was not sent, or its answer is unknown."""
        self._stage.failed[_site(strand)] += 1
        await strand.go_on(error)
        await self._begin_new()

    async def kill(self, instance: Instance, *, lands: bool) -> None:
        """``kill -9``; what its strands were about to send may be on its way."""
        self.instances.remove(instance)
        for strand in await instance.kill():
            if strand.has_begun and not strand.rests:
                self._stage.killed[_site(strand)] += 1
            if lands and strand.about_to_send is not None:
                self.on_its_way.append(strand.about_to_send)

    async def land(self) -> None:
        """What a killed instance had sent is done at last."""
        # What the server answers nobody hears: an error, or that a cursor has nothing.
        with contextlib.suppress(PyMongoError, StopAsyncIteration):
            await self.on_its_way.pop(0)()
            self._stage.landed += 1

    # -- time

    async def debounces_end(self) -> None:
        """What waits is due."""
        await self._age({"status": "pending"})

    async def leases_end(self) -> None:
        """What runs is anybody's."""
        await self._age({"status": {"$in": ["processing", "processing_dirty"]}})

    async def _age(self, which: Document) -> None:
        mine = {"sourceDocId": {"$in": list(self.world.stories)}, "nextRunAt": {"$type": "date"}}
        await self._stage.rows.update_many({**mine, **which}, {"$set": {"nextRunAt": LONG_AGO}})

    async def office_ends(self) -> None:
        """Who leads has not renewed in time, and may not know it."""
        await self._stage.leader.update_one({"_id": "leader"}, {"$set": {"expiresAt": LONG_AGO}})

    # -- the end

    async def settle_down(self) -> list[str]:
        """Writes have stopped and handlers succeed: everything goes on until nothing is left to do; what is wrong."""
        self.world.wishes.clear()
        if not self.instances:
            await self.start()
        rows = await self._come_to_rest()
        wrong = list(self.world.violations(TASKS, rows))
        return wrong or await self._replay(rows)

    async def _come_to_rest(self) -> list[Document]:
        await self.office_ends()
        for instance in self.instances:
            instance.some_events = None
            for strand in instance.strands:
                strand.free = True
        rows: list[Document] = []
        for _ in range(_MOST_ROUNDS):
            await self._round()
            rows = await self.records()
            if self._all_planned() and all(row["status"] == "completed" for row in rows):
                break
        return rows

    async def _replay(self, before: list[Document]) -> list[str]:
        """Another leader that is told all events once more, as after a position that went back, makes nothing run."""
        await self._end_all()
        self.world.saved.clear()
        await self.begin()
        await self.start()
        await self._plan_all()
        runs = {row["_id"]: (row["status"], row["startedAt"]) for row in before}
        after = {row["_id"]: (row["status"], row["startedAt"]) for row in await self.records()}
        return [
            f"fired again: {runs[id_]} became {state}" for id_, state in after.items() if state != runs[id_]
        ]

    async def _plan_all(self) -> None:
        for _ in range(_MOST_TURNS):
            await self._turn("leader", "position")
            if self._all_planned():
                return
            await self.office_ends()

    async def _round(self) -> None:
        """Plan what is left; then let all that waits be due, and run it."""
        for instance in self.instances:
            instance.clock.time += 1
        await self._plan_all()
        # What had begun before comes to its end first.
        await self._turn("run", "outcomes")
        await self._age({})
        await self._turn("claims", "suspects", "run", "outcomes")

    async def _turn(self, *parts: str) -> None:
        for part in parts:
            for strand in self.strands:
                if strand.part == part:
                    await strand.go_on()
                    await self._begin_new()

    def _all_planned(self) -> bool:
        saved, events = self.world.saved, self.world.events
        return not events or (bool(saved) and saved[-1][1] >= events[-1].time)

    async def records(self) -> list[Document]:
        """The example's task records."""
        return await self._stage.rows.find({"sourceDocId": {"$in": list(self.world.stories)}}).to_list()

    async def _end_all(self) -> None:
        for instance in self.instances:
            await instance.kill()
        self.instances.clear()

    async def end(self) -> None:
        """Nothing of it is left."""
        await self._end_all()
        await self._session.end_session()
        stage, world = self._stage, self.world
        stage.writes += len(world.events)
        stage.calls += len(world.calls)
        stage.fenced += world.fenced
        handled = Counter((call.task, call.id, call.total) for call in world.calls if call.handled)
        stage.again += sum(handled.values()) - len(handled)
        mine = list(self.world.stories)
        await self._stage.rows.delete_many({"sourceDocId": {"$in": mine}})
        await self._stage.documents.with_options(write_concern=WriteConcern(1)).delete_many(
            {"_id": {"$in": mine}}
        )


def _site(strand: Strand) -> str:
    """Where a strand is, whichever instance it belongs to."""
    return f"{strand.part}, {strand.place}"


def _task(source: Namespace, name: str, handler: Any) -> Task:
    task = define_task(
        handler,
        context_type=Context,
        task=name,
        collection=source.collection,
        filter={"status": "paid"},
        watch_projection=["total"],
        debounce=0,
        max_wait=None,
        retry_policy=Fixed(0, max_attempts=-1),
        cleanup_policy=None,
        execution_history_limit=2,
        evolution=None,
        timeout=None,
        concurrency=None,
        priority=0,
    )
    return replace(task, definition=task.definition.located(source.database))
