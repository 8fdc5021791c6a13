"""What a user declares about one reactive task, validated once, at registration."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Self, TypeVar

from oplogue.errors import ConfigurationError
from oplogue.model.checks import whole
from oplogue.model.durations import DurationLike, parse_duration
from oplogue.model.filters import Filter, compile_filter
from oplogue.model.handlers import Handler, bind_handler
from oplogue.model.policies import CleanupPolicy, Evolution
from oplogue.model.projection import Projection, compile_projection
from oplogue.model.retry import Exponential, RetryPolicy

_MIN_MAX_WAIT = timedelta(minutes=1)
T = TypeVar("T")
_NAME = re.compile(r"[^\s\x00][^\x00]{0,199}")
# What the driver and the server take as names.
_DATABASE = re.compile(r'[^ .$/\\"\x00]{1,63}')
_COLLECTION = re.compile(r"(?!system\.|\.)[^$\x00]+(?<!\.)")
_LONGEST_NAMESPACE = 255 - len("_tasks")
_SERVERS_OWN = frozenset({"admin", "config", "local"})


@dataclass(frozen=True, slots=True, order=True)
class Namespace:
    """A collection, by database and name."""

    database: str
    collection: str

    def __str__(self) -> str:
        return f"{self.database}.{self.collection}"

    def within(self, database: str) -> str:
        """As it is written in an app of that database: without it."""
        return self.collection if self.database == database else str(self)

    @property
    def tasks(self) -> Namespace:
        """Where the task records of this source collection live."""
        return Namespace(self.database, f"{self.collection}_tasks")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDefinition:
    """Everything but the handler: what the planner needs, also of tasks that other instances run."""

    task: str
    source: Namespace
    filter: Filter
    projection: Projection
    debounce: timedelta = timedelta(seconds=1)
    max_wait: timedelta = _MIN_MAX_WAIT
    retry_policy: RetryPolicy = field(default_factory=Exponential)
    cleanup_policy: CleanupPolicy = field(default_factory=CleanupPolicy)
    execution_history_limit: int = 5
    evolution: Evolution = field(default_factory=Evolution)
    timeout: timedelta | None = None
    concurrency: int | None = None
    priority: int = 0

    def located(self, database: str) -> Self:
        """The same definition with the app's database where none was named."""
        if self.source.database:
            return self
        return replace(self, source=Namespace(database, self.source.collection))

    @property
    def inputs(self) -> frozenset[str] | None:
        """The paths that decide whether it runs; None: any field may."""
        if self.filter.inputs is None or self.projection.inputs is None:
            return None
        return self.filter.inputs | self.projection.inputs

    def backoff_after_change(self) -> timedelta | None:
        """The least wait of a failing document that changes; None where the policy's own next time stands."""
        return self.retry_policy.first_delay


@dataclass(frozen=True, slots=True)
class Task:
    """A definition with the handler that this instance runs for it."""

    definition: TaskDefinition
    handler: Handler

    @property
    def name(self) -> str:
        """The task's unique name."""
        return self.definition.task


def define_task(
    function: Callable[..., Any],
    *,
    context_type: type,
    task: str | None,
    collection: str,
    filter: Mapping[str, Any] | None,
    watch_projection: Mapping[str, Any] | Sequence[str] | None,
    debounce: DurationLike,
    max_wait: DurationLike | None,
    retry_policy: RetryPolicy | None,
    cleanup_policy: CleanupPolicy | None,
    execution_history_limit: int,
    evolution: Evolution | None,
    timeout: DurationLike | None,
    concurrency: int | None,
    priority: int,
) -> Task:
    """Validate every option of one task; the message of a refusal names the task, the option and the value."""
    name = _task_name(function, task)
    try:
        debounce_ = parse_duration(debounce, option="debounce")
        definition = TaskDefinition(
            task=name,
            source=parse_collection(collection),
            filter=compile_filter(filter),
            projection=compile_projection(watch_projection),
            debounce=debounce_,
            max_wait=_max_wait(max_wait, debounce_),
            retry_policy=_instance(
                retry_policy,
                RetryPolicy.__args__,
                Exponential,
                option="retry_policy",
                expected="Fixed(...), Linear(...), Exponential(...), Series(...) or CronRetry(...)",
            ),
            cleanup_policy=_instance(
                cleanup_policy, (CleanupPolicy,), CleanupPolicy, option="cleanup_policy"
            ),
            execution_history_limit=whole(
                execution_history_limit, option="execution_history_limit", minimum=0, maximum=1000
            ),
            evolution=_instance(evolution, (Evolution,), Evolution, option="evolution"),
            timeout=None if timeout is None else _timeout(timeout),
            concurrency=None if concurrency is None else whole(concurrency, option="concurrency", minimum=1),
            priority=whole(priority, option="priority", minimum=-1_000_000, maximum=1_000_000),
        )
        return Task(definition, bind_handler(function, context_type=context_type, task=name))
    except ConfigurationError as error:
        raise error.in_task(name) from None


def parse_collection(collection: object) -> Namespace:
    """``"orders"`` or ``"otherdb.orders"``: the first dot splits. An empty database stands for the app's own.

    >>> parse_collection("shop.orders.archive")
    Namespace(database='shop', collection='orders.archive')
    """
    expected = "a collection's name such as 'orders', or 'otherdb.orders'"
    if not isinstance(collection, str) or not collection:
        raise ConfigurationError(
            "no collection's name", option="collection", value=collection, expected=expected
        )
    database, dot, name = collection.partition(".")
    if not dot:
        database, name = "", collection
    if name.endswith("_tasks"):
        problem = "tasks can't watch a collection of task records"
    elif not _COLLECTION.fullmatch(name) or (dot and not _DATABASE.fullmatch(database)):
        problem = "not a collection's name"
    elif len(collection.encode()) > _LONGEST_NAMESPACE:
        problem = "too long"
    elif database in _SERVERS_OWN:
        problem = f"the server tells no changes of its own database {database!r}"
    else:
        return Namespace(database, name)
    raise ConfigurationError(problem, option="collection", value=collection, expected=expected)


def check_collection(name: str, *, option: str) -> str:
    """A collection's name, without a database."""
    if not isinstance(name, str) or not _COLLECTION.fullmatch(name):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(
            "not a collection's name", option=option, value=name, expected="a name such as 'orders'"
        )
    return name


def check_database(name: str, *, option: str) -> str:
    """A database's name, of one whose changes the server tells."""
    usable = isinstance(name, str) and _DATABASE.fullmatch(name)  # pyright: ignore[reportUnnecessaryIsInstance]
    if not usable or name in _SERVERS_OWN:
        raise ConfigurationError(
            "not the name of a database for data",
            option=option,
            value=name,
            expected="a name such as 'shop', not 'admin', 'config' or 'local'",
        )
    return name


def _task_name(function: object, task: object) -> str:
    name = task if task is not None else str(getattr(function, "__name__", "")).replace("_", "-")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigurationError(
            "not a task's name",
            option="task",
            value=task,
            expected="a non-empty text of at most 200 characters, such as 'sync-order'",
        )
    return name


def _max_wait(value: DurationLike | None, debounce: timedelta) -> timedelta:
    if value is None:
        return max(10 * debounce, _MIN_MAX_WAIT)
    wait = parse_duration(value, option="max_wait")
    if wait < debounce:
        raise ConfigurationError(
            "shorter than the debounce", option="max_wait", value=value, expected="at least the debounce"
        )
    return wait


def _timeout(value: DurationLike) -> timedelta:
    timeout = parse_duration(value, option="timeout")
    if not timeout:
        raise ConfigurationError(
            "a handler needs some time", option="timeout", value=value, expected="more than 0 s, or None"
        )
    return timeout


def _instance(value: T | None, kinds: tuple[type, ...], default: Callable[[], T], **words: str) -> T:
    if value is None:
        return default()
    if not isinstance(value, kinds):
        expected = words.get("expected", f"{kinds[0].__name__}(...)")
        raise ConfigurationError("of the wrong type", option=words["option"], value=value, expected=expected)
    return value
