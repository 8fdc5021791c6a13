"""The options of an app: what is refused, and what a supervised process is called."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from oplogue.errors import ConfigurationError
from oplogue.runtime.context import Context
from oplogue.runtime.settings import Settings, settings_of

USUAL: dict[str, Any] = {
    "instance_id": None,
    "process": None,
    "pace": None,
    "concurrency": 10,
    "lease": "60s",
    "shutdown_timeout": "30s",
    "cleanup_interval": "24h",
    "globals_collection": "_oplogue_globals",
    "monitoring": None,
    "task_filter": None,
    "middleware": (),
}


def settings(**options: Any) -> Settings:
    """Settings with these options."""
    return settings_of(**{**USUAL, **options})


async def layer(ctx: Context, call_next: Callable[[], Awaitable[None]]) -> None:
    """Some middleware."""


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("instance_id", ""),
        ("instance_id", 5),
        ("concurrency", -1),
        ("concurrency", True),
        ("concurrency", "10"),
        ("lease", "500ms"),
        ("lease", None),
        ("shutdown_timeout", "-1s"),
        ("cleanup_interval", 0),
        ("cleanup_interval", "CRON soon"),
        ("globals_collection", ""),
        ("globals_collection", "a$b"),
        ("globals_collection", None),
        ("monitoring", True),
        ("task_filter", "sync-order"),
        ("task_filter", layer),
        ("middleware", 5),
        ("middleware", "trace"),
        ("middleware", [layer, None]),
    ],
)
def test_what_is_refused_names_the_option_and_the_value(option: str, value: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        settings(**{option: value})
    assert (caught.value.option, caught.value.value) == (option, value)
    assert caught.value.expected


@pytest.mark.parametrize(
    ("given", "expected"), [(layer, (layer,)), ([layer, layer], (layer, layer)), ((), ())]
)
def test_middleware_may_be_one_or_several(given: Any, expected: Any) -> None:
    assert settings(middleware=given).middleware == expected


def test_processes_of_one_worker_are_instances_of_their_own() -> None:
    assert settings(instance_id="shop", process="2").instance_id == "shop-2"
    only = settings(instance_id="shop", process="")
    assert (only.instance_id, only.supervised) == ("shop", True)
    assert settings().instance_id != settings().instance_id
    assert not settings().supervised


def test_a_reconciliation_works_half_of_the_time_unless_the_operator_says_otherwise() -> None:
    assert settings().pace == 0.5
    assert settings(pace="0.1").pace == 0.1
    assert settings(pace="1").pace == 1


@pytest.mark.parametrize("value", ["", "0", "-1", "1.5", "nan", "half"])
def test_a_pace_that_is_no_share_is_refused_with_the_name_of_the_variable(value: str) -> None:
    with pytest.raises(ConfigurationError, match="OPLOGUE_RECONCILIATION_PACE"):
        settings(pace=value)
