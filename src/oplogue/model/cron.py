"""Cron expressions: five fields, or six with seconds in front, in a time zone.

A time that a change of the clocks skips runs right after it; a time that it repeats runs once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from oplogue.errors import ConfigurationError
from oplogue.model.durations import DurationLike, parse_duration

EXPECTED = (
    "five fields (minute, hour, day, month, weekday), or six with seconds in front, such as '0 3 * * *'"
)

_PREFIX = "CRON "
_SHORTEST_INTERVAL = timedelta(milliseconds=1)
_OFFSET = re.compile(r"UTC([+-])([0-9]{2}):([0-5][0-9])")

# Any date will do to see whether an expression ever fires: cronsim looks 50 years ahead, and within those
# every date falls on every day of the week.
_REFERENCE = datetime(2024, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, init=False)
class CronSchedule:
    """When a cron expression fires; ``tz`` is a zone's name, UTC by default.

    >>> nightly = CronSchedule("0 3 * * *", tz="Europe/Prague")
    >>> nightly.next_after(datetime(2026, 7, 1, tzinfo=UTC))
    datetime.datetime(2026, 7, 1, 1, 0, tzinfo=datetime.timezone.utc)
    """

    expression: str
    tz: str

    def __init__(self, expression: str, tz: str | tzinfo | None = None) -> None:
        if not isinstance(expression, str):  # pyright: ignore[reportUnnecessaryIsInstance] - users' input
            raise ConfigurationError(
                "not a cron expression", option="expression", value=expression, expected=EXPECTED
            )
        object.__setattr__(self, "expression", " ".join(expression.split()))
        object.__setattr__(self, "tz", _zone_name(tz))
        self._check()

    def next_after(self, moment: datetime) -> datetime:
        """The first time after the moment, aware UTC; a naive moment is UTC."""
        aware = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        for time in CronSim(self.expression, aware.astimezone(_zone(self.tz))):
            # In an hour that the clocks repeat, the wall's next time can be one that has passed.
            if (found := time.astimezone(UTC)) > aware:
                return found
        raise ValueError(f"{self} does not fire after {moment}")

    def __str__(self) -> str:
        return f"{self.expression} ({self.tz})"

    def _check(self) -> None:
        try:
            fires = next(CronSim(self.expression, _REFERENCE), None) is not None
        # Besides its own error, cronsim lets a few odd expressions through to Python's.
        except (CronSimError, AssertionError, TypeError, ValueError) as error:
            raise ConfigurationError(
                f"not a cron expression ({str(error).lower() or 'malformed'})",
                option="expression",
                value=self.expression,
                expected=EXPECTED,
            ) from None
        if not fires:
            raise ConfigurationError(
                "never fires", option="expression", value=self.expression, expected="a date that exists"
            )


def parse_interval(value: DurationLike, *, option: str) -> timedelta | CronSchedule:
    """A duration, or a schedule written as ``"CRON 0 3 * * *"``.

    >>> parse_interval("24h", option="cleanup_interval")
    datetime.timedelta(days=1)
    >>> parse_interval("CRON 0 3 * * *", option="cleanup_interval")
    CronSchedule(expression='0 3 * * *', tz='UTC')
    """
    if not (isinstance(value, str) and value.strip().upper().startswith(_PREFIX)):
        return parse_duration(value, option=option, minimum=_SHORTEST_INTERVAL)
    try:
        return CronSchedule(value.strip()[len(_PREFIX) :])
    except ConfigurationError as error:
        raise ConfigurationError(error.problem, option=option, value=value, expected=error.expected) from None


def _zone_name(tz: str | tzinfo | None) -> str:
    if tz is None:
        return "UTC"
    if isinstance(tz, timezone):
        name = str(tz)
    else:
        # Zones of other libraries do their arithmetic in ways of their own: only the name is taken.
        name = tz if isinstance(tz, str) else getattr(tz, "key", None) or getattr(tz, "zone", None)
    try:
        if isinstance(name, str) and name:
            _zone(name)
            return name
    except (KeyError, ValueError, OSError):
        pass
    raise ConfigurationError(
        "no such time zone", option="tz", value=tz, expected="a name such as 'Europe/Prague', or a ZoneInfo"
    )


def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    if offset := _OFFSET.fullmatch(name):
        sign, hours, minutes = offset.groups()
        distance = timedelta(hours=int(hours), minutes=int(minutes))
        return timezone(-distance if sign == "-" else distance)
    return ZoneInfo(name)
