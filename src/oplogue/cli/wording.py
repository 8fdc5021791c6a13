"""Values as people read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

FOREVER = datetime(9000, 1, 1, tzinfo=UTC)
"""What is later has no end."""

_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def span(time: timedelta) -> str:
    """A length of time in its two largest units.

    >>> span(timedelta(seconds=0.25)), span(timedelta(minutes=3, seconds=5)), span(timedelta(days=2, minutes=1))
    ('0.2s', '3m 5s', '2d')
    """
    seconds = abs(time.total_seconds())
    if seconds < 10:
        return f"{seconds:.1f}".removesuffix(".0") + "s"
    rest, place = int(seconds), 0
    while rest < _UNITS[place][1]:
        place += 1
    parts: list[str] = []
    for unit, size in _UNITS[place : place + 2]:
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts)


def ago(moment: datetime | None, now: datetime) -> str:
    """How long ago, or in how long.

    >>> noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    >>> ago(noon - timedelta(minutes=3), noon), ago(noon + timedelta(hours=2), noon), ago(None, noon)
    ('3m ago', 'in 2h', '–')
    """
    if moment is None:
        return "–"
    if moment > now:
        return f"in {span(moment - now)}"
    return f"{span(now - moment)} ago"


def until(moment: datetime) -> str:
    """Until when, to the second, in UTC.

    >>> until(datetime(2026, 1, 1, 12, tzinfo=UTC)), until(datetime(9999, 12, 31, tzinfo=UTC))
    ('until 2026-01-01 12:00:00 UTC', 'until it is resumed')
    """
    return "until it is resumed" if moment >= FOREVER else f"until {stamp(moment)}"


def stamp(moment: datetime | None) -> str:
    """A date and time in UTC, to the second."""
    return "–" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def count_of(number: int, noun: str) -> str:
    """So many of something.

    >>> count_of(1, "record"), count_of(12_345, "record")
    ('1 record', '12,345 records')
    """
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
