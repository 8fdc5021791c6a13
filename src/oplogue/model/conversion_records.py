"""Converters to classes with fields: dataclasses, and pydantic models where pydantic is installed.

The field ``id`` is filled from ``_id``, since Python's names for fields don't begin with an underscore.
Fields that the class does not have are ignored: a handler asks for what it needs of a document.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

from oplogue.errors import ConfigurationError, DocumentConversionError
from oplogue.model.annotations import Scope, resolved_hints
from oplogue.model.conversion_values import Converter, described, mismatch, name_of
from oplogue.model.documents import is_document

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a dataclass."""

    name: str
    type_name: str
    converter: Converter
    required: bool


@dataclass(frozen=True, slots=True)
class Record:
    """A dataclass, made from a document field by field."""

    cls: type[Any]
    fields: tuple[Field, ...]

    def __call__(self, value: object, path: str) -> object:
        if isinstance(value, self.cls):
            return value
        if not is_document(value):
            raise mismatch(path, self.cls.__name__, value)
        found: dict[str, object] = {}
        for field in self.fields:
            key = "_id" if field.name == "id" and "id" not in value else field.name
            where = f"{path}.{field.name}"
            if key in value:
                found[field.name] = field.converter(value[key], where)
            elif field.required:
                raise DocumentConversionError(
                    f"{where}: expected {field.type_name}, but the field is missing"
                )
        try:
            return self.cls(**found)
        except (TypeError, ValueError) as error:
            raise DocumentConversionError(f"{path}: {error}") from error


@dataclass(frozen=True, slots=True)
class Model:
    """A pydantic model, which validates by itself."""

    cls: type[BaseModel]
    takes_id: bool

    def __call__(self, value: object, path: str) -> object:
        from pydantic import ValidationError

        if is_document(value) and self.takes_id and "id" not in value and "_id" in value:
            value = {"id" if key == "_id" else key: member for key, member in value.items()}
        try:
            return self.cls.model_validate(value)
        except ValidationError as error:
            raise DocumentConversionError(_told(error, path)) from error


def dataclass_converter(cls: type[Any], scope: Scope, convert: Callable[[object], Converter]) -> Record:
    """The converter to a dataclass; ``convert`` makes those of its fields."""
    try:
        hints = resolved_hints(cls, None, {**scope, cls.__name__: cls})
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise ConfigurationError(
            f"the annotations of {cls.__name__} can't be resolved ({error})",
            option="handler",
            value=cls,
            expected="names that its module knows when the program runs",
        ) from None
    return Record(
        cls,
        tuple(
            Field(
                name=field.name,
                type_name=name_of(hints[field.name]),
                converter=convert(hints[field.name]),
                required=field.default is MISSING and field.default_factory is MISSING,
            )
            for field in dataclasses.fields(cls)
            if field.init
        ),
    )


def is_model(cls: type[Any]) -> TypeGuard[type[BaseModel]]:
    """Whether the class is a pydantic model. If pydantic was not imported yet, nothing is one."""
    if "pydantic" not in sys.modules:
        return False
    from pydantic import BaseModel

    return issubclass(cls, BaseModel)


def model_converter(cls: type[BaseModel]) -> Model:
    """The converter to a pydantic model."""
    field = cls.model_fields.get("id")
    return Model(cls, field is not None and field.alias is None and field.validation_alias is None)


def _told(error: ValidationError, path: str) -> str:
    first, *others = error.errors(include_url=False)
    place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
    value = "" if first["type"] == "missing" else f", got {described(first['input'])}"
    more = f" (and {len(others)} more)" if others else ""
    return f"{path}{place}: {_sentence(first)}{value}{more}"


def _sentence(details: Mapping[str, Any]) -> str:
    text = str(details["msg"])
    return text[:1].lower() + text[1:]
