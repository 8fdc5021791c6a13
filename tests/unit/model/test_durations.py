from __future__ import annotations

import contextlib
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oplogue.errors import ConfigurationError
from oplogue.model.durations import DurationLike, format_duration, parse_duration

milliseconds = st.integers(0, timedelta.max // timedelta(milliseconds=1))


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("500ms", 0.5),
        ("10s", 10),
        ("5m 20s", 320),
        ("5m20s", 320),
        ("1h", 3600),
        ("7d", 7 * 86400),
        ("1w", 7 * 86400),
        ("1w 1d 1h 1m 1s 1ms", 694861.001),
        ("1.5h", 5400),
        ("0.1s", 0.1),
        ("0s", 0),
        ("0.4ms", 0),
        ("  10s ", 10),
        ("10 s", 10),
        ("90m", 5400),
        (10, 10),
        (0, 0),
        (0.25, 0.25),
        (-0.0, 0),
        (0.0004, 0),
        (0.0006, 0.001),
        (timedelta(hours=1), 3600),
        (timedelta(microseconds=1501), 0.002),
    ],
)
def test_what_users_write_is_read(value: DurationLike, seconds: float) -> None:
    assert parse_duration(value, option="debounce") == timedelta(milliseconds=round(seconds * 1000))


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("", "not a duration"),
        ("   ", "not a duration"),
        ("5", "not a duration"),
        ("soon", "not a duration"),
        ("5x", "not a duration"),
        ("10s!", "not a duration"),
        ("1e3s", "not a duration"),
        (".5s", "not a duration"),
        ("5.s", "not a duration"),
        ("٥s", "not a duration"),
        ("+5s", "not a duration"),
        ("1h, 5m", "not a duration"),
        ("5H", "not a duration"),
        ("9" * 10_000 + "s", "not a duration"),
        ("-5s", "negative"),
        (-1, "negative"),
        (-0.001, "negative"),
        (timedelta(seconds=-1), "negative"),
        ("1mo", "months and years"),
        ("2 months", "months and years"),
        ("1M", "months and years"),
        ("1y", "months and years"),
        ("1d 1year", "months and years"),
        ("5s 1m", "larger before the smaller"),
        ("1m 1m", "larger before the smaller"),
        ("9" * 90 + "w", "too long"),
        (1e300, "too long"),
        (10**400, "too long"),
        (timedelta.max, "too long"),
        (float("nan"), "not a duration"),
        (float("inf"), "not a duration"),
        (float("-inf"), "not a duration"),
        (True, "not a duration"),
        (False, "not a duration"),
        (None, "not a duration"),
        (Decimal(5), "not a duration"),
        (["5s"], "not a duration"),
        (b"5s", "not a duration"),
    ],
)
def test_what_is_no_duration_is_refused(value: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem) as caught:
        parse_duration(value, option="debounce", task="sync-order")
    assert caught.value.option == "debounce"
    assert caught.value.task == "sync-order"
    assert "'5m 20s'" in str(caught.value)


def test_a_minimum_is_part_of_the_message() -> None:
    least = timedelta(seconds=1)
    assert parse_duration("1s", option="lease", minimum=least) == least
    with pytest.raises(ConfigurationError, match=r"lease='999ms': too short; expected at least 1s"):
        parse_duration("999ms", option="lease", minimum=least)


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(0), "0s"),
        (timedelta(milliseconds=500), "500ms"),
        (timedelta(minutes=5, seconds=20), "5m 20s"),
        (timedelta(days=1), "1d"),
        (timedelta(weeks=1, milliseconds=1), "1w 1ms"),
        (timedelta(seconds=-90), "-1m 30s"),
        (timedelta(microseconds=1), "0s"),
    ],
)
def test_durations_are_shown_briefly(duration: timedelta, text: str) -> None:
    assert format_duration(duration) == text


@given(milliseconds)
def test_text_is_read_back_as_it_was(count: int) -> None:
    duration = timedelta(milliseconds=count)
    assert parse_duration(format_duration(duration), option="x") == duration


@given(milliseconds)
def test_a_parsed_duration_stays_as_it_is(count: int) -> None:
    duration = timedelta(milliseconds=count)
    assert parse_duration(duration, option="x") == duration


@given(st.floats(0, 1e9))
def test_numbers_are_seconds_to_the_nearest_millisecond(seconds: float) -> None:
    parsed = parse_duration(seconds, option="x")
    assert parsed % timedelta(milliseconds=1) == timedelta(0)
    assert abs(parsed.total_seconds() - seconds) <= 0.000501


@given(st.text() | st.text(alphabet="0123456789. mshdwy-"))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigurationError):
        assert parse_duration(text, option="x") >= timedelta(0)
