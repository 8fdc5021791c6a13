"""What waits, runs and has failed: counts by task and status, and how long the oldest has waited.

Read for metrics, beside millions of completed records: every count is a scan of index keys alone (COUNT_SCAN), and
nothing looks at a completed record.

The oldest pending record of a task, by ``dueAt``, is one of two: the first by ``nextRunAt``, for a record that has
not been started yet is due when it runs; or the first by ``dueAt`` of those that wait again after a run (retried,
deferred, changed), which have an index of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from pymongo.read_preferences import (
    Nearest,
    Primary,
    PrimaryPreferred,
    Secondary,
    SecondaryPreferred,
)

from oplogue.model.definition import Namespace
from oplogue.model.policies import ReadPreference
from oplogue.model.states import RUNNING, Status
from oplogue.store.connection import Client, bounded, ours
from oplogue.store.expressions import NOW, literal
from oplogue.store.tasks import HAS_DATE, WAITING

COUNTED = (Status.PENDING, *RUNNING, Status.FAILED)
"""The statuses that are counted: completed records are not."""

_TASKS_AT_ONCE = 50
_PREFERENCES = {
    "primary": Primary(),
    "primaryPreferred": PrimaryPreferred(),
    "secondary": Secondary(),
    "secondaryPreferred": SecondaryPreferred(),
    "nearest": Nearest(),
}

Pipeline = list[dict[str, Any]]


@dataclass(slots=True)
class Depths:
    """The backlog of some tasks; what is not in it is zero."""

    counts: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    """Records by task and status."""
    waited: dict[str, timedelta] = field(default_factory=dict[str, timedelta])
    """For each task with pending records, since when its oldest is due; negative where it is not yet."""

    def add(self, row: Mapping[str, Any]) -> None:
        """Take in one row of the server's answer."""
        task = row["task"]
        if "n" in row:
            self.counts[task, row["status"]] = row["n"]
        else:
            waited = timedelta(milliseconds=row["waited"])
            self.waited[task] = max(self.waited.get(task, waited), waited)


class Backlog:
    """Reads the backlog, from a member that is preferred."""

    def __init__(self, client: Client, preferred: ReadPreference, *, bound: timedelta) -> None:
        self._client = client
        self._preferred = _PREFERENCES[preferred]
        self._bound = bound

    async def all_depths(self, tasks: Iterable[tuple[Namespace, str]]) -> Depths:
        """The backlog of tasks of any collections."""
        by_source: dict[Namespace, list[str]] = {}
        for source, task in tasks:
            by_source.setdefault(source, []).append(task)
        together = Depths()
        for depths in await asyncio.gather(
            *(self.depths(source, names) for source, names in by_source.items())
        ):
            together.counts |= depths.counts
            together.waited |= depths.waited
        return together

    async def depths(self, source: Namespace, tasks: Sequence[str]) -> Depths:
        """The backlog of these tasks, in one round trip for some dozens of them."""
        records = ours(self._client, source.tasks).with_options(read_preference=self._preferred)
        depths = Depths()
        for first in range(0, len(tasks), _TASKS_AT_ONCE):
            pipeline = depths_pipeline(source.tasks, tasks[first : first + _TASKS_AT_ONCE])
            with bounded(self._bound):
                async for row in await records.aggregate(pipeline):
                    depths.add(row)
        return depths


def depths_pipeline(records: Namespace, tasks: Sequence[str]) -> Pipeline:
    """One row for each count that is not zero, and up to two with the age of each task's oldest pending record."""
    first, *others = [part for task in tasks for part in _parts(task)]
    return first + [{"$unionWith": {"coll": records.collection, "pipeline": other}} for other in others]


def _parts(task: str) -> Iterator[Pipeline]:
    for status in COUNTED:
        dated = {} if status is Status.FAILED else HAS_DATE
        yield [
            {"$match": {"status": status, "task": task, **dated}},
            {"$count": "n"},
            {"$set": {"task": literal(task), "status": literal(status)}},
        ]
    yield [
        {"$match": {"status": Status.PENDING, "task": task, **HAS_DATE}},
        {"$sort": {"nextRunAt": 1}},
        {"$limit": 1},
        # Null and missing dates are passed over.
        _waited_since({"$min": ["$dueAt", "$nextRunAt"]}),
    ]
    yield [
        {"$match": {**WAITING, "task": task, "dueAt": {"$type": "date"}}},
        {"$sort": {"dueAt": 1}},
        {"$limit": 1},
        _waited_since("$dueAt"),
    ]


def _waited_since(moment: Any) -> dict[str, Any]:
    return {"$project": {"_id": 0, "task": 1, "waited": {"$subtract": [NOW, moment]}}}
