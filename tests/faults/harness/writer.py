"""Writers outside the library: what they were acknowledged is what must be handled."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pymongo
from pymongo import MongoClient, UpdateOne
from pymongo.collection import Collection
from pymongo.errors import PyMongoError
from pymongo.write_concern import WriteConcern

from harness.waiting import CLOCK

_A_GAP = 0.2
"""Seconds; a write that took longer met a fault."""


class Writer:
    """Writes versions of documents, each again until it is acknowledged by a majority."""

    def __init__(self, uri: str, collection: str, *, seed: int, ids: Sequence[Any]) -> None:
        self._client: MongoClient[dict[str, Any]] = MongoClient(
            uri, heartbeatFrequencyMS=500, serverSelectionTimeoutMS=2000, connectTimeoutMS=2000
        )
        self._documents: Collection[dict[str, Any]] = self._client.get_default_database().get_collection(
            collection, write_concern=WriteConcern("majority")
        )
        self._random = random.Random(seed)
        self._ids = list(ids)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.latest: dict[Any, int] = {}
        """The acknowledged version of each document."""
        self.acknowledged_at: dict[tuple[Any, int], float] = {}
        self.gaps: list[float] = []
        """How long each write took that did not go through at once."""
        self.refused = 0

    def write(self, id_: Any, more: Mapping[str, Any] | None = None) -> int:
        """Write the next version of a document; returns it once it is acknowledged."""
        with self._lock:
            version = self.latest.get(id_, 0) + 1
            began = CLOCK.monotonic()
            refused = 0
            while not self._try(id_, {**(more or {}), "v": version}):
                refused += 1
                CLOCK.block(0.05)
            took = CLOCK.monotonic() - began
            self.refused += refused
            if refused or took > _A_GAP:
                self.gaps.append(took)
            self.latest[id_] = version
            self.acknowledged_at[id_, version] = CLOCK.monotonic()
            return version

    def write_all(self, more: Mapping[str, Any] | None = None) -> None:
        """One version of every document."""
        for id_ in self._ids:
            self.write(id_, more)

    def burst(self, count: int) -> None:
        """The next version of that many documents, in one command."""
        with self._lock:
            ids = self._random.sample(self._ids, count)
            versions = {id_: self.latest.get(id_, 0) + 1 for id_ in ids}
            while not self._try_many(versions):
                self.refused += 1
                CLOCK.block(0.05)
            self.latest.update(versions)
            now = CLOCK.monotonic()
            self.acknowledged_at.update(dict.fromkeys(versions.items(), now))

    def begin(self, *, per_second: float) -> None:
        """Write random documents from a thread."""
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, args=(1 / per_second,), daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop writing."""
        if self._thread is not None:
            self._stopping.set()
            self._thread.join()
            self._thread = None

    def close(self) -> None:
        """End, and close the connection."""
        self.end()
        self._client.close()

    def _run(self, pause: float) -> None:
        while not self._stopping.wait(pause):
            self.write(self._random.choice(self._ids))

    def _try_many(self, versions: Mapping[Any, int]) -> bool:
        writes = [UpdateOne({"_id": id_}, {"$set": {"v": v}}, upsert=True) for id_, v in versions.items()]
        try:
            with pymongo.timeout(5):
                self._documents.bulk_write(writes, ordered=False)
        except PyMongoError:
            return False
        return True

    def _try(self, id_: Any, fields: dict[str, Any]) -> bool:
        try:
            with pymongo.timeout(5):
                self._documents.update_one({"_id": id_}, {"$set": fields}, upsert=True)
        except PyMongoError:
            return False
        return True
