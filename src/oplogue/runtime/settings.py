"""The options of one instance, validated once."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from oplogue.errors import ConfigurationError
from oplogue.model.checks import whole
from oplogue.model.cron import CronSchedule, parse_interval
from oplogue.model.definition import check_collection
from oplogue.model.durations import DurationLike, parse_duration
from oplogue.model.policies import Monitoring

if TYPE_CHECKING:
    from oplogue.runtime.context import Context

PACE_VARIABLE = "OPLOGUE_RECONCILIATION_PACE"
"""The operator's variable: the share of its time that a reconciliation works."""

TaskFilter = Callable[[str], bool]
CallNext = Callable[[], Awaitable[None]]
Middleware = Callable[["Context", CallNext], Awaitable[None]]

_LONGEST_OPERATION = timedelta(seconds=5)
_SHORTEST_LEASE = timedelta(seconds=1)
_PACE = 0.5


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
    pace: float
    """The part of its time that a reconciliation works; it rests for the other, and the database breathes."""
    task_filter: TaskFilter | None = None
    middleware: Sequence[Middleware] = ()
    supervised: bool = False
    """A parent starts this process again when it ends: so it ends itself when a handler blocks it for good."""

    @property
    def bound(self) -> timedelta:
        """The longest that one operation of ours may take: well inside a lease."""
        return min(_LONGEST_OPERATION, self.lease / 3)


def settings_of(
    *,
    instance_id: str | None,
    process: str | None,
    pace: str | None,
    concurrency: int,
    lease: DurationLike,
    shutdown_timeout: DurationLike,
    cleanup_interval: DurationLike,
    globals_collection: str,
    monitoring: Monitoring | None,
    task_filter: TaskFilter | None,
    middleware: Middleware | Sequence[Middleware],
) -> Settings:
    """The options of an app, checked; of the environment, the number that a supervising parent gave, and the pace."""
    if monitoring is not None and not isinstance(monitoring, Monitoring):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise _refused("of the wrong type", "monitoring", monitoring, "Monitoring(...)")
    # A coroutine would be true whatever it comes to.
    if task_filter is not None and (not callable(task_filter) or _is_async(task_filter)):
        raise _refused(
            "not a plain function", "task_filter", task_filter, "a function of a task's name: True or False"
        )
    return Settings(
        instance_id=_instance_id(instance_id, process),
        concurrency=whole(concurrency, option="concurrency", minimum=0),
        lease=parse_duration(lease, option="lease", minimum=_SHORTEST_LEASE),
        shutdown_timeout=parse_duration(shutdown_timeout, option="shutdown_timeout"),
        cleanup_interval=parse_interval(cleanup_interval, option="cleanup_interval"),
        globals_collection=check_collection(globals_collection, option="globals_collection"),
        monitoring=monitoring or Monitoring(),
        task_filter=task_filter,
        pace=_PACE if pace is None else _share(pace),
        supervised=process is not None,
        middleware=_middleware(middleware),
    )


def _share(value: str) -> float:
    try:
        share = float(value)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise _refused("not a share", PACE_VARIABLE, value, "a number above 0, at most 1; 1 takes no rests")
    return share


def _is_async(function: Callable[..., object]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _instance_id(value: str | None, process: str | None) -> str:
    if value is None:
        return uuid.uuid4().hex[:12]
    if not isinstance(value, str) or not value.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
        raise _refused("not a name", "instance_id", value, "a non-empty text")
    # Several processes of one worker run the same code: each is an instance of its own.
    return f"{value}-{process}" if process else value


def _middleware(value: Middleware | Sequence[Middleware]) -> tuple[Middleware, ...]:
    given = (value,) if callable(value) else value
    if not isinstance(given, (tuple, list)) or not all(callable(layer) for layer in given):
        expected = "async def m(ctx, call_next), or a list of such functions, the first outermost"
        raise _refused("not middleware", "middleware", value, expected)
    return tuple(given)


def _refused(problem: str, option: str, value: object, expected: str) -> ConfigurationError:
    return ConfigurationError(problem, option=option, value=value, expected=expected)
