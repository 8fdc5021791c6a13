"""What holds a task back for the whole cluster: pauses, throttles, version gates.

One document in the globals collection, read with every look at due records and never as a filter on each of them.
Times are the server's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from oplogue.model.definition import Namespace
from oplogue.store.connection import Client, Collection, bounded, ours
from oplogue.store.expressions import NOW, Expr, after, first_set, literal, milliseconds, when
from oplogue.store.fields import aware, aware_or_none, document_in, list_in

CONTROLS = "controls"
NEVER = datetime(1970, 1, 1, tzinfo=UTC)
FOREVER = datetime(9999, 12, 31, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Control:
    """What holds one task back."""

    paused_until: datetime | None = None
    throttled_until: datetime | None = None
    version: int = 0
    """Instances with a lower handler version don't run it."""

    @property
    def held_until(self) -> datetime:
        """When a pause and a throttle are both over."""
        return max(self.paused_until or NEVER, self.throttled_until or NEVER)

    def allows(self, version: int, now: datetime) -> bool:
        """Whether an instance with this handler version may start it now, by the server's clock."""
        return self.held_until <= now and version >= self.version


class Controls:
    """The controls of one globals collection."""

    def __init__(self, client: Client, globals_: Namespace, *, bound: timedelta) -> None:
        self._globals: Collection = ours(client, globals_)
        self._bound = bound

    async def all(self) -> dict[str, Control]:
        """What holds which task back."""
        with bounded(self._bound):
            return read_controls(await self._globals.find_one({"_id": CONTROLS}))

    async def held_back(self, versions: Mapping[str, int]) -> set[str]:
        """Which of these tasks, with these handler versions, may not be started now."""
        looked = [{"$match": {"_id": CONTROLS}}, {"$set": {"now": NOW}}]
        with bounded(self._bound):
            found = await (await self._globals.aggregate(looked)).to_list()
        if not found:
            return set()
        now, controls = aware(found[0]["now"]), read_controls(found[0])
        return {
            name
            for name, control in controls.items()
            if name in versions and not control.allows(versions[name], now)
        }

    async def pause(self, task: str, until: timedelta | datetime | None) -> None:
        """Start no run of this task until then, or until it is resumed."""
        await self._set(task, {"pausedUntil": FOREVER if until is None else _moment(until)})

    async def resume(self, task: str) -> None:
        """Let it run again: a pause or a throttle is over."""
        await self._set(task, {"pausedUntil": None, "throttledUntil": None})

    async def throttle(self, task: str, until: timedelta | datetime) -> None:
        """Start no run of this task until then."""
        await self._set(task, {"throttledUntil": _moment(until)})

    async def set_gate(self, task: str, version: int) -> None:
        """Only handlers of this version or a higher one run the task from now on."""
        await self._set(task, {"version": version})

    async def _set(self, task: str, change: Mapping[str, Expr]) -> None:
        entries = first_set("$tasks", [])
        known = {"$in": [literal(task), {"$map": {"input": entries, "in": "$$this.task"}}]}
        with_it = when(known, entries, {"$concatArrays": [entries, [{"task": literal(task)}]]})
        changed = when(
            {"$eq": ["$$this.task", literal(task)]},
            {"$mergeObjects": ["$$this", dict(change)]},
            "$$this",
        )
        update = [{"$set": {"tasks": {"$map": {"input": with_it, "in": changed}}}}]
        with bounded(self._bound):
            await self._globals.update_one({"_id": CONTROLS}, update, upsert=True)


def read_controls(document: Mapping[str, Any] | None) -> dict[str, Control]:
    """Controls by task, from their document; entries that can't be read hold nothing back."""
    entries = [document_in(entry) for entry in list_in((document or {}).get("tasks"))]
    return {
        str(entry["task"]): Control(
            aware_or_none(entry.get("pausedUntil")),
            aware_or_none(entry.get("throttledUntil")),
            entry["version"] if isinstance(entry.get("version"), int) else 0,
        )
        for entry in entries
        if "task" in entry
    }


def _moment(until: timedelta | datetime) -> Expr:
    return after(NOW, milliseconds(until)) if isinstance(until, timedelta) else until
