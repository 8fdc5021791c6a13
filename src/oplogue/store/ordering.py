"""The server's order of values, for merging what several collections answer, each in this order.

Numbers are one type; the others stand in the order of BSON types. Texts compare by code points, as their bytes do.
"""

from __future__ import annotations

import math
import uuid
from datetime import datetime
from decimal import Decimal
from typing import Any

from bson import Binary, Decimal128, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64

from oplogue.store.fields import aware

(
    _LEAST,
    _NULL,
    _NUMBER,
    _TEXT,
    _DOCUMENT,
    _ARRAY,
    _BINARY,
    _ID,
    _BOOLEAN,
    _DATE,
    _TIMESTAMP,
    _REGEX,
    _OTHER,
    _MOST,
) = range(14)


class Ordered:
    """A value in that order, or in the reverse of it."""

    __slots__ = ("_direction", "_key")

    def __init__(self, value: Any, direction: int) -> None:
        self._key = order_key(value)
        self._direction = direction

    def __lt__(self, other: Ordered) -> bool:
        return self._key < other._key if self._direction > 0 else other._key < self._key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ordered) and self._key == other._key

    def __hash__(self) -> int:
        return hash(repr(self._key))


def order_key(value: Any) -> tuple[Any, ...]:
    """What Python orders as the server orders the values.

    >>> sorted([True, "b", 2, None, 1.5, "a"], key=order_key)
    [None, 1.5, 2, 'a', 'b', True]
    """
    match value:
        case None:
            return (_NULL,)
        case bool():
            return (_BOOLEAN, value)
        case int() | float() | Int64() | Decimal128():
            return (_NUMBER, *_number(value))
        case str():
            return (_TEXT, value)
        case datetime() | DatetimeMS():
            return (_DATE, _milliseconds(value))
        case dict():
            return (_DOCUMENT, _fields(value))  # pyright: ignore[reportUnknownArgumentType]
        case list() | tuple():
            return (_ARRAY, [order_key(one) for one in value])  # pyright: ignore[reportUnknownVariableType]
        case bytes() | uuid.UUID():
            return (_BINARY, *_binary(value))
        case _:
            return _rare(value)


def _rare(value: Any) -> tuple[Any, ...]:
    match value:
        case ObjectId():
            return (_ID, value.binary)
        case Timestamp():
            return (_TIMESTAMP, value.time, value.inc)
        case Regex():
            return (_REGEX, str(value.pattern))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
        case MinKey():
            return (_LEAST,)
        case MaxKey():
            return (_MOST,)
        case _:
            return (_OTHER, repr(value))


def _number(value: float | Decimal128) -> tuple[int, Decimal | float]:
    number = value.to_decimal() if isinstance(value, Decimal128) else value
    return (0, 0) if math.isnan(number) else (1, number)


def _milliseconds(value: datetime | DatetimeMS) -> int:
    if isinstance(value, DatetimeMS):
        return int(value)
    return int(DatetimeMS(aware(value)))


def _fields(document: dict[str, Any]) -> list[tuple[int, str, tuple[Any, ...]]]:
    keys = [(name, order_key(member)) for name, member in document.items()]
    return [(key[0], name, key) for name, key in keys]


def _binary(value: bytes | uuid.UUID) -> tuple[int, int, bytes]:
    if isinstance(value, uuid.UUID):
        return (16, 4, value.bytes)
    return (len(value), value.subtype if isinstance(value, Binary) else 0, bytes(value))
