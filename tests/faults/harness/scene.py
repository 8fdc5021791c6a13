"""A row's stage: a fresh database, workers, writers and the oracle, all ended when the row ends."""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bson import Timestamp
from pymongo import MongoClient
from pymongo.database import Database

from harness.failpoints import FailPoint
from harness.oracle import Oracle, Run, Verdict
from harness.processes import Worker, WorkerConfig
from harness.report import Report
from harness.waiting import CLOCK, until
from harness.writer import Writer
from oplogue.embedded import EmbeddedServer

SOURCE = "items"
TASK = "mark"
EFFECTS = "effects"
LEASE = 2.0
GLOBALS = "_oplogue_globals"


def task(name: str = TASK, *, collection: str = SOURCE, **more: Any) -> dict[str, Any]:
    """A task of a worker."""
    return {"task": name, "collection": collection, **more}


class Scene:
    """Everything of one row."""

    def __init__(
        self, server: EmbeddedServer, folder: Path, report: Report, *, uri: str | None = None
    ) -> None:
        self.server = server
        self.folder = folder
        self.report = report
        self.random = random.Random(report.seed)
        self.database_name = f"row_{report.row}_{uuid.uuid4().hex[:8]}"
        self.uri = server.uri_for(self.database_name)
        self.client: MongoClient[dict[str, Any]] = MongoClient(
            self.uri,
            tz_aware=True,
            datetime_conversion="DATETIME_AUTO",
            heartbeatFrequencyMS=500,
            serverSelectionTimeoutMS=10_000,
        )
        self.database: Database[dict[str, Any]] = self.client[self.database_name]
        self.oracle = Oracle(folder, self.database)
        self.fail_point = FailPoint(self.client)
        self.workers: list[Worker] = []
        self.writers: list[Writer] = []
        self._number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all actors; before the server ends, which clients say goodbye to."""
        for writer in self.writers:
            writer.close()
        for worker in self.workers:
            worker.kill()
        self.client.close()

    # -- actors

    def worker(
        self,
        *tasks: Mapping[str, Any],
        uri: str | None = None,
        lease: float = LEASE,
        concurrency: int = 10,
        wait: bool = True,
        environment: Mapping[str, str] | None = None,
        **more: Any,
    ) -> Worker:
        """Start a worker process, and wait until its app has started."""
        self._number += 1
        config = WorkerConfig(
            uri=uri or self.uri,
            tasks=list(tasks) or [task()],
            lease=lease,
            concurrency=concurrency,
            environment=environment or {},
            more=more,
        )
        worker = Worker(f"w{self._number}", config, self.folder)
        self.workers.append(worker)
        if wait:
            worker.await_started()
        return worker

    def writer(self, ids: Sequence[Any], *, collection: str = SOURCE) -> Writer:
        """A writer of these documents."""
        writer = Writer(self.uri, collection, seed=self.report.seed + len(self.writers), ids=ids)
        self.writers.append(writer)
        return writer

    # -- looking

    def leader(self) -> Worker:
        """The worker that leads; waits for one."""

        def find() -> Worker | None:
            document = self.database[GLOBALS].find_one(
                {"_id": "leader", "$expr": {"$gt": ["$expiresAt", "$$NOW"]}}
            )
            by = document.get("by") if document is not None else None
            return next((one for one in self.workers if one.name == by and one.exit_status is None), None)

        found = until(find, timeout=20, what="a leader among the workers", every=0.02)
        assert found is not None
        return found

    def positions(self, since: Timestamp) -> list[tuple[int, Timestamp]]:
        """Every stream position that was saved since a cluster time, with its term, in order."""
        saved: list[tuple[int, Timestamp]] = []
        end = self.now()
        with self.database[GLOBALS].watch(start_at_operation_time=since, max_await_time_ms=200) as changes:
            while (change := changes.try_next()) is not None and change["clusterTime"] <= end:
                fields = change.get("updateDescription", {}).get("updatedFields", {})
                if change["documentKey"]["_id"] == "leader" and "position" in fields:
                    saved.append((fields["position"]["term"], fields["position"]["time"]))
                for name, value in fields.items():
                    if name == "position.time":
                        term = fields.get("position.term", saved[-1][0] if saved else 0)
                        saved.append((term, value))
        return saved

    def history(self, since: Timestamp, collection: str = SOURCE) -> Path:
        """Every change of the documents and of their records, in a file: for a person to read after a failure."""
        path, end = self.folder / "history.txt", self.now()
        theirs = [{"$match": {"ns.coll": {"$in": [collection, f"{collection}_tasks"]}}}]
        stream = self.database.watch(
            theirs, start_at_operation_time=since, full_document="updateLookup", max_await_time_ms=200
        )
        with stream as changes, path.open("w", encoding="utf-8") as file:
            while (change := changes.try_next()) is not None and change["clusterTime"] <= end:
                whole: dict[str, Any] = change.get("fullDocument") or {}
                said = change.get("updateDescription", change["operationType"])
                file.write(
                    f"{change['wallTime']} {whole.get('sourceDocId', change['documentKey']['_id'])} {said}\n"
                )
        return path

    def now(self) -> Timestamp:
        """The server's cluster time."""
        time = self.client.admin.command("ping")["operationTime"]
        assert isinstance(time, Timestamp)
        return time

    def records(self, collection: str = SOURCE) -> dict[str, dict[str, Any]]:
        """The task records by their documents' ids, whole."""
        found = self.database[f"{collection}_tasks"].find()
        return {repr(record["sourceDocId"]): record for record in found}

    def count(self, code: str) -> int:
        """How often an event is in the logs of all workers."""
        return sum(worker.events(code) for worker in self.workers)

    def errors(self) -> list[str]:
        """What workers said at the level of errors."""
        return [
            f"{worker.name}: {entry['message']}"
            for worker in self.workers
            for entry in worker.log()
            if entry.get("level") in ("ERROR", "CRITICAL")
        ]

    # -- the end

    def settle(
        self,
        writer: Writer,
        *,
        task: str = TASK,
        collection: str = SOURCE,
        effects: str | None = None,
        by_effects: bool = False,
        timeout: float = 30,
    ) -> Verdict:
        """Wait until all that was written is handled, or the time is up; then judge."""
        deadline = CLOCK.monotonic() + timeout
        while True:
            verdict = self.oracle.verdict(
                task,
                collection,
                writer.latest,
                effects=effects,
                writes=len(writer.acknowledged_at),
                by_effects=by_effects,
            )
            if verdict.clean or CLOCK.monotonic() > deadline:
                return verdict
            CLOCK.block(0.1)

    def conclude(
        self, verdict: Verdict, *, times: int, recoveries: Sequence[float] = (), **more: Any
    ) -> None:
        """Write the report, and insist on the zeros."""
        self.report.write(verdict, times=times, recoveries=recoveries, more=more)
        tails = "\n".join(f"--- {worker.name}\n{worker.log_tail(6)}" for worker in self.workers[-4:])
        assert verdict.clean, f"{verdict} {self.oracle.odd_effects}\n{tails}"

    def redeliveries(self, interrupted: Sequence[tuple[Run, float]]) -> list[float]:
        """For each run that was cut off at a moment: seconds until the next start for its document."""
        runs = self.oracle.runs()
        times: list[float] = []
        for cut, at in interrupted:
            later = [
                run.started - at
                for run in runs
                if run.id == cut.id and run.task == cut.task and run.worker != cut.worker and run.started > at
            ]
            if later:
                times.append(min(later))
        return times
