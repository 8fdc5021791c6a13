"""Fields as they come from documents: dates become aware UTC, whatever the user's codec makes of them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

from bson.datetime_ms import DatetimeMS

_EARLIEST = datetime(1, 1, 1, tzinfo=UTC)
_LATEST = datetime(9999, 12, 31, tzinfo=UTC)


def aware(moment: datetime | DatetimeMS) -> datetime:
    """A date as aware UTC; naive ones are UTC already. One out of Python's range becomes the last in it."""
    if isinstance(moment, DatetimeMS):
        return _LATEST if int(moment) > 0 else _EARLIEST
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def document_in(value: Any) -> dict[str, Any]:
    """A sub-document; empty where it is missing, or was edited by hand into something else."""
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def list_in(value: Any) -> list[Any]:
    """An array; empty where it is missing, or was edited by hand into something else."""
    return cast(list[Any], value) if isinstance(value, list) else []


def aware_or_none(value: Any) -> datetime | None:
    """The same for a field that may be missing, null, or edited by hand into something else."""
    return aware(value) if isinstance(value, (datetime, DatetimeMS)) else None
