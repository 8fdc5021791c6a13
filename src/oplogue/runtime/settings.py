"""The options of one instance, validated once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from oplogue.model.cron import CronSchedule
from oplogue.model.policies import Monitoring

if TYPE_CHECKING:
    from oplogue.runtime.context import Context

TaskFilter = Callable[[str], bool]
CallNext = Callable[[], Awaitable[None]]
Middleware = Callable[["Context", CallNext], Awaitable[None]]

_LONGEST_OPERATION = timedelta(seconds=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What an instance was told."""

    instance_id: str
    concurrency: int
    lease: timedelta
    shutdown_timeout: timedelta
    cleanup_interval: timedelta | CronSchedule
    globals_collection: str
    monitoring: Monitoring
    task_filter: TaskFilter | None = None
    middleware: Sequence[Middleware] = ()
    supervised: bool = False
    """A parent starts this process again when it ends: so it ends itself when a handler blocks it for good."""

    @property
    def bound(self) -> timedelta:
        """The longest that one operation of ours may take: well inside a lease."""
        return min(_LONGEST_OPERATION, self.lease / 3)
