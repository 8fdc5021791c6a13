"""Was everything handled? What was written is compared with the records in the database and with the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oplogue.app import App
from oplogue.cli.shop import Key


@dataclass(frozen=True, slots=True)
class Found:
    """A task record, as far as the audit looks."""

    status: str
    values: Mapping[str, Any]


def gaps(
    expected: Mapping[Key, Mapping[str, Any]],
    found: Mapping[Key, Found],
    ran: Mapping[Key, Mapping[str, Any]],
) -> list[str]:
    """What is missing, a line for each document of a task; empty if all was handled.

    >>> gaps({("sync", 1): {"total": 5}}, {("sync", 1): Found("completed", {"total": 5})}, {})
    ['sync of 1: its handler never came to its end']
    """
    lines: list[str] = []
    for key, values in expected.items():
        problem = _problem(values, found.get(key), ran.get(key))
        if problem is not None:
            lines.append(f"{key[0]} of {key[1]}: {problem}")
    return lines


def _problem(values: Mapping[str, Any], record: Found | None, ran: Mapping[str, Any] | None) -> str | None:
    if record is None:
        return "it has no record"
    if record.status != "completed":
        return f"its record is {record.status}, not completed"
    if record.values != values:
        return f"its record has {dict(record.values)}, its document {dict(values)}"
    if ran is None:
        return "its handler never came to its end"
    if ran != values:
        return f"its handler last ran with {dict(ran)}, its document has {dict(values)}"
    return None


async def read_records(app: App) -> dict[Key, Found]:
    """All records of the shop's tasks, from the database."""
    shown = {"_id": 0, "task": 1, "sourceDocId": 1, "status": 1, "lastObservedValues": 1}
    found: dict[Key, Found] = {}
    for collection in ("orders_tasks", "products_tasks"):
        async for record in app.database[collection].find({}, shown):
            key = (record["task"], record["sourceDocId"])
            found[key] = Found(record["status"], record["lastObservedValues"])
    return found


async def count_waiting(app: App) -> dict[str, int]:
    """For each task, how many records are pending. Reads the due index only."""
    waiting: dict[str, int] = {}
    stages: list[dict[str, Any]] = [
        {"$match": {"status": "pending", "nextRunAt": {"$type": "date"}}},
        {"$group": {"_id": "$task", "n": {"$sum": 1}}},
    ]
    for collection in ("orders_tasks", "products_tasks"):
        async for row in await app.database[collection].aggregate(stages):
            waiting[row["_id"]] = row["n"]
    return waiting
