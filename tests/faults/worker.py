"""One worker process of the fault matrix: an app whose handlers write to a ledger outside the library.

``python worker.py CONFIG`` with a JSON of `harness.processes.WorkerConfig`. Its log, one JSON object per line on
standard error, has the codes of the events that happened: as a subscriber is told of them, because the library's own
log does not repeat a failure within a minute.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from pymongo import AsyncMongoClient
from pymongo.asynchronous.client_session import AsyncClientSession

from oplogue import App, Context, Evolution, Exponential
from oplogue.clock import Clock
from oplogue.events import Event

CLOCK = Clock()
EFFECTS = "effects"

Values = dict[str, Any]


class JsonLines(logging.Formatter):
    """What happened, for the test that watches."""

    def format(self, record: logging.LogRecord) -> str:
        """One object."""
        entry = {"at": CLOCK.monotonic(), "level": record.levelname, "message": record.getMessage()}
        if record.exc_info:
            entry["trace"] = self.formatException(record.exc_info)
        return json.dumps(entry)


# One for each run, which is in the ledger, or for each batch.
TOO_MANY = frozenset(
    ("task.started", "task.completed", "task.skipped", "task.deferred", "task.released", "planner.planned")
)


def tell(event: Event) -> None:
    """Note an event, each time that it happens."""
    if event.code in TOO_MANY:
        return
    entry = {"at": CLOCK.monotonic(), "code": event.code, "message": repr(event)}
    sys.stderr.write(json.dumps(entry) + "\n")


class Ledger:
    """Handler runs, appended one line and one write at a time: what a killed process wrote stays."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._runs = 0

    def begin(self) -> int:
        """The number of a new run."""
        self._runs += 1
        return self._runs

    def write(self, what: str, run: int, ctx: Context) -> None:
        """Note one step of a run."""
        entry = {
            "what": what,
            "run": run,
            "pid": os.getpid(),
            "at": CLOCK.monotonic(),
            "task": ctx.task,
            "id": repr(ctx.doc_id),
            "v": ctx.watched_values.get("v"),
            "attempt": ctx.attempt,
        }
        os.write(self._file, (json.dumps(entry, default=repr) + "\n").encode())


class Handlers:
    """What a task of the matrix does."""

    def __init__(self, config: Values, app: App, ledger: Ledger) -> None:
        self._config = config
        self._app = app
        self._ledger = ledger

    def of(self, task: Values) -> Callable[[Context], Awaitable[None]]:
        """The handler of one task."""
        hold: float = task.get("hold", 0)
        transactional: bool = task.get("transactional", False)

        async def handle(ctx: Context) -> None:
            run = self._ledger.begin()
            self._ledger.write("start", run, ctx)
            try:
                if task.get("fetch"):
                    await ctx.get_document()
                await self._misbehave(ctx)
                if transactional:
                    await self._transact(ctx, hold)
                else:
                    await CLOCK.sleep(hold)
            except asyncio.CancelledError:
                self._ledger.write("cancelled" if ctx.cancelled.is_set() else "killed", run, ctx)
                raise
            except Exception as error:
                self._ledger.write(f"raised {type(error).__name__}", run, ctx)
                raise
            self._ledger.write("end", run, ctx)
            if task.get("die_after_effect") and ctx.attempt == 1 and ctx.watched_values.get("do") == "die":
                os._exit(9)

        return handle

    async def _misbehave(self, ctx: Context) -> None:
        match ctx.watched_values.get("do"):
            case "exit":
                os._exit(7)
            case "hang":
                await asyncio.Event().wait()
            case "block":
                CLOCK.block(self._config["lease"] * 1.5)
            case "raise":
                raise ValueError("told to")
            case "swallow":
                while True:
                    try:
                        await CLOCK.sleep(3600)
                    except asyncio.CancelledError:
                        continue
            case _:
                return

    async def _transact(self, ctx: Context, hold: float) -> None:
        client = self._app.client
        effects = self._app.database[EFFECTS]
        key = {"task": ctx.task, "id": ctx.doc_id, "v": ctx.watched_values.get("v")}

        async def apply(session: AsyncClientSession) -> None:
            await effects.update_one({"_id": key}, {"$inc": {"times": 1}}, upsert=True, session=session)
            await CLOCK.sleep(hold)
            await ctx.mark_completed(session=session)

        async with client.start_session() as session:
            await session.with_transaction(apply)


def make_app(config: Values) -> App:
    """The app that the configuration describes."""
    client: AsyncMongoClient[Values] | None = None
    if config.get("own_client"):
        client = AsyncMongoClient(config["uri"], tz_aware=True)
    app = App(
        None if client is not None else config["uri"],
        client=client,
        instance_id=config["name"],
        lease=config["lease"],
        concurrency=config["concurrency"],
        shutdown_timeout=config.get("shutdown_timeout", 5),
    )
    app.on("*")(tell)
    handlers = Handlers(config, app, Ledger(config["ledger"]))
    for task in config["tasks"]:
        app.reactive_task(
            task=task["task"],
            collection=task["collection"],
            filter=task.get("filter"),
            watch_projection=task.get("watch", {"v": 1, "do": 1}),
            debounce=task.get("debounce", 0),
            max_wait=task.get("max_wait"),
            retry_policy=Exponential(
                min=task.get("retry_min", 0.05),
                max=task.get("retry_max", 1),
                max_attempts=task.get("max_attempts", -1),
            ),
            timeout=task.get("timeout"),
            evolution=Evolution(**task.get("evolution", {})),
            concurrency=task.get("concurrency"),
            execution_history_limit=20,
        )(handlers.of(task))
    return app


def tell_stacks(*_: object) -> None:
    """Where every coroutine stands, to the log: for a test that waited in vain."""
    for task in asyncio.all_tasks():
        print(f"{task.get_name()}, asked to end {task.cancelling()} times:", file=sys.stderr)  # noqa: T201
        awaited: Any = task.get_coro()
        while awaited is not None:
            frame = getattr(awaited, "cr_frame", None)
            if frame is not None:
                where = f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}"
                print(f"    {where}", file=sys.stderr)  # noqa: T201
            awaited = getattr(awaited, "cr_await", None)


def tell_coroutines(*_: object) -> None:
    """How many there are, to the log."""
    entry = {"at": CLOCK.monotonic(), "code": "coroutines", "count": len(asyncio.all_tasks())}
    sys.stderr.write(json.dumps(entry) + "\n")


def main() -> None:
    """Run until told to stop, or killed."""
    config: Values = json.loads(sys.argv[1])
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("oplogue").setLevel(config.get("level", "INFO"))
    signal.signal(signal.SIGUSR1, tell_coroutines)
    signal.signal(signal.SIGUSR2, tell_stacks)
    make_app(config).run()


if __name__ == "__main__":
    main()
