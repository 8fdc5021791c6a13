"""Where everything that happens is reported: to subscribers, and to the log. Reporting never raises."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections import Counter
from collections.abc import Mapping
from typing import Any

from oplogue.clock import Clock
from oplogue.model.events import EVENTS, EventKind, Failure
from oplogue.runtime.subscriptions import Subscriber, Subscription, codes_for

_LOGGER = logging.getLogger("oplogue")
_QUIET = 60.0
_AREAS = {code: _LOGGER.getChild(code.partition(".")[0]) for code in EVENTS}


class Bus:
    """Emits events. An event that nobody listens to costs a few dictionary look-ups."""

    def __init__(self, clock: Clock, instance_id: str) -> None:
        self._clock = clock
        self._instance_id = instance_id
        self._subscriptions: list[Subscription] = []
        self._by_code: dict[str, list[Subscription]] = {}
        self._said: dict[tuple[str, str, str], tuple[float, int]] = {}
        self.counts: Counter[str] = Counter()

    def subscribe(self, pattern: str, subscriber: Subscriber) -> None:
        """Call the subscriber with each event of that code, of an area (``task.*``), or with all (``*``)."""
        codes = codes_for(pattern, subscriber)
        subscription = Subscription(subscriber)
        self._subscriptions.append(subscription)
        for code in codes:
            self._by_code.setdefault(code, []).append(subscription)

    def emit(self, code: str, /, **payload: Any) -> None:
        """Report that something happened."""
        self.counts[code] += 1
        kind = EVENTS[code]
        if _AREAS[code].isEnabledFor(kind.level):
            self._log(code, kind, {"instance_id": self._instance_id, **payload})
        subscriptions = self._by_code.get(code)
        if subscriptions is not None:
            event = kind.payload(code=code, at=self._clock.now(), instance_id=self._instance_id, **payload)
            for subscription in subscriptions:
                subscription.tell(event)

    def _log(self, code: str, kind: EventKind, fields: dict[str, Any]) -> None:
        # An exception is no key of a line: it is where formatters look for one, with its traceback.
        raised = fields.pop("exception", None)
        message, extra = kind.message.format_map(fields), {"code": code, **fields}
        if issubclass(kind.payload, Failure):
            unsaid = self._unsaid(code, fields)
            if unsaid is None:
                return
            message += f" ({unsaid} more like this since it was last said)" if unsaid else ""
        try:
            _AREAS[code].log(kind.level, message, exc_info=raised, extra=extra)
        except Exception:  # noqa: BLE001 - a filter of the user's raised
            # Not to the log, whose filter would raise again: where logging itself reports a handler that fails.
            if logging.raiseExceptions:
                traceback.print_exc()

    def _unsaid(self, code: str, fields: Mapping[str, Any]) -> int | None:
        """How often a failure was not written since it last was; None while it was written a moment ago.

        What fails is tried again, and while a server is away everything fails: the log says so now and then.
        """
        kind_of_error, _, _ = str(fields["error"]).partition(":")
        key = (code, str(fields.get("source") or fields.get("part")), kind_of_error)
        now = self._clock.monotonic()
        said_at, unsaid = self._said.get(key, (now - _QUIET, 0))
        if now - said_at < _QUIET:
            self._said[key] = (said_at, unsaid + 1)
            return None
        self._said[key] = (now, 0)
        return unsaid

    async def drain(self, timeout: float) -> None:
        """Wait for asynchronous subscribers that still run; those that don't end in time are cancelled."""
        running = [call for subscription in self._subscriptions for call in subscription.running]
        if not running:
            return
        _, late = await asyncio.wait(running, timeout=timeout)
        if not late:
            return
        for call in late:
            call.cancel()
        _, left = await asyncio.wait(late, timeout=timeout)
        _LOGGER.warning(
            "the instance stopped before its subscribers: %d calls were cancelled, %d of them still run",
            len(late),
            len(left),
        )
