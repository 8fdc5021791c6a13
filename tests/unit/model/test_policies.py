from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from oplogue.errors import ConfigurationError
from oplogue.model.policies import CleanupPolicy, Evolution, Monitoring


def test_defaults_are_the_documented_ones() -> None:
    assert CleanupPolicy() == CleanupPolicy("source_document_deleted", timedelta(hours=24))
    assert Evolution() == Evolution(1, "none", True)
    assert Monitoring() == Monitoring(True, "cluster", 60, "secondaryPreferred")


def test_durations_are_understood() -> None:
    assert CleanupPolicy(keep_for="7d").keep_for == timedelta(days=7)
    assert CleanupPolicy(keep_for=0).keep_for == timedelta(0)
    assert Monitoring(push_interval=0.5).push_interval == timedelta(milliseconds=500)


@pytest.mark.parametrize(
    ("policy", "options", "wrong"),
    [
        (CleanupPolicy, {"delete_when": "always"}, "delete_when"),
        (CleanupPolicy, {"delete_when": None}, "delete_when"),
        (CleanupPolicy, {"delete_when": ["never"]}, "delete_when"),
        (CleanupPolicy, {"keep_for": "soon"}, "keep_for"),
        (CleanupPolicy, {"keep_for": -1}, "keep_for"),
        (CleanupPolicy, {"keep_for": None}, "keep_for"),
        (Evolution, {"handler_version": 0}, "handler_version"),
        (Evolution, {"handler_version": -1}, "handler_version"),
        (Evolution, {"handler_version": True}, "handler_version"),
        (Evolution, {"handler_version": 1.0}, "handler_version"),
        (Evolution, {"handler_version": "2"}, "handler_version"),
        (Evolution, {"handler_version": 2**31}, "handler_version"),
        (Evolution, {"on_handler_version_change": "all"}, "on_handler_version_change"),
        (Evolution, {"reconcile_on_trigger_change": None}, "reconcile_on_trigger_change"),
        (Evolution, {"reconcile_on_trigger_change": 1}, "reconcile_on_trigger_change"),
        (Monitoring, {"enabled": "yes"}, "enabled"),
        (Monitoring, {"scrape_mode": "global"}, "scrape_mode"),
        (Monitoring, {"push_interval": 0}, "push_interval"),
        (Monitoring, {"push_interval": "x"}, "push_interval"),
        (Monitoring, {"read_preference": "SECONDARY"}, "read_preference"),
    ],
)
def test_what_is_no_option_is_refused_with_what_would_be_right(
    policy: Any, options: dict[str, Any], wrong: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        policy(**options)
    assert caught.value.option == wrong
    assert caught.value.value == options[wrong]
    assert caught.value.expected


def test_choices_are_named_in_the_message() -> None:
    with pytest.raises(ConfigurationError, match="'none' or 'reprocess_failed' or 'reprocess_all'"):
        Evolution(on_handler_version_change="sometimes")  # pyright: ignore[reportArgumentType] - the point


@pytest.mark.parametrize("policy", [CleanupPolicy(), Evolution(), Monitoring()])
def test_policies_are_values(policy: Any) -> None:
    assert policy == type(policy)()
    assert hash(policy) == hash(type(policy)())
    with pytest.raises(AttributeError):
        policy.handler_version = 2
