"""The facade: what a user sees. It builds everything and decides nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

from oplogue.clock import Clock
from oplogue.errors import ConfigurationError, NotStartedError
from oplogue.model.checks import text, whole
from oplogue.model.checkup import Finding
from oplogue.model.definition import Namespace, Task, TaskDefinition, define_task
from oplogue.model.deployment import Deployment
from oplogue.model.durations import DurationLike, parse_duration
from oplogue.model.health import Health, Phase, Vitals, judge_health
from oplogue.model.metrics import Reading
from oplogue.model.policies import CleanupPolicy, Evolution, Monitoring
from oplogue.model.record import Page
from oplogue.model.retry import RetryPolicy
from oplogue.runtime.bus import Bus
from oplogue.runtime.checkup import check_up
from oplogue.runtime.context import Context
from oplogue.runtime.deployment import plan_deployment
from oplogue.runtime.desk import OneOrMany, SortLike, record_filter
from oplogue.runtime.lock import Lock
from oplogue.runtime.meter import Meter
from oplogue.runtime.parts import end
from oplogue.runtime.settings import PACE_VARIABLE, Middleware, TaskFilter, settings_of
from oplogue.runtime.subscriptions import Subscriber
from oplogue.runtime.supervisor import Supervisor
from oplogue.store import Client, Database, Session
from oplogue.store.batches import Execute, Transform, process_in_batches
from oplogue.store.connection import database_name, make_client, uri_or_environment
from oplogue.store.sendable import sendable
from oplogue.store.transactions import with_transaction

SUPERVISED = "OPLOGUE_PROCESS"
"""Set by `oplogue worker` for each of its processes: its number, where there are several."""

HandlerT = TypeVar("HandlerT", bound=Callable[..., Any])
ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
SubscriberT = TypeVar("SubscriberT", bound=Subscriber)


class App:
    """Tasks, and the instance that runs them.

    >>> app = App("mongodb://localhost:27017/shop")
    >>> @app.reactive_task(collection="orders", filter={"status": "paid"})
    ... async def sync_order(ctx: Context) -> None:
    ...     order = await ctx.get_document()
    """

    def __init__(
        self,
        uri: str | None = None,
        *,
        client: Client | None = None,
        database: str | None = None,
        instance_id: str | None = None,
        concurrency: int = 10,
        task_filter: TaskFilter | None = None,
        middleware: Middleware | Sequence[Middleware] = (),
        globals_collection: str = "_oplogue_globals",
        lease: DurationLike = "60s",
        cleanup_interval: DurationLike = "24h",
        shutdown_timeout: DurationLike = "30s",
        monitoring: Monitoring | None = None,
    ) -> None:
        if client is None:
            uri = uri_or_environment(uri)
        self._uri = uri
        self._given = client
        self._database_name = database_name(uri, client, database)
        self._settings = settings_of(
            instance_id=instance_id,
            process=os.environ.get(SUPERVISED),
            pace=os.environ.get(PACE_VARIABLE),
            concurrency=concurrency,
            lease=lease,
            shutdown_timeout=shutdown_timeout,
            cleanup_interval=cleanup_interval,
            globals_collection=globals_collection,
            monitoring=monitoring,
            task_filter=task_filter,
            middleware=middleware,
        )
        # Outermost: what other middleware does is a part of the run.
        self._settings = replace(self._settings, middleware=(*_tracing(), *self._settings.middleware))
        self._clock = Clock()
        self._bus = Bus(self._clock, self._settings.instance_id)
        self._meter = Meter(self._bus)
        self._tasks: dict[str, Task] = {}
        self._client: Client | None = client
        self._supervisor: Supervisor | None = None
        self._turn = asyncio.Lock()
        self._stopping: asyncio.Task[None] | None = None

    # -- definitions

    def reactive_task(
        self,
        *,
        collection: str,
        task: str | None = None,
        filter: Mapping[str, Any] | None = None,
        watch_projection: Mapping[str, Any] | Sequence[str] | None = None,
        debounce: DurationLike = "1s",
        max_wait: DurationLike | None = None,
        retry_policy: RetryPolicy | None = None,
        cleanup_policy: CleanupPolicy | None = None,
        execution_history_limit: int = 5,
        evolution: Evolution | None = None,
        timeout: DurationLike | None = None,
        concurrency: int | None = None,
        priority: int = 0,
    ) -> Callable[[HandlerT], HandlerT]:
        """Run the decorated function once per state of each matching document. It is returned unchanged."""

        def register(function: HandlerT) -> HandlerT:
            defined = define_task(
                function,
                context_type=Context,
                task=task,
                collection=collection,
                filter=filter,
                watch_projection=watch_projection,
                debounce=debounce,
                max_wait=max_wait,
                retry_policy=retry_policy,
                cleanup_policy=cleanup_policy,
                execution_history_limit=execution_history_limit,
                evolution=evolution,
                timeout=timeout,
                concurrency=concurrency,
                priority=priority,
            )
            self._register(defined)
            return function

        return register

    def _register(self, task: Task) -> None:
        if self._supervisor is not None:
            raise ConfigurationError(
                "the app has been started", task=task.name, expected="registration before start()"
            )
        if task.name in self._tasks:
            raise ConfigurationError(
                "there is a task of this name already",
                option="task",
                value=task.name,
                expected="a unique name",
            )
        sendable(task.definition, self._client)
        self._tasks[task.name] = task

    def on(self, code: str) -> Callable[[SubscriberT], SubscriberT]:
        """Call the decorated function, sync or async, with each event of that code.

        Also of an area (``"task.*"``), or with all (``"*"``). The classes of events are in `oplogue.events`.
        """

        def subscribe(subscriber: SubscriberT) -> SubscriberT:
            self._bus.subscribe(code, subscriber)
            return subscriber

        return subscribe

    # -- life cycle

    @property
    def instance_id(self) -> str:
        """The name of this instance, unique in the cluster."""
        return self._settings.instance_id

    @property
    def client(self) -> Client:
        """The app's own client; sessions must come from it."""
        if self._client is None:
            raise NotStartedError("an app with a URI makes its client in start()")
        return self._client

    @property
    def database(self) -> Database:
        """The app's own database."""
        return self.client.get_database(self._database_name)

    async def start(self) -> None:
        """Check the definitions with the server, build indexes, and take part; returns when the instance is ready."""
        async with self._turn:
            if self._supervisor is None:
                await self._start()

    async def stop(self) -> None:
        """Stop gracefully: running handlers finish, what never started is given back, another instance leads."""
        # A task of its own: who waits for it may be cancelled, or be a handler of this app; the stop goes on.
        self._stopping = asyncio.create_task(self._stop_in_turn(), name="oplogue-stop")
        await asyncio.shield(self._stopping)

    async def _stop_in_turn(self) -> None:
        async with self._turn:
            await self._stop()

    async def _start(self) -> None:
        if self._client is None:
            assert self._uri is not None
            self._client = make_client(self._uri)
        try:
            self._supervisor = self._supervise(self._client)
            await self._supervisor.start()
        except BaseException:
            await self._stop()
            raise

    def _supervise(self, client: Client) -> Supervisor:
        located = [(task, task.definition.located(self._database_name)) for task in self._tasks.values()]
        return Supervisor(
            client=client,
            renewal_uri=self._uri,
            database=self._database_name,
            tasks=[Task(sendable(definition, client), task.handler) for task, definition in located],
            settings=self._settings,
            meter=self._meter,
            bus=self._bus,
            clock=self._clock,
        )

    async def _stop(self) -> None:
        if self._supervisor is not None:
            # Handlers that still run may use the app until the last of them has ended.
            await self._supervisor.stop()
            self._supervisor = None
        if self._given is None and self._client is not None:
            client, self._client = self._client, None
            await client.close()

    def health(self) -> Health:
        """Whether this instance is alive and can work, and why not; for probes. Any thread may ask.

        >>> App("mongodb://localhost:27017/shop").health()
        Health(live=True, ready=False, reasons=('the instance is not started',))
        """
        supervisor = self._supervisor
        vitals = Vitals(Phase.NOT_STARTED) if supervisor is None else supervisor.vitals
        return judge_health(vitals, self._settings.lease)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def run(self, *, burst: bool = False) -> None:
        """Start, and block until SIGTERM or SIGINT; a second one ends it hard.

        ``burst`` ends it by itself, once everything is planned and nothing is due.
        """
        if _in_a_loop():
            raise RuntimeError("run() starts an event loop of its own; inside one, use start() and stop()")
        asyncio.run(self._run(burst=burst))

    async def _run(self, *, burst: bool) -> None:
        told = asyncio.Event()
        loop = asyncio.get_running_loop()

        def stop() -> None:
            if told.is_set():
                os._exit(130)
            told.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        waiting = asyncio.create_task(told.wait())
        starting = asyncio.create_task(self._start_and_be_quiet() if burst else self.start())
        try:
            # Told to stop while it starts: the start is given up.
            await asyncio.wait({waiting, starting}, return_when=asyncio.FIRST_COMPLETED)
            if not told.is_set():
                await starting
                if not burst:
                    await waiting
        finally:
            await end(waiting, starting)
            await self.stop()

    async def _start_and_be_quiet(self) -> None:
        await self.start()
        await self._running.quiet()

    # -- operations

    async def get_reactive_tasks(
        self,
        task: OneOrMany = None,
        status: OneOrMany = None,
        source_doc_filter: Mapping[str, Any] | None = None,
        error_message: str | None = None,
        has_error: bool | None = None,
        ids: Sequence[Any] | None = None,
        limit: int = 50,
        skip: int = 0,
        sort: SortLike = ("next_run_at", 1),
    ) -> Page:
        """One page of task records; ``source_doc_filter`` is any query on their source documents."""
        which = record_filter(task, status, source_doc_filter, error_message, has_error, ids)
        return await self._running.desk.page(which, limit=limit, skip=skip, sort=sort)

    async def count_reactive_tasks(
        self,
        task: OneOrMany = None,
        status: OneOrMany = None,
        source_doc_filter: Mapping[str, Any] | None = None,
        error_message: str | None = None,
        has_error: bool | None = None,
        ids: Sequence[Any] | None = None,
    ) -> int:
        """How many task records there are."""
        return await self._running.desk.count(
            record_filter(task, status, source_doc_filter, error_message, has_error, ids)
        )

    async def retry_reactive_tasks(
        self,
        task: OneOrMany = None,
        status: OneOrMany = None,
        source_doc_filter: Mapping[str, Any] | None = None,
        error_message: str | None = None,
        has_error: bool | None = None,
        ids: Sequence[Any] | None = None,
    ) -> int:
        """Run these records again, at once and with a full set of attempts; how many."""
        return await self._running.desk.retry(
            record_filter(task, status, source_doc_filter, error_message, has_error, ids)
        )

    async def delete_reactive_tasks(
        self,
        task: OneOrMany = None,
        status: OneOrMany = None,
        source_doc_filter: Mapping[str, Any] | None = None,
        error_message: str | None = None,
        has_error: bool | None = None,
        ids: Sequence[Any] | None = None,
    ) -> int:
        """Delete these records; how many. A reconciliation plans documents without a record anew."""
        return await self._running.desk.delete(
            record_filter(task, status, source_doc_filter, error_message, has_error, ids)
        )

    async def reconcile(self, task: OneOrMany = None) -> None:
        """Let the leader plan every document of this task, of several or of all: missing records are made."""
        await self._running.desk.reconcile(task)

    async def pause_task(self, name: str, until: DurationLike | datetime | None = None) -> None:
        """Start no run of this task in the whole cluster, until then or until `resume_task`."""
        await self._running.desk.pause(name, until)

    async def resume_task(self, name: str) -> None:
        """Let a paused or throttled task run again."""
        await self._running.desk.resume(name)

    async def get_task_definitions(self) -> tuple[TaskDefinition, ...]:
        """The definitions in force, of all instances."""
        return await self._running.desk.tasks()

    async def check_up(self) -> tuple[Finding, ...]:
        """Whether the server, its set-up and this app's tasks are well, and how to mend what is not.

        The app need not be started, and nothing is written. It is what ``oplogue doctor`` prints.
        """
        async with self._open_client() as client:
            return await check_up(client, self._uri, self._globals, self._located(), clock=self._clock)

    async def plan_deployment(self) -> Deployment:
        """What would change if this app started now: definitions, records to plan or run again, indexes.

        The app need not be started, and nothing is written. It is what ``oplogue plan`` prints.
        """
        async with self._open_client() as client:
            return await plan_deployment(client, self._globals, self._located(), clock=self._clock)

    @asynccontextmanager
    async def _open_client(self) -> AsyncGenerator[Client]:
        """The app's client; one for the moment where the app is not started."""
        if self._client is not None:
            yield self._client
            return
        assert self._uri is not None
        async with make_client(self._uri) as client:
            yield client

    @property
    def _globals(self) -> Namespace:
        return Namespace(self._database_name, self._settings.globals_collection)

    def _located(self) -> list[TaskDefinition]:
        return [task.definition.located(self._database_name) for task in self._tasks.values()]

    async def run_cleanup(self) -> int:
        """Delete orphaned records now, as their cleanup policies say; how many."""
        return await self._running.janitor.run()

    # -- metrics

    async def get_prometheus_metrics(self) -> bytes | None:
        """Every metric in Prometheus's text format, as the scrape mode has it; None while monitoring is disabled.

        The header that goes with it is ``oplogue.metrics.CONTENT_TYPE``.
        """
        from oplogue.metrics import exposition

        readings = await self.get_metrics()
        return None if readings is None else exposition(readings)

    @property
    def monitoring(self) -> Monitoring:
        """Whether metrics are kept, and for whom this instance answers."""
        return self._settings.monitoring

    async def get_metrics(self) -> tuple[Reading, ...] | None:
        """The same as numbers, for any other system; needs no extra."""
        if not self._settings.monitoring.enabled:
            return None
        return await self._running.monitor.read()

    # -- utilities

    def lock(self, key: str, expire_in: DurationLike = "15s", max_wait: DurationLike = "10s") -> Lock:
        """One holder in the whole cluster: ``async with app.lock("account-7") as lock``."""
        return self._running.lock(
            text(key, option="key", expected="a name such as 'account-7'"),
            parse_duration(expire_in, option="expire_in", minimum=timedelta(milliseconds=100)),
            parse_duration(max_wait, option="max_wait"),
        )

    async def with_transaction(self, callback: Callable[[Session], Awaitable[ResultT]]) -> ResultT:
        """Run the callback with a session in a transaction, again where the server asks for that; its value."""
        return await with_transaction(self.client, callback)

    async def process_in_batches(
        self,
        collection: str,
        filter_or_pipeline: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        transform: Transform[ItemT],
        execute: Execute[ItemT],
        batch_size: int = 1000,
    ) -> int:
        """Transform each document into one item, a list or None, and execute the items in batches; how many."""
        whole(batch_size, option="batch_size", minimum=1)
        documents = self.database.get_collection(collection)
        return await process_in_batches(documents, filter_or_pipeline, transform, execute, batch_size)

    @property
    def _running(self) -> Supervisor:
        if self._supervisor is None:
            raise NotStartedError("start the app first: async with app, or await app.start()")
        return self._supervisor


def _tracing() -> tuple[Middleware, ...]:
    """A span around each run, where OpenTelemetry's interface is installed."""
    try:
        from oplogue.tracing import middleware
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "opentelemetry":
            raise
        return ()
    return middleware()


def _in_a_loop() -> bool:
    """Apart from who asks: what is raised while an error is handled would carry that error along."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
