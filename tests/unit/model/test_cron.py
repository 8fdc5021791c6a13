from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oplogue.errors import ConfigurationError
from oplogue.model.cron import CronSchedule, parse_interval

PRAGUE = ZoneInfo("Europe/Prague")


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("expression", "tz", "moment", "expected"),
    [
        ("0 3 * * *", None, "2026-01-01 00:00", "2026-01-01 03:00"),
        ("0 3 * * *", None, "2026-01-01 03:00", "2026-01-02 03:00"),
        ("0 3 * * *", None, "2026-01-01 02:59:59.999", "2026-01-01 03:00"),
        ("*/15 * * * *", None, "2026-01-01 10:01", "2026-01-01 10:15"),
        ("*/10 * * * * *", None, "2026-01-01 10:00:01", "2026-01-01 10:00:10"),
        ("0 9 * * MON", None, "2026-01-01 00:00", "2026-01-05 09:00"),
        ("0 0 L * *", None, "2026-02-01 00:00", "2026-02-28 00:00"),
        ("0 0 29 2 *", None, "2026-01-01 00:00", "2028-02-29 00:00"),
        ("0 3 * * *", "Europe/Prague", "2026-01-01 00:00", "2026-01-01 02:00"),
        ("0 3 * * *", "Europe/Prague", "2026-07-01 00:00", "2026-07-01 01:00"),
        ("0 3 * * *", PRAGUE, "2026-07-01 00:00", "2026-07-01 01:00"),
        ("0 3 * * *", timezone(timedelta(hours=-5, minutes=-30)), "2026-01-01 00:00", "2026-01-01 08:30"),
        # The clocks go forward at 01:00 UTC: half past two does not exist.
        ("30 2 * * *", PRAGUE, "2026-03-29 00:30", "2026-03-29 01:00"),
        ("30 2 * * *", PRAGUE, "2026-03-29 01:00", "2026-03-30 00:30"),
        # They go back at 01:00 UTC: half past two comes twice, and fires once.
        ("30 2 * * *", PRAGUE, "2026-10-25 00:00", "2026-10-25 00:30"),
        ("30 2 * * *", PRAGUE, "2026-10-25 00:30", "2026-10-26 01:30"),
        ("45 2 * * *", PRAGUE, "2026-10-25 01:30", "2026-10-26 01:45"),
        ("*/30 * * * *", PRAGUE, "2026-10-25 00:30", "2026-10-25 01:00"),
    ],
)
def test_the_next_time_is_that_of_the_zones_clocks(
    expression: str, tz: str | tzinfo | None, moment: str, expected: str
) -> None:
    found = CronSchedule(expression, tz).next_after(at(moment))
    assert found == at(expected)
    assert found.tzinfo is UTC


def test_a_naive_moment_is_utc() -> None:
    schedule = CronSchedule("0 3 * * *", "Asia/Tokyo")
    assert schedule.next_after(datetime(2026, 1, 1)) == schedule.next_after(datetime(2026, 1, 1, tzinfo=UTC))  # noqa: DTZ001 - the point


@given(
    st.sampled_from(["0 3 * * *", "15,45 2 * * *", "*/7 * * * *", "30 1-3 * * *", "*/20 */5 2 * * *"]),
    st.sampled_from(["UTC", "Europe/Prague", "America/New_York", "Australia/Lord_Howe"]),
    st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001 - bounds are naive
)
def test_the_next_time_is_always_later(expression: str, tz: str, moment: datetime) -> None:
    schedule = CronSchedule(expression, tz)
    found = schedule.next_after(moment)
    assert found > moment
    assert schedule.next_after(found - timedelta(microseconds=1)) == found


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "soon",
        "* * * *",
        "* * * * * * *",
        "60 * * * *",
        "* 24 * * *",
        "*/0 * * * *",
        "0 0 31 2 *",
        "L/2 * * * *",
        5,
    ],
)
def test_what_is_no_schedule_is_refused(expression: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        CronSchedule(expression)
    assert caught.value.option == "expression"
    assert caught.value.value == expression


@pytest.mark.parametrize("expression", ["0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 LW * */7"])
def test_a_schedule_that_never_fires_is_refused(expression: str) -> None:
    with pytest.raises(ConfigurationError):
        CronSchedule(expression)


@pytest.mark.parametrize("tz", ["Mars/Olympus", "", "../etc/passwd", "Europe", 5, "UTC+25:00", "a\x00b"])
def test_an_unknown_zone_is_refused(tz: Any) -> None:
    with pytest.raises(ConfigurationError, match="no such time zone") as caught:
        CronSchedule("0 3 * * *", tz)
    assert caught.value.option == "tz"


def test_a_zone_without_a_name_is_refused() -> None:
    class Nameless(tzinfo):
        pass

    with pytest.raises(ConfigurationError, match="no such time zone"):
        CronSchedule("0 3 * * *", Nameless())


def test_schedules_are_equal_by_expression_and_zone() -> None:
    schedule = CronSchedule("0  3 * * * ", PRAGUE)
    assert schedule == CronSchedule("0 3 * * *", "Europe/Prague")
    assert hash(schedule) == hash(CronSchedule("0 3 * * *", "Europe/Prague"))
    assert schedule != CronSchedule("0 3 * * *")
    assert CronSchedule("0 3 * * *") == CronSchedule("0 3 * * *", "UTC") == CronSchedule("0 3 * * *", UTC)
    assert str(schedule) == "0 3 * * * (Europe/Prague)"


@pytest.mark.parametrize(
    "tz", [UTC, timezone(timedelta(hours=5, minutes=30)), timezone(-timedelta(hours=3)), PRAGUE]
)
def test_a_zones_name_stands_for_it(tz: tzinfo) -> None:
    schedule = CronSchedule("0 3 * * *", tz)
    assert CronSchedule("0 3 * * *", schedule.tz) == schedule
    moment = datetime(2026, 7, 1, tzinfo=UTC)
    assert schedule.next_after(moment).astimezone(tz).hour == 3


def test_a_schedule_is_frozen() -> None:
    with pytest.raises(AttributeError):
        CronSchedule("0 3 * * *").expression = "x"  # pyright: ignore[reportAttributeAccessIssue] - the point


def test_an_interval_is_a_duration_or_a_schedule() -> None:
    assert parse_interval("24h", option="cleanup_interval") == timedelta(days=1)
    assert parse_interval(60, option="cleanup_interval") == timedelta(minutes=1)
    assert parse_interval("CRON 0 3 * * *", option="cleanup_interval") == CronSchedule("0 3 * * *")
    assert parse_interval("  cron 0 3 * * *", option="cleanup_interval") == CronSchedule("0 3 * * *")


@pytest.mark.parametrize("value", ["CRON", "CRON soon", "0 3 * * *", 0, "0s", "", -1])
def test_what_is_no_interval_is_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_interval(value, option="cleanup_interval")
    assert caught.value.option == "cleanup_interval"
    assert caught.value.value == value
