from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oplogue.errors import ConfigurationError
from oplogue.model.retry import (
    CronRetry,
    Exponential,
    Fixed,
    Linear,
    RetryPolicy,
    Series,
    describe,
    policy_from,
)
from oplogue.model.retry_limits import LONGEST_DELAY

NOW = datetime(2026, 1, 1, 9, 45, tzinfo=UTC)
SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)

POLICIES: list[RetryPolicy] = [
    Fixed("1h"),
    Fixed(0, max_attempts=-1),
    Linear("10s", max_duration="1d"),
    Linear("10s", max_duration="1d", max_attempts=3),
    Exponential(),
    Exponential(min="500ms", max="1h", factor=1.5, reset_retries_on_data_change=False),
    Series(["1m", 0, timedelta(hours=1)], max_attempts=10),
    CronRetry("0 * * * *"),
    CronRetry("0 3 * * *", "Europe/Prague", max_attempts=1),
]


def seconds(policy: RetryPolicy, attempts: int) -> list[float]:
    return [policy.delay_after(attempt, NOW).total_seconds() for attempt in range(1, attempts + 1)]


@pytest.mark.parametrize(
    ("policy", "delays"),
    [
        (Fixed("10s"), [10, 10, 10]),
        (Fixed(0), [0, 0]),
        (Linear("10s"), [10, 20, 30]),
        (Exponential(), [10, 20, 40, 80]),
        (Exponential(min="10s", max="30s"), [10, 20, 30, 30]),
        (Exponential(min="1s", factor=1), [1, 1, 1]),
        (Exponential(min="1s", factor=1.5), [1, 1.5, 2.25, 3.375, 5.062]),
        (Exponential(min=0, max=0), [0, 0]),
        (Exponential(min=0), [0, 0]),
        (Exponential(min="5s", max="5s"), [5, 5]),
        (Series(["1m", "5m"]), [60, 300, 300, 300]),
        (Series([0]), [0, 0]),
        (CronRetry("0 * * * *"), [900, 900]),
        (CronRetry("0 12 * * *", tz="Europe/Prague"), [75 * 60]),
    ],
)
def test_delays_are_those_that_the_user_wrote(policy: RetryPolicy, delays: list[float]) -> None:
    assert seconds(policy, len(delays)) == delays


@given(
    st.integers(0, 10**6),
    st.integers(0, 10**9),
    st.floats(1, 100),
    st.lists(st.integers(1, 10**9), min_size=2, max_size=5),
)
def test_exponential_delays_grow_up_to_their_cap(
    least: int, more: int, factor: float, attempts: list[int]
) -> None:
    policy = Exponential(min=least / 1000, max=(least + more) / 1000, factor=factor)
    delays = [policy.delay_after(attempt, NOW) for attempt in sorted(attempts)]
    assert delays == sorted(delays)
    assert all(policy.min <= delay <= policy.max for delay in delays)


@pytest.mark.parametrize(
    "policy", [*POLICIES, Linear("1w"), Exponential(max="50000w", factor=1e300), Fixed("50000w")]
)
def test_no_number_of_attempts_overflows(policy: RetryPolicy) -> None:
    for attempt in (-5, 0, 10**6, 10**18):
        delay = policy.delay_after(attempt, NOW)
        assert timedelta(0) <= delay <= LONGEST_DELAY
        assert NOW + delay > NOW - SECOND


def test_the_first_delay_is_that_after_one_attempt() -> None:
    assert Exponential().first_delay == 10 * SECOND
    assert Linear("7s").first_delay == 7 * SECOND
    assert Series(["1m", "5m"]).first_delay == 60 * SECOND
    assert Fixed(0).first_delay == timedelta(0)
    assert CronRetry("0 * * * *").first_delay is None


def test_a_cron_delay_takes_a_naive_now_as_utc() -> None:
    assert CronRetry("0 * * * *").delay_after(1, NOW.replace(tzinfo=None)) == 900 * SECOND


@pytest.mark.parametrize(
    ("limits", "attempts"),
    [
        ({}, 5),
        ({"max_attempts": None}, 5),
        ({"max_attempts": 1}, 1),
        ({"max_attempts": -1}, -1),
        ({"max_duration": "1h"}, -1),
        ({"max_duration": "1h", "max_attempts": None}, -1),
        ({"max_duration": "1h", "max_attempts": 3}, 3),
    ],
)
def test_attempts_are_limited_unless_the_time_is(limits: dict[str, Any], attempts: int) -> None:
    assert Fixed("1s", **limits).max_attempts == attempts


@pytest.mark.parametrize("attempts", [0, -2, True, False, 2.0, "5", float("nan")])
def test_what_is_no_number_of_attempts_is_refused(attempts: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Exponential(max_attempts=attempts)
    assert caught.value.option == "max_attempts"


@pytest.mark.parametrize(
    ("policy", "attempts", "since", "over"),
    [
        (Fixed(1), 4, timedelta(days=999), False),
        (Fixed(1), 5, timedelta(0), True),
        (Fixed(1), 6, None, True),
        (Fixed(1, max_attempts=1), 1, None, True),
        (Fixed(1, max_attempts=-1), 10**9, timedelta(days=999), False),
        (Fixed(1, max_duration="1h"), 10**9, timedelta(hours=1), False),
        (Fixed(1, max_duration="1h"), 1, timedelta(hours=1, milliseconds=1), True),
        (Fixed(1, max_duration="1h"), 1, None, False),
        (Fixed(1, max_duration="1h", max_attempts=2), 2, timedelta(0), True),
        (Fixed(1, max_duration=0), 1, timedelta(0), False),
        (Fixed(1, max_duration=0), 1, timedelta(milliseconds=1), True),
    ],
)
def test_a_policy_gives_up_by_attempts_or_by_time(
    policy: RetryPolicy, attempts: int, since: timedelta | None, over: bool
) -> None:
    first_error_at = None if since is None else NOW - since
    assert policy.gives_up(attempts, first_error_at, NOW) is over


def test_naive_and_aware_times_are_compared_as_utc() -> None:
    policy = Fixed(1, max_duration="1h")
    assert policy.gives_up(1, (NOW - 2 * timedelta(hours=1)).replace(tzinfo=None), NOW)


@pytest.mark.parametrize(
    ("build", "option"),
    [
        (lambda: Fixed("soon"), "interval"),
        (lambda: Fixed(-1), "interval"),
        (lambda: Linear("1y"), "interval"),
        (lambda: Exponential(min="5"), "min"),
        (lambda: Exponential(max="x"), "max"),
        (lambda: Exponential(min="2d"), "min"),
        (lambda: Exponential(min="10s", max="5s"), "min"),
        (lambda: Exponential(factor=0.5), "factor"),
        (lambda: Exponential(factor=0), "factor"),
        (lambda: Exponential(factor=float("nan")), "factor"),
        (lambda: Exponential(factor=float("inf")), "factor"),
        (lambda: Exponential(factor=10**400), "factor"),
        (lambda: Exponential(factor=True), "factor"),
        (lambda: Exponential(factor="2"), "factor"),  # pyright: ignore[reportArgumentType] - the point
        (lambda: Series([]), "intervals"),
        (lambda: Series("1m"), "intervals"),
        (lambda: Series({"1m": 1}), "intervals"),
        (lambda: Series(5), "intervals"),  # pyright: ignore[reportArgumentType] - the point
        (lambda: Series(["1m", "soon"]), "intervals[1]"),
        (lambda: CronRetry("soon"), "expression"),
        (lambda: CronRetry("0 3 * * *", tz="Mars/Olympus"), "tz"),
        (lambda: Fixed(1, max_duration="x"), "max_duration"),
        (lambda: Fixed(1, reset_retries_on_data_change=1), "reset_retries_on_data_change"),  # pyright: ignore[reportArgumentType] - the point
    ],
)
def test_what_is_no_policy_is_refused_by_its_option(build: Any, option: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        build()
    assert caught.value.option == option
    assert caught.value.expected


def test_an_unknown_option_is_pythons_own_error() -> None:
    with pytest.raises(TypeError, match="jitter"):
        Fixed(1, jitter=True)  # pyright: ignore[reportCallIssue] - the point


def test_attributes_hold_what_was_understood() -> None:
    policy = Exponential(min="10s", max=3600, max_duration="1d")
    assert (policy.min, policy.max, policy.factor) == (10 * SECOND, 3600 * SECOND, 2)
    assert (policy.max_attempts, policy.max_duration) == (-1, DAY)
    assert policy.reset_retries_on_data_change
    assert Series(iter(["1m", 5])).intervals == (60 * SECOND, 5 * SECOND)
    assert CronRetry("0  3 * * *").expression == "0 3 * * *"
    assert CronRetry("0 3 * * *").tz == "UTC"


@pytest.mark.parametrize("policy", POLICIES)
def test_a_description_is_plain_data_that_gives_the_policy_back(policy: RetryPolicy) -> None:
    stored = json.loads(json.dumps(describe(policy)))
    assert policy_from(stored) == policy
    assert type(policy_from(stored)) is type(policy)


@pytest.mark.parametrize(
    "description",
    [{}, {"type": "magic"}, {"type": None}, {"type": "fixed"}, {"type": "fixed", "interval": 1, "x": 1}],
)
def test_a_description_of_nothing_is_refused(description: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        policy_from(description)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_repr_builds_the_policy(policy: RetryPolicy) -> None:
    assert eval(repr(policy)) == policy


def test_the_repr_is_short() -> None:
    assert repr(Fixed(3600)) == "Fixed(interval='1h')"
    assert repr(Series(["1m", "5m"], max_attempts=10)) == "Series(intervals=['1m', '5m'], max_attempts=10)"
    assert (
        repr(CronRetry("0 3 * * *", max_duration="1d"))
        == "CronRetry(expression='0 3 * * *', max_duration='1d')"
    )


def test_policies_are_values() -> None:
    assert Exponential() == Exponential(min=10, max="24h", factor=2, max_attempts=5)
    assert hash(Exponential()) == hash(Exponential(min=10))
    assert Fixed(1) != Linear(1)
    assert Fixed(1) != Fixed(1, max_attempts=6)
    assert dataclasses.replace(Exponential(), max_attempts=7) == Exponential(max_attempts=7)
    with pytest.raises(AttributeError):
        Fixed(1).interval = DAY  # pyright: ignore[reportAttributeAccessIssue] - the point
