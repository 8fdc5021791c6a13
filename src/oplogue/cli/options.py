"""Values of options. What is refused names the option, the value and what would be right."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from oplogue.errors import ConfigurationError


def seconds(text: str) -> float:
    """A length of time in seconds."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ConfigurationError(
            "not a length of time", option="--seconds", value=text, expected="seconds above 0, such as 10"
        )
    return value


def docs(text: str) -> int:
    """How many documents to write."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise ConfigurationError(
            "not a number of documents", option="--docs", value=text, expected="a whole number from 1"
        )
    return value


def processes(text: str) -> int:
    """How many processes to run."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 1 <= value <= 256:
        raise ConfigurationError(
            "not a number of processes",
            option="--processes",
            value=text,
            expected="a whole number from 1 to 256",
        )
    return value


def uri(text: str) -> str:
    """Where a MongoDB is."""
    from oplogue.store.connection import check_uri

    try:
        check_uri(text)
    except ConfigurationError as error:
        raise ConfigurationError(
            error.problem, option="--uri", value=error.value, expected=error.expected
        ) from None
    return text


def address(text: str, *, option: str) -> tuple[str, int]:
    """A host and a port. IPv6 addresses are in brackets: ``[::1]:8081``."""
    host, colon, port = text.rpartition(":")
    number = int(port) if port.isascii() and port.isdigit() else -1
    if not (colon and host) or not 0 <= number <= 65535 or (":" in host and not host.startswith("[")):
        raise ConfigurationError(
            "not an address", option=option, value=text, expected="HOST:PORT, such as 127.0.0.1:8081"
        )
    return host.strip("[]"), number


def whole(text: str, option: str, least: int, most: int) -> int:
    """A whole number in a range."""
    number = int(text) if text.isascii() and text.isdigit() else least - 1
    if not least <= number <= most:
        raise ConfigurationError(
            "not in range", option=option, value=text, expected=f"a whole number from {least} to {most:,}"
        )
    return number


def order(text: str) -> tuple[str, int]:
    """A field to sort by, with a minus for the largest first.

    >>> order("task"), order("-created_at")
    (('task', 1), ('created_at', -1))
    """
    return (text.removeprefix("-"), -1 if text.startswith("-") else 1)


def moment(text: str, option: str) -> datetime | timedelta:
    """A length of time, or a date and time; UTC where it doesn't say.

    >>> moment("2h", "--until"), moment("2030-01-31T08:00", "--until")
    (datetime.timedelta(seconds=7200), datetime.datetime(2030, 1, 31, 8, 0, tzinfo=datetime.timezone.utc))
    """
    from oplogue.model.durations import parse_duration

    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        pass
    else:
        return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    try:
        return parse_duration(text, option=option)
    except ConfigurationError:
        raise ConfigurationError(
            "neither a length of time nor a date",
            option=option,
            value=text,
            expected="'2h', '1d 12h' or '2030-01-31T08:00Z', say",
        ) from None
