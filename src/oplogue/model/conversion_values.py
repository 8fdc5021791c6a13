"""Converters of single values: plain ones, arrays, mappings, unions, choices.

Each takes a value and its path, and returns what its annotation asks for or raises an error with the path.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from oplogue.errors import DocumentConversionError
from oplogue.model.documents import is_array, is_document

Converter = Callable[[object, str], object]
"""Takes a value and its path."""

_LONGEST = 80


def mismatch(path: str, expected: str, value: object) -> DocumentConversionError:
    """The error of a value that is not what was expected.

    >>> raise mismatch("Order.items[2].price", "float", "x")
    Traceback (most recent call last):
    oplogue.errors.DocumentConversionError: Order.items[2].price: expected float, got str 'x'
    """
    return DocumentConversionError(f"{path}: expected {expected}, got {described(value)}")


def described(value: object) -> str:
    """The value's type and a beginning of its text."""
    if value is None:
        return "None"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= _LONGEST else text[: _LONGEST - 1] + '…'}"


def name_of(annotation: object) -> str:
    """The annotation as a reader of an error would write it.

    >>> name_of(int), name_of(list[int]), name_of(type(None))
    ('int', 'list[int]', 'None')
    """
    if annotation is type(None):
        return "None"
    if isinstance(annotation, type) and not hasattr(annotation, "__origin__"):
        return annotation.__name__
    return str(annotation).replace("typing.", "")


def as_it_is(value: object, path: str) -> object:
    """No conversion."""
    return value


def leaf(cls: type[Any]) -> Converter | None:
    """The converter to a plain class; None for a class that no value can be checked against."""
    if special := _SPECIAL.get(cls):
        return special
    try:
        isinstance(None, cls)
    except TypeError:
        return None
    return Instance(cls)


@dataclass(frozen=True, slots=True)
class Instance:
    """A value that is of the class already."""

    cls: type[Any]

    def __call__(self, value: object, path: str) -> object:
        if not isinstance(value, self.cls):
            raise mismatch(path, name_of(self.cls), value)
        return value


@dataclass(frozen=True, slots=True)
class Member:
    """A member of an enumeration, by its value."""

    cls: type[Enum]

    def __call__(self, value: object, path: str) -> object:
        try:
            return self.cls(value)
        except ValueError:
            choices = ", ".join(repr(member.value) for member in self.cls)
            raise mismatch(path, f"{self.cls.__name__} ({choices})", value) from None


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the values of a ``Literal``."""

    annotation: object
    allowed: tuple[object, ...]

    def __call__(self, value: object, path: str) -> object:
        # 1 == True, but Literal[1] doesn't mean True.
        if not any(type(value) is type(choice) and value == choice for choice in self.allowed):
            raise mismatch(path, name_of(self.annotation), value)
        return value


@dataclass(frozen=True, slots=True)
class Union:
    """The first member that fits; one of exactly the value's type before others."""

    annotation: object
    members: tuple[tuple[object, Converter], ...]

    def __call__(self, value: object, path: str) -> object:
        exact = [convert for member, convert in self.members if member is type(value)]
        others = [
            convert
            for member, convert in self.members
            if member is not type(value) and member is not type(None)
        ]
        for convert in exact + others:
            try:
                return convert(value, path)
            except DocumentConversionError:
                # Of the one kind that it can be, the error within tells more than that nothing fits.
                if len(exact + others) == 1 and value is not None:
                    raise
        raise mismatch(path, name_of(self.annotation), value)


@dataclass(frozen=True, slots=True)
class Array:
    """An array whose members are all alike."""

    annotation: object
    make: Callable[[list[object]], object]
    member: Converter

    def __call__(self, value: object, path: str) -> object:
        if not is_array(value):
            raise mismatch(path, name_of(self.annotation), value)
        members = [self.member(item, f"{path}[{place}]") for place, item in enumerate(value)]
        try:
            return self.make(members)
        except TypeError as error:  # a set of what can't be hashed
            raise DocumentConversionError(f"{path}: {error}") from error


@dataclass(frozen=True, slots=True)
class Tuple:
    """An array of fixed length."""

    annotation: object
    members: tuple[Converter, ...]

    def __call__(self, value: object, path: str) -> object:
        if not is_array(value) or len(value) != len(self.members):
            raise mismatch(path, name_of(self.annotation), value)
        pairs = enumerate(zip(self.members, value, strict=True))
        return tuple(convert(item, f"{path}[{place}]") for place, (convert, item) in pairs)


@dataclass(frozen=True, slots=True)
class Mapped:
    """A document taken as a mapping."""

    annotation: object
    key: Converter = as_it_is
    member: Converter = as_it_is
    make: Callable[[Any], object] | None = None

    def __call__(self, value: object, path: str) -> object:
        if not is_document(value):
            raise mismatch(path, name_of(self.annotation), value)
        if self.make is not None:
            return self.make(value)
        if self.key is as_it_is and self.member is as_it_is:
            return value
        return {
            self.key(key, f"{path}, key {key!r}"): self.member(member, f"{path}[{key!r}]")
            for key, member in value.items()
        }


def _integer(value: object, path: str) -> object:
    # Other languages' drivers store whole numbers as doubles.
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise mismatch(path, "int", value)
    return value


def _number(value: object, path: str) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise mismatch(path, "float", value)
    return float(value)


def _decimal(value: object, path: str) -> object:
    to_decimal = getattr(value, "to_decimal", None)
    if callable(to_decimal):
        return to_decimal()
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise mismatch(path, "Decimal", value)
    return Decimal(value)


def _date(value: object, path: str) -> object:
    if not isinstance(value, datetime):
        raise mismatch(path, "date", value)
    return value.date()


def _uuid(value: object, path: str) -> object:
    as_uuid = getattr(value, "as_uuid", None)
    if isinstance(value, UUID) or not callable(as_uuid):
        return Instance(UUID)(value, path)
    try:
        return as_uuid()
    except ValueError:
        raise mismatch(path, "UUID", value) from None


_SPECIAL: dict[type[Any], Converter] = {
    int: _integer,
    float: _number,
    Decimal: _decimal,
    date: _date,
    UUID: _uuid,
}
