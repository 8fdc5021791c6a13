"""Renewing what this instance holds: the leases of its records, and its leadership.

It is done by a thread with a client of its own, so that a handler which blocks the event loop does not lose its
record: nothing of the event loop takes part. Code that holds the interpreter's lock stops the thread too: then the
lease is lost, reported and fenced. Where the app was given a client and no URI there is nothing to make such a
client from, and the event loop itself renews.

A renewal that fails is tried again at the next beat. When none succeeded for a whole lease, the records are given
up: their handlers are told, and nothing of their runs is written. A record that somebody else claimed is given up
at once. Before the records of a long outage are given up, a renewal is tried: an expired lease that nobody has
reclaimed is still ours.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from typing import Protocol

from oplogue.clock import Clock
from oplogue.model.definition import Namespace
from oplogue.runtime.bus import Bus
from oplogue.runtime.context import Run
from oplogue.runtime.leases import LeaseBook
from oplogue.runtime.office import Office
from oplogue.runtime.parts import end, keep_running
from oplogue.runtime.settings import Settings
from oplogue.store import Client
from oplogue.store.connection import BlockingClient, make_blocking_client
from oplogue.store.faults import StoreError, describe
from oplogue.store.leadership import renew as renew_leadership
from oplogue.store.leadership import renew_blocking as renew_leadership_blocking
from oplogue.store.renewals import renew, renew_blocking

BLOCKED = 70
"""The exit code of a process that a handler blocked for good."""
_LOGGER = logging.getLogger("oplogue.lease")
_BEATS = 6
"""Renewal is thought of so many times in a lease; each lease is renewed when a third of it has passed."""


class Renewal(Protocol):
    """Whatever renews."""

    @property
    def round_at(self) -> float | None:
        """When it last ended a round, successful or not; None while it doesn't run."""
        ...

    def start(self) -> None:
        """Begin."""
        ...

    async def stop(self) -> None:
        """End."""
        ...


class _Renewing:
    """What both kinds of renewal share: what is due, and what an answer means."""

    def __init__(
        self,
        *,
        uri: str | None,
        client: Client,
        book: LeaseBook,
        office: Callable[[], Office | None],
        globals_: Namespace,
        settings: Settings,
        lost: Callable[[list[Run]], None],
        bus: Bus,
        clock: Clock,
    ) -> None:
        self._uri = uri
        self._client = client
        self._book = book
        self._office = office
        self._globals = globals_
        self._settings = settings
        self._lost = lost
        self._bus = bus
        self._clock = clock
        self._beat = settings.lease.total_seconds() / _BEATS
        self.round_at: float | None = None

    def _office_due(self) -> Office | None:
        office = self._office()
        return office if office is not None and office.to_be_renewed else None

    def _failed(self, error: Exception) -> None:
        self._bus.emit("lease.renewal_failed", error=describe(error))


class ThreadRenewal(_Renewing):
    """Renews from a daemon thread."""

    _thread: threading.Thread | None = None
    _loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Begin."""
        self.round_at = self._clock.monotonic()
        self._stopping = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="oplogue-leases", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """End. A renewal that is under way takes no longer than one operation may."""
        if self._thread is not None:
            self._stopping.set()
            await asyncio.to_thread(self._thread.join)
            self._thread = self.round_at = None

    def _run(self) -> None:
        assert self._uri is not None
        with make_blocking_client(self._uri) as client:
            while not self._stopping.wait(self._beat):
                try:
                    self._renew_office(client)
                    self._renew_records(client)
                except Exception as error:  # noqa: BLE001 - without this thread every lease is lost
                    self._tell(self._failed, error)
                # Judged here, right after the renewals: a loop that was blocked would judge by old answers.
                self._give_up(self._book.expired())
                self._end_if_blocked()
                self.round_at = self._clock.monotonic()

    def _renew_office(self, client: BlockingClient) -> None:
        office, asked_at = self._office_due(), self._clock.monotonic()
        if office is None:
            return
        settings = self._settings
        kept = renew_leadership_blocking(client, self._globals, office.term, settings.lease, settings.bound)
        office.answered(kept, asked_at)

    def _renew_records(self, client: BlockingClient) -> None:
        for source, owned in self._book.fading().items():
            asked_at = self._clock.monotonic()
            lost = renew_blocking(client, source, owned, self._settings.lease, self._settings.bound)
            self._give_up(self._book.renewed(owned, lost, asked_at))

    def _give_up(self, runs: list[Run]) -> None:
        if runs:
            self._tell(self._lost, runs)

    def _end_if_blocked(self) -> None:
        """A handler that blocks the event loop past its timeout can't be ended; a supervised process can."""
        if not self._settings.supervised:
            return
        run = self._book.blocking(grace=max(self._settings.bound.total_seconds(), 1.0))
        if run is not None:
            task, limit = run.definition.task, run.definition.timeout
            _LOGGER.critical(
                "task %s blocks the event loop past its timeout of %s: ending the process", task, limit
            )
            logging.shutdown()
            os._exit(BLOCKED)

    def _tell(self, what: Callable[..., None], *arguments: object) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(what, *arguments)


class LoopRenewal(_Renewing):
    """Renews from the event loop, for an app that was given a client and no URI."""

    _task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self.round_at = self._clock.monotonic()
        self._bus.emit("lease.renewed_in_loop")
        self._task = keep_running("lease renewal", self._run, bus=self._bus, clock=self._clock)

    async def stop(self) -> None:
        """End."""
        await end(self._task)
        self._task = self.round_at = None

    async def _run(self) -> None:
        lease, bound = self._settings.lease, self._settings.bound
        while True:
            await self._clock.sleep(self._beat)
            try:
                office = self._office_due()
                if office is not None:
                    asked_at = self._clock.monotonic()
                    kept = await renew_leadership(self._client, self._globals, office.term, lease, bound)
                    office.answered(kept, asked_at)
                for source, owned in self._book.fading().items():
                    asked_at = self._clock.monotonic()
                    lost = await renew(self._client, source, owned, lease, bound)
                    self._lost(self._book.renewed(owned, lost, asked_at))
            except StoreError as error:
                self._failed(error)
            self._lost(self._book.expired())
            self.round_at = self._clock.monotonic()
