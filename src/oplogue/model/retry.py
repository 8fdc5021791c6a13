"""Retry policies: how long a failed run waits, and when the record is failed for good.

An attempt is counted when it begins, so after the first failure one attempt has been made. Delays are the
policy's alone, without jitter: what a user writes is what happens.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from typing import ClassVar, Unpack, cast

from oplogue.errors import ConfigurationError
from oplogue.model.cron import CronSchedule
from oplogue.model.documents import is_document
from oplogue.model.durations import DurationLike, format_duration, parse_duration
from oplogue.model.retry_limits import (
    LONGEST_DELAY,
    LimitedPolicy,
    Limits,
    aware,
)

_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, init=False, repr=False)
class Fixed(LimitedPolicy):
    """The same wait after every failure.

    >>> Fixed("1h", max_attempts=-1)
    Fixed(interval='1h', max_attempts=-1)
    """

    interval: timedelta
    kind: ClassVar[str] = "fixed"

    def __init__(self, interval: DurationLike, **limits: Unpack[Limits]) -> None:
        self._assign(interval=parse_duration(interval, option="interval"))
        self._limit(limits)

    def _delay(self, attempt: int) -> timedelta:
        return self.interval

    def options(self) -> dict[str, object]:
        return {"interval": format_duration(self.interval)}


@dataclass(frozen=True, init=False, repr=False)
class Linear(LimitedPolicy):
    """The nth wait is n times the interval.

    >>> Linear("10s").delay_after(3, datetime(2026, 1, 1))
    datetime.timedelta(seconds=30)
    """

    interval: timedelta
    kind: ClassVar[str] = "linear"

    def __init__(self, interval: DurationLike, **limits: Unpack[Limits]) -> None:
        self._assign(interval=parse_duration(interval, option="interval"))
        self._limit(limits)

    def _delay(self, attempt: int) -> timedelta:
        try:
            return self.interval * attempt
        except OverflowError:
            return LONGEST_DELAY

    def options(self) -> dict[str, object]:
        return {"interval": format_duration(self.interval)}


@dataclass(frozen=True, init=False, repr=False)
class Exponential(LimitedPolicy):
    """The first wait is ``min``; each one is ``factor`` times the one before, up to ``max``.

    >>> policy = Exponential(min="10s", max="1m")
    >>> [policy.delay_after(attempt, datetime(2026, 1, 1)).seconds for attempt in (1, 2, 3, 4)]
    [10, 20, 40, 60]
    """

    min: timedelta
    max: timedelta
    factor: float
    kind: ClassVar[str] = "exponential"

    def __init__(
        self,
        min: DurationLike = "10s",
        max: DurationLike = "1d",
        factor: float = 2,
        **limits: Unpack[Limits],
    ) -> None:
        shortest = parse_duration(min, option="min")
        longest = parse_duration(max, option="max")
        if shortest > longest:
            raise ConfigurationError(
                "longer than max", option="min", value=min, expected=f"at most {format_duration(longest)}"
            )
        self._assign(min=shortest, max=longest, factor=_growth(factor))
        self._limit(limits)

    def _delay(self, attempt: int) -> timedelta:
        if not self.min:
            return self.min
        # Logarithms first: the power itself would overflow, or take for ever, where the cap is long reached.
        if (attempt - 1) * math.log(self.factor) >= math.log(self.max / self.min) + 1:
            return self.max
        delay = self.min / _MILLISECOND * self.factor ** (attempt - 1)
        return self.max if delay >= self.max / _MILLISECOND else timedelta(milliseconds=round(delay))

    def options(self) -> dict[str, object]:
        return {"min": format_duration(self.min), "max": format_duration(self.max), "factor": self.factor}


@dataclass(frozen=True, init=False, repr=False)
class Series(LimitedPolicy):
    """Waits one by one; the last one repeats.

    >>> Series(["1m", "5m"], max_attempts=10).intervals
    (datetime.timedelta(seconds=60), datetime.timedelta(seconds=300))
    """

    intervals: tuple[timedelta, ...]
    kind: ClassVar[str] = "series"

    def __init__(self, intervals: Iterable[DurationLike], **limits: Unpack[Limits]) -> None:
        self._assign(intervals=_delays(intervals))
        self._limit(limits)

    def _delay(self, attempt: int) -> timedelta:
        return self.intervals[min(attempt, len(self.intervals)) - 1]

    def options(self) -> dict[str, object]:
        return {"intervals": [format_duration(interval) for interval in self.intervals]}


@dataclass(frozen=True, init=False, repr=False)
class CronRetry(LimitedPolicy):
    """Retries at the times of a cron expression.

    >>> CronRetry("0 * * * *").delay_after(1, datetime(2026, 1, 1, 9, 45))
    datetime.timedelta(seconds=900)
    """

    expression: str
    tz: str
    schedule: CronSchedule = field(init=False, compare=False)
    kind: ClassVar[str] = "cron"

    def __init__(self, expression: str, tz: str | tzinfo | None = None, **limits: Unpack[Limits]) -> None:
        schedule = CronSchedule(expression, tz)
        self._assign(expression=schedule.expression, tz=schedule.tz, schedule=schedule)
        self._limit(limits)

    @property
    def first_delay(self) -> timedelta | None:
        """None: the wait depends on the time of day."""
        return None

    def delay_after(self, attempt: int, now: datetime) -> timedelta:
        """How long it is until the expression's next time."""
        return self.schedule.next_after(now) - aware(now)

    def options(self) -> dict[str, object]:
        return {"expression": self.expression, "tz": None if self.tz == "UTC" else self.tz}


RetryPolicy = Fixed | Linear | Exponential | Series | CronRetry

_KINDS: dict[str, type[RetryPolicy]] = {
    policy.kind: policy for policy in (Fixed, Linear, Exponential, Series, CronRetry)
}


def describe(policy: RetryPolicy) -> dict[str, object]:
    """The policy as plain data, to be stored and shown.

    >>> describe(Fixed("1h"))["interval"]
    '1h'
    """
    longest = policy.max_duration
    return {
        "type": policy.kind,
        **policy.options(),
        "max_attempts": policy.max_attempts,
        "max_duration": None if longest is None else format_duration(longest),
        "reset_retries_on_data_change": policy.reset_retries_on_data_change,
    }


def policy_from(description: Mapping[str, object]) -> RetryPolicy:
    """The policy that ``describe`` described.

    >>> policy_from(describe(Exponential(max="1h"))) == Exponential(max="1h")
    True
    """
    options = dict(description)
    kind = _KINDS.get(str(options.pop("type", None)))
    if kind is None:
        raise ConfigurationError(
            "no such policy", option="type", value=description.get("type"), expected=" or ".join(_KINDS)
        )
    try:
        return cast("Callable[..., RetryPolicy]", kind)(**options)
    except TypeError as error:
        raise ConfigurationError(
            str(error), option="retry_policy", value=description, expected="what describe() gave"
        ) from None


def _growth(factor: object) -> float:
    number = factor if isinstance(factor, int | float) and not isinstance(factor, bool) else math.nan
    # Neither nan nor infinity lies between these.
    if 1 <= number <= sys.float_info.max:
        return number
    raise ConfigurationError("not a growth", option="factor", value=factor, expected="a number from 1")


def _delays(intervals: object) -> tuple[timedelta, ...]:
    if isinstance(intervals, str) or is_document(intervals) or not isinstance(intervals, Iterable):
        problem, values = "not a list", []
    else:
        values = list(cast("Iterable[DurationLike]", intervals))
        problem = None if values else "empty"
    if problem is not None:
        raise ConfigurationError(
            problem,
            option="intervals",
            value=cast("object", intervals),
            expected="durations, such as ['1m', '5m', '15m']",
        )
    return tuple(parse_duration(value, option=f"intervals[{place}]") for place, value in enumerate(values))
