"""Presence: this instance is alive, and these are its definitions.

The heartbeat also heals: whatever of ours somebody dropped (definitions, indexes) is there again after a beat.
One that fails is made up for at once when the database answers again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

from oplogue.clock import Clock
from oplogue.model.definition import TaskDefinition
from oplogue.model.policies import Evolution
from oplogue.runtime.bus import Bus
from oplogue.runtime.parts import end, keep_running, report
from oplogue.store.announcements import revision
from oplogue.store.controls import Control, Controls
from oplogue.store.definitions import Definitions, Standing
from oplogue.store.faults import StoreError
from oplogue.store.instances import Carried, Instances, LiveInstance, Load


class Presence:
    """Announces this instance, a few times in a lease."""

    def __init__(
        self,
        *,
        instances: Instances,
        definitions: Definitions,
        controls: Controls,
        own: Sequence[TaskDefinition],
        instance_id: str,
        lease: timedelta,
        load: Callable[[], Load],
        redefined: Callable[[], None],
        gated: Callable[[list[str]], Awaitable[None]],
        ensure_indexes: Callable[[], Awaitable[None]],
        bus: Bus,
        clock: Clock,
    ) -> None:
        self._instances = instances
        self._definitions = definitions
        self._own = list(own)
        self._carries = {
            definition.task: Carried(revision(definition), definition.evolution.handler_version)
            for definition in own
        }
        self._controls = controls
        self._instance_id = instance_id
        self._lease = lease
        self._load = load
        self._redefined = redefined
        self._gated = gated
        self._ensure_indexes = ensure_indexes
        self._bus = bus
        self._clock = clock
        self._gates: dict[str, int] = {}
        self._rolled_back: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self.alone: bool = False
        """Whether no other instance is known to be alive: nobody listens to signals."""
        self.answered_at: float | None = None
        """When the database last answered a heartbeat; None while there is none."""

    async def start(self) -> None:
        """Announce, then go on announcing."""
        try:
            await self._announce()
        except BaseException:
            # What a dead instance seems to carry would keep other definitions out of force.
            await self._leave()
            raise
        self._task = keep_running(
            "presence",
            self._loop,
            bus=self._bus,
            clock=self._clock,
            longest_pause=self._lease.total_seconds() / 4,
        )

    async def stop(self) -> None:
        """Leave."""
        if self._task is None:
            return
        await end(self._task)
        self._task = self.answered_at = None
        await self._leave()

    async def _leave(self) -> None:
        try:
            await self._instances.leave(self._instance_id)
        except StoreError as error:
            report(self._bus, "presence", error)

    async def note_load(self) -> None:
        """Say how busy this instance is, between heartbeats: somebody looks."""
        await self._instances.note_load(self._instance_id, self._load())

    async def _loop(self) -> None:
        while True:
            await self._clock.sleep(self._due_in())
            await self._announce()

    def _due_in(self) -> float:
        if self.answered_at is None:
            return 0.0
        return max(self.answered_at + self._lease.total_seconds() / 2 - self._clock.monotonic(), 0.0)

    async def _announce(self) -> None:
        await self._instances.forget_dead()
        # Before the definitions: what nobody seems to carry would be taken for rolled back.
        await self._instances.beat(self._instance_id, self._carries, self._load(), 2 * self._lease)
        others = [live for live in await self._instances.live() if live.id != self._instance_id]
        self.alone = not others
        carried = {one.revision for live in others for one in live.carries.values()}
        # The gates too: no instance with old code may claim what is about to be reprocessed.
        await self._set_gates(others)
        if await self._definitions.announce(self._own, carried):
            await self._ensure_indexes()
            self._redefined()
        self.answered_at = self._clock.monotonic()

    async def _set_gates(self, others: Sequence[LiveInstance]) -> None:
        """Who carries the highest live version of a task says which lower ones may not run it.

        Those below the last version that had records reprocessed. When nobody carries that one any more (a
        rollback), the highest that is left says so by its own policy: work must go on.
        """
        controls = await self._controls.all()
        standings = await self._definitions.standings([definition.task for definition in self._own])
        raised: list[str] = []
        for definition in self._own:
            name, version = definition.task, definition.evolution.handler_version
            highest = max(
                (live.carries[name].version for live in others if name in live.carries), default=version
            )
            gate = set_before = controls.get(name, Control()).version
            standing = standings.get(name, Standing())
            if version >= highest:
                gate = _gate(definition.evolution, standing)
                if gate != set_before:
                    await self._controls.set_gate(name, gate)
                if gate > set_before:
                    raised.append(name)
            self._note_gate(name, gate, version)
            self._note_rollback(name, version, max(version, highest), standing)
        if raised:
            await self._gated(raised)

    def _note_gate(self, name: str, gate: int, version: int) -> None:
        if gate > version and self._gates.get(name) != gate:
            self._bus.emit("task.superseded", task=name, version=gate)
        self._gates[name] = gate

    def _note_rollback(self, name: str, version: int, highest: int, standing: Standing) -> None:
        back = standing.version > highest
        if back and name not in self._rolled_back:
            self._bus.emit("evolution.rolled_back", task=name, version=version, stored=standing.version)
            self._rolled_back.add(name)
        elif not back:
            self._rolled_back.discard(name)


def _gate(evolution: Evolution, standing: Standing) -> int:
    """The lowest version that may run the task, as the highest live one sees it."""
    own = evolution.handler_version if evolution.on_handler_version_change != "none" else 0
    rises = evolution.handler_version > standing.version
    required = own if rises and own else standing.requires
    return required if required <= evolution.handler_version else own
