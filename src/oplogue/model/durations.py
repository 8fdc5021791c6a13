"""Durations as users write them.

Text is exact: ``"0.1s"`` is 100 ms, whatever binary fractions make of 0.1. Months and years are refused: they
have no fixed length. The database's dates have whole milliseconds, so durations have too.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta
from fractions import Fraction

from oplogue.errors import ConfigurationError

DurationLike = timedelta | int | float | str

EXPECTED = "a timedelta, a number of seconds, or a text such as '500ms', '10s', '5m 20s', '1h', '7d', '1w'"

# From the largest to the smallest: the order in which the parts of a text must stand.
_UNITS = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}

_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)[ \t]*(ms|[wdhms])[ \t]*")
_CALENDAR = re.compile(r"[0-9][ \t]*(M|y|Y|mo|mon|month|yr|year)s?\b")
_LONGEST_TEXT = 100


def parse_duration(
    value: DurationLike, *, option: str, task: str | None = None, minimum: timedelta | None = None
) -> timedelta:
    """A timedelta of whole milliseconds; a ``ConfigurationError`` that names the option if it is none.

    >>> parse_duration("5m 20s", option="debounce")
    datetime.timedelta(seconds=320)
    >>> parse_duration(0.5, option="debounce")
    datetime.timedelta(microseconds=500000)
    >>> parse_duration("5", option="debounce")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    oplogue.errors.ConfigurationError: debounce='5': not a duration; expected a timedelta, ...
    """
    try:
        duration = timedelta(milliseconds=_milliseconds(value))
    except OverflowError:
        raise _refused("too long", value, option, task) from None
    except _NotADurationError as error:
        raise _refused(error.problem, value, option, task) from None
    if minimum is not None and duration < minimum:
        least = format_duration(minimum)
        raise ConfigurationError(
            "too short", option=option, value=value, expected=f"at least {least}", task=task
        )
    return duration


def format_duration(duration: timedelta) -> str:
    """The duration as text that ``parse_duration`` reads back.

    >>> format_duration(timedelta(minutes=5, seconds=20)), format_duration(timedelta(0))
    ('5m 20s', '0s')
    """
    left = round(_exact(duration))
    if left < 0:
        return f"-{format_duration(-duration)}"
    parts: list[str] = []
    for unit, length in _UNITS.items():
        count, left = divmod(left, length)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts) or "0s"


class _NotADurationError(Exception):
    def __init__(self, problem: str) -> None:
        self.problem = problem
        super().__init__(problem)


def _milliseconds(value: object) -> int:
    match value:
        case bool():
            raise _NotADurationError("not a duration")
        case timedelta():
            exact = _exact(value)
        case str():
            exact = _parsed(value)
        case int() | float():
            if not math.isfinite(value):
                raise _NotADurationError("not a duration")
            exact = Fraction(value) * 1_000
        case _:
            raise _NotADurationError("not a duration")
    if exact < 0:
        raise _NotADurationError("negative")
    return round(exact)


def _exact(duration: timedelta) -> Fraction:
    """In milliseconds; a division of timedeltas is a float, which is too coarse for centuries."""
    return Fraction(duration // timedelta(microseconds=1), 1_000)


def _parsed(text: str) -> Fraction:
    stripped = text.strip()
    if stripped.startswith("-"):
        raise _NotADurationError("negative")
    if _CALENDAR.search(stripped):
        raise _NotADurationError("months and years have no fixed length")
    if not stripped or len(stripped) > _LONGEST_TEXT:
        raise _NotADurationError("not a duration")
    total, position, allowed = Fraction(0), 0, list(_UNITS)
    while position < len(stripped):
        part = _PART.match(stripped, position)
        if part is None:
            raise _NotADurationError("not a duration")
        number, unit = part.groups()
        if unit not in allowed:
            raise _NotADurationError("each unit may stand once, the larger before the smaller")
        allowed = allowed[allowed.index(unit) + 1 :]
        total += Fraction(number) * _UNITS[unit]
        position = part.end()
    return total


def _refused(problem: str, value: object, option: str, task: str | None) -> ConfigurationError:
    return ConfigurationError(problem, option=option, value=value, expected=EXPECTED, task=task)
