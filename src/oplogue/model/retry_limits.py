"""What bounds a retry policy: a number of attempts, a time since the first failure, and a longest delay."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import ClassVar, TypedDict

from oplogue.errors import ConfigurationError
from oplogue.model.durations import DurationLike, format_duration, parse_duration

UNLIMITED = -1
DEFAULT_ATTEMPTS = 5

LONGEST_DELAY = timedelta(days=36_525)
"""A century: beyond it, the next run's date could be one that no date type holds."""


class Limits(TypedDict, total=False):
    """The options that every policy takes."""

    max_attempts: int | None
    max_duration: DurationLike | None
    reset_retries_on_data_change: bool


@dataclass(frozen=True, init=False, repr=False)
class LimitedPolicy:
    """What all retry policies have in common: the limits, and a bound on every delay."""

    max_attempts: int = field(kw_only=True)
    """``UNLIMITED``, or how many attempts there are in all, the first run included."""
    max_duration: timedelta | None = field(kw_only=True)
    """For how long after the first failure of a sequence there are retries."""
    reset_retries_on_data_change: bool = field(kw_only=True)

    kind: ClassVar[str]

    def _limit(self, limits: Limits) -> None:
        unknown = set(limits) - Limits.__optional_keys__
        if unknown:
            raise TypeError(f"{type(self).__name__}() got an unexpected argument {min(unknown)!r}")
        longest = limits.get("max_duration")
        reset: object = limits.get("reset_retries_on_data_change", True)
        if not isinstance(reset, bool):
            raise ConfigurationError(
                "neither true nor false",
                option="reset_retries_on_data_change",
                value=reset,
                expected="True or False",
            )
        duration = None if longest is None else parse_duration(longest, option="max_duration")
        attempts = _attempts(limits.get("max_attempts"), limited_by_time=duration is not None)
        self._assign(max_attempts=attempts, max_duration=duration, reset_retries_on_data_change=reset)

    def _assign(self, **values: object) -> None:
        """Fill in a frozen policy; for its constructor."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def first_delay(self) -> timedelta | None:
        """The wait after the first failure; None where it depends on the time of day."""
        return min(self._delay(1), LONGEST_DELAY)

    def delay_after(self, attempt: int, now: datetime) -> timedelta:
        """How long to wait after so many attempts, the failed one included."""
        # A record that was edited by hand may hold any number.
        return min(self._delay(max(attempt, 1)), LONGEST_DELAY)

    def gives_up(self, attempts: int, first_error_at: datetime | None, now: datetime) -> bool:
        """Whether there is no retry after so many attempts, the first of them failed then."""
        if self.max_attempts != UNLIMITED and attempts >= self.max_attempts:
            return True
        if self.max_duration is None or first_error_at is None:
            return False
        return aware(now) - aware(first_error_at) > self.max_duration

    def _delay(self, attempt: int) -> timedelta:
        raise NotImplementedError

    def options(self) -> dict[str, object]:
        """The policy's own options, as its constructor takes them."""
        raise NotImplementedError

    def __repr__(self) -> str:
        options = {name: value for name, value in self.options().items() if value is not None}
        usual = DEFAULT_ATTEMPTS if self.max_duration is None else UNLIMITED
        if self.max_attempts != usual:
            options["max_attempts"] = self.max_attempts
        if self.max_duration is not None:
            options["max_duration"] = format_duration(self.max_duration)
        if not self.reset_retries_on_data_change:
            options["reset_retries_on_data_change"] = False
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in options.items())})"


def aware(moment: datetime) -> datetime:
    """The moment as aware; a naive one is UTC."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def _attempts(value: object, *, limited_by_time: bool) -> int:
    if value is None:
        return UNLIMITED if limited_by_time else DEFAULT_ATTEMPTS
    if isinstance(value, int) and not isinstance(value, bool) and (value > 0 or value == UNLIMITED):
        return value
    raise ConfigurationError(
        "not a number of attempts",
        option="max_attempts",
        value=value,
        expected="1 or more, or -1 for unlimited",
    )
