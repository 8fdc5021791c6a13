"""Extended JSON: how values of a database are written and read as text."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from bson import ObjectId, json_util
from bson.binary import UuidRepresentation
from bson.errors import BSONError
from bson.json_util import JSONMode, JSONOptions

from oplogue.errors import ConfigurationError

_WRITTEN = JSONOptions(json_mode=JSONMode.RELAXED, uuid_representation=UuidRepresentation.STANDARD)
# A UUID stays binary: a client that was told of no representation could not send it.
_READ = JSONOptions(
    json_mode=JSONMode.RELAXED, uuid_representation=UuidRepresentation.UNSPECIFIED, tz_aware=True
)


def write_json(value: Any, *, indent: int | None = None) -> str:
    """The value as relaxed extended JSON; dataclasses are objects.

    >>> write_json({"_id": 5, "tags": ("a", None)})
    '{"_id": 5, "tags": ["a", null]}'
    """
    return json_util.dumps(_plain(value), json_options=_WRITTEN, indent=indent, ensure_ascii=False)


def read_json(text: str, *, option: str, expected: str) -> Any:
    """The value of a text in extended JSON; ConfigurationError for a text that is none.

    >>> read_json('{"$oid": "5f3c00000000000000000001"}', option="--id", expected="an id")
    ObjectId('5f3c00000000000000000001')
    """
    try:
        return json_util.loads(text, json_options=_READ)
    except (ValueError, TypeError, KeyError, BSONError) as error:
        raise ConfigurationError(
            f"not extended JSON: {error}", option=option, value=text, expected=expected
        ) from None


def read_id(text: str, *, option: str) -> Any:
    """An id: the 24 hexadecimal digits of an ObjectId, or any value in extended JSON.

    >>> read_id("5f3c00000000000000000001", option="--id"), read_id('"order-7"', option="--id")
    (ObjectId('5f3c00000000000000000001'), 'order-7')
    """
    if ObjectId.is_valid(text):
        return ObjectId(text)
    expected = """24 hexadecimal digits, or extended JSON: '"order-7"', '7', '{"$uuid": "..."}'"""
    return read_json(text, option=option, expected=expected)


def write_id(id_: Any) -> str:
    """An id as `read_id` takes it.

    >>> write_id(ObjectId("5f3c00000000000000000001")), write_id("order-7")
    ('5f3c00000000000000000001', '"order-7"')
    """
    return str(id_) if isinstance(id_, ObjectId) else write_json(id_)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple | list):
        return [_plain(member) for member in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, dict):
        return {str(name): _plain(member) for name, member in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return value
