"""What a user declares about a task, and what is refused."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from oplogue.errors import ConfigurationError
from oplogue.model.definition import Namespace, Task, define_task, parse_collection
from oplogue.model.retry import Exponential, Fixed
from oplogue.runtime.context import Context

USUAL: dict[str, Any] = {
    "task": None,
    "collection": "orders",
    "filter": None,
    "watch_projection": None,
    "debounce": "1s",
    "max_wait": None,
    "retry_policy": None,
    "cleanup_policy": None,
    "execution_history_limit": 5,
    "evolution": None,
    "timeout": None,
    "concurrency": None,
    "priority": 0,
}


async def sync_order(ctx: Context) -> None:
    """A handler."""


def define(**options: Any) -> Task:
    """A task with these options."""
    return define_task(sync_order, context_type=Context, **{**USUAL, **options})


def test_the_defaults() -> None:
    task = define()
    definition = task.definition
    assert (task.name, definition.source) == ("sync-order", Namespace("", "orders"))
    assert (definition.debounce, definition.max_wait) == (timedelta(seconds=1), timedelta(minutes=1))
    assert definition.retry_policy == Exponential()
    assert (definition.timeout, definition.concurrency, definition.priority) == (None, None, 0)
    assert definition.execution_history_limit == 5
    assert definition.inputs is None, "a whole document is watched"


@pytest.mark.parametrize(
    ("debounce", "max_wait", "expected"), [("1s", None, 60), ("1m", None, 600), ("1m", "2m", 120), (0, 0, 0)]
)
def test_max_wait_is_ten_debounces_and_at_least_a_minute(debounce: Any, max_wait: Any, expected: int) -> None:
    definition = define(debounce=debounce, max_wait=max_wait).definition
    assert definition.max_wait == timedelta(seconds=expected)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("task", ""),
        ("task", " x"),
        ("task", "x" * 201),
        ("task", 5),
        ("collection", ""),
        ("collection", None),
        ("collection", "orders_tasks"),
        ("collection", "shop.system.users"),
        ("collection", ".orders"),
        ("collection", "shop."),
        ("collection", "a/b.orders"),
        ("collection", "or$ders"),
        ("collection", "admin.orders"),
        ("collection", "local.oplog.rs"),
        ("collection", "x" * 250),
        ("debounce", -1),
        ("debounce", "5"),
        ("debounce", "1 month"),
        ("debounce", None),
        ("max_wait", "500ms"),
        ("retry_policy", "fixed"),
        ("cleanup_policy", "never"),
        ("evolution", 2),
        ("execution_history_limit", -1),
        ("execution_history_limit", True),
        ("timeout", 0),
        ("timeout", "soon"),
        ("concurrency", 0),
        ("concurrency", 1.5),
        ("priority", "high"),
    ],
)
def test_what_is_refused_names_the_option_and_the_task(option: str, value: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        define(**{option: value})
    assert caught.value.option == option
    if option != "task":
        assert caught.value.task == "sync-order"
        assert str(caught.value).startswith("task 'sync-order': ")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("orders", Namespace("", "orders")),
        ("shop.orders", Namespace("shop", "orders")),
        ("shop.orders.archive", Namespace("shop", "orders.archive")),
    ],
)
def test_the_first_dot_of_a_collection_splits(text: str, expected: Namespace) -> None:
    assert parse_collection(text) == expected


def test_a_definition_is_located_in_the_apps_database_where_none_was_named() -> None:
    assert define().definition.located("shop").source == Namespace("shop", "orders")
    named = define(collection="other.orders").definition
    assert named.located("shop") is named


def test_a_namespace_knows_its_records_and_its_short_name() -> None:
    orders = Namespace("shop", "orders")
    assert orders.tasks == Namespace("shop", "orders_tasks")
    assert (orders.within("shop"), orders.within("other"), str(orders)) == (
        "orders",
        "shop.orders",
        "shop.orders",
    )


def test_the_inputs_of_a_task_are_those_of_its_filter_and_its_projection() -> None:
    definition = define(filter={"status": "paid"}, watch_projection=["total", "a.b"]).definition
    assert definition.inputs == {"status", "total", "a.b"}
    assert define(filter={"due": {"$lte": "$$NOW"}}, watch_projection=["due"]).definition.inputs is None


def test_the_backoff_after_a_change_is_the_policys_first_delay() -> None:
    assert define(retry_policy=Fixed("7s")).definition.backoff_after_change() == timedelta(seconds=7)
