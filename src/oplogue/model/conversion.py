"""From a document to what a handler's annotation asks for.

A converter is built once, at registration, so that an annotation which nothing can convert to is refused
there. A document that does not fit names the field: ``Order.items[2].price: expected float, got str 'x'``.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import types
import typing
from collections.abc import Callable
from enum import Enum
from typing import Any, Literal, TypeVar, cast

from oplogue.errors import ConfigurationError
from oplogue.model.annotations import Scope, plain
from oplogue.model.conversion_records import dataclass_converter, is_model, model_converter
from oplogue.model.conversion_values import (
    Array,
    Choice,
    Converter,
    Mapped,
    Member,
    Tuple,
    Union,
    as_it_is,
    leaf,
    name_of,
)

_MAPPINGS: tuple[object, ...] = (dict, collections.abc.Mapping, collections.abc.MutableMapping)

_ARRAYS: dict[object, Callable[[list[object]], object]] = {
    list: list,
    tuple: tuple,
    set: set,
    frozenset: frozenset,
    collections.abc.Sequence: list,
    collections.abc.MutableSequence: list,
    collections.abc.Collection: list,
    collections.abc.Iterable: list,
}


def document_converter(annotation: object, scope: Scope) -> Callable[[object], object]:
    """A function from a whole document; a ``ConfigurationError`` if no document can be made into that.

    >>> @dataclasses.dataclass
    ... class Order:
    ...     id: int
    ...     total: float
    >>> document_converter(Order, {})({"_id": 1, "total": 5, "note": "x"})
    Order(id=1, total=5.0)
    """
    if not takes_documents(annotation):
        raise _unknown(annotation)
    converter = _Factory(scope).converter(annotation)
    root = _root(annotation)
    return lambda document: converter(document, root)


def takes_documents(annotation: object) -> bool:
    """Whether a document can be made into that, judged by its outermost type.

    >>> takes_documents(dict[str, int]), takes_documents(list[int])
    (True, False)
    """
    annotation = plain(annotation)
    if _is_union(annotation):
        return any(takes_documents(member) for member in typing.get_args(annotation))
    origin = typing.get_origin(annotation) or annotation
    if _is_anything(annotation) or typing.is_typeddict(origin) or origin in _MAPPINGS:
        return True
    if not isinstance(origin, type):
        return False
    cls = cast("type[Any]", origin)
    return issubclass(cls, dict) or dataclasses.is_dataclass(cls) or bool(is_model(cls))


class _Factory:
    """Makes converters for one handler. Classes that hold themselves need what was made before."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._made: dict[type, Converter] = {}

    def converter(self, annotation: object) -> Converter:
        annotation = plain(annotation)
        origin: object = typing.get_origin(annotation) or annotation
        arguments = typing.get_args(annotation)
        for make in (self._general, self._mapping, self._array, self._class):
            converter = make(annotation, origin, arguments)
            if converter is not None:
                return converter
        raise _unknown(annotation)

    def _general(self, annotation: object, origin: object, arguments: tuple[Any, ...]) -> Converter | None:
        if _is_anything(annotation):
            return as_it_is
        if _is_union(annotation):
            return Union(annotation, tuple((plain(a), self.converter(a)) for a in arguments))
        return Choice(annotation, arguments) if origin is Literal else None

    def _mapping(self, annotation: object, origin: object, arguments: tuple[Any, ...]) -> Converter | None:
        if typing.is_typeddict(origin):
            return Mapped(origin)
        if origin in _MAPPINGS:
            key, member = arguments or (str, Any)
            # Keys are text anyway: a document that needs no conversion is handed on as it is, not copied.
            by_key = as_it_is if key is str else self.converter(key)
            return Mapped(annotation, by_key, self.converter(member))
        if isinstance(origin, type) and issubclass(origin, dict):
            return Mapped(annotation, make=cast("Callable[[Any], object]", origin))
        return None

    def _array(self, annotation: object, origin: object, arguments: tuple[Any, ...]) -> Converter | None:
        if arguments and origin is tuple and arguments[1:] != (Ellipsis,):
            return Tuple(annotation, tuple(self.converter(argument) for argument in arguments))
        make = next((make for array, make in _ARRAYS.items() if array is origin), None)
        if make is None:
            return None
        return Array(annotation, make, self.converter(arguments[0]) if arguments else as_it_is)

    def _class(self, annotation: object, origin: object, arguments: tuple[Any, ...]) -> Converter | None:
        if not isinstance(origin, type):
            return None
        cls = cast("type[Any]", origin)
        if is_model(cls):
            return model_converter(cls)
        if not dataclasses.is_dataclass(cls):
            return Member(cls) if issubclass(cls, Enum) else leaf(cls)
        if cls not in self._made:
            # A field of the class may be of the class itself: it finds the entry, which is filled by then.
            self._made[cls] = lambda value, path: self._made[cls](value, path)
            self._made[cls] = dataclass_converter(cls, self._scope, self.converter)
        return self._made[cls]


def _is_anything(annotation: object) -> bool:
    return annotation is Any or annotation is object or isinstance(annotation, TypeVar)


def _is_union(annotation: object) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _root(annotation: object) -> str:
    """How the paths in errors begin."""
    annotation = plain(annotation)
    if _is_union(annotation):
        fitting = [member for member in typing.get_args(annotation) if takes_documents(member)]
        return _root(fitting[0]) if len(fitting) == 1 else "document"
    origin = typing.get_origin(annotation) or annotation
    if isinstance(origin, type) and origin is not object and not issubclass(origin, collections.abc.Mapping):
        return origin.__name__
    return "document"


def _unknown(annotation: object) -> ConfigurationError:
    return ConfigurationError(
        f"nothing converts to {name_of(annotation)}",
        option="handler",
        value=annotation,
        expected="dict, a dataclass or a pydantic model for a document, and types with values for its fields",
    )
