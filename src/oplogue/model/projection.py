"""A task's watched values: what of a document re-runs the task when it changes.

The shape is that of an aggregation expression, not of ``$project``: ``{"a.b": 1}`` is
``{"a": {"b": "$a.b"}}``, for arrays too. Records that are there already were written so; another shape would
run every task again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

from oplogue.errors import ConfigurationError
from oplogue.model.documents import is_array, is_document, snapshot
from oplogue.model.paths import expression_inputs, is_dynamic

OPTION = "watch_projection"

WHOLE_DOCUMENT = "$$ROOT"


@dataclass(frozen=True)
class Projection:
    """A projection as ``compile_projection`` understood it.

    >>> compile_projection(["status", "total"]).expression
    {'status': '$status', 'total': '$total'}
    """

    expression: object
    """The aggregation expression of the watched values."""
    inputs: frozenset[str] | None
    """The dotted paths that the values depend on; None: the whole document, or unknown."""

    @property
    def whole_document(self) -> bool:
        """Whether the watched values are the document itself."""
        return self.expression == WHOLE_DOCUMENT


def compile_projection(raw: Mapping[str, object] | Sequence[str] | None) -> Projection:
    """Turn inclusions and computed fields into one expression, and refuse what can't be watched.

    >>> compile_projection({"items.price": 1, "day": {"$dayOfYear": "$paidAt"}}).expression
    {'items': {'price': '$items.price'}, 'day': {'$dayOfYear': '$paidAt'}}
    >>> compile_projection({"note": 0})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    oplogue.errors.ConfigurationError: watch_projection={'note': 0}: 'note' is excluded; ...
    """
    fields = _fields(raw)
    if not fields:
        return Projection(expression=WHOLE_DOCUMENT, inputs=None)
    paths = {key: _segments(key, fields) for key in fields}
    _check_conflicts(paths, fields)
    expression: dict[str, object] = {}
    for key, value in fields.items():
        _place(expression, paths[key], _watched(key, value, fields))
    return Projection(expression=expression, inputs=expression_inputs(expression))


def _fields(raw: object) -> dict[str, object]:
    if raw is None:
        return {}
    if is_document(raw):
        return snapshot(raw, option=OPTION)
    if not is_array(raw):
        raise _refused("neither a mapping nor a list", raw, "{'status': 1}, or ['status'], or None")
    fields: dict[str, object] = {}
    for name in raw:
        if not isinstance(name, str):
            raise _refused(f"{name!r} is not a field's name", raw, "strings")
        if name in fields:
            raise _refused(f"{name!r} is there twice", raw, "each field once")
        fields[name] = 1
    return fields


def _segments(key: str, fields: Mapping[str, object]) -> list[str]:
    segments = key.split(".")
    if "" in segments:
        raise _refused(f"{key!r} has an empty segment", fields, "a dotted path such as 'items.price'")
    if any(segment.startswith("$") for segment in segments):
        raise _refused(f"{key!r}: names that begin with $ can't be watched", fields, "a field's name")
    return segments


def _watched(key: str, value: object, fields: Mapping[str, object]) -> object:
    """The expression of one field."""
    if isinstance(value, int | float):
        if value == 0:
            raise _refused(f"{key!r} is excluded", fields, "the fields to watch, each with 1")
        if value != 1:
            raise _refused(f"{key!r}: the number {value!r} says nothing", fields, "1 to watch the field")
        return f"${key}"
    if is_document(value):
        _check_nested(key, value, fields)
    if is_dynamic(value):
        raise _refused(
            f"{key!r} differs every time that it is computed",
            fields,
            "no $rand, $$NOW or $$CLUSTER_TIME: they would re-run the task for ever",
        )
    return value


def _check_nested(key: str, value: Mapping[str, object], fields: Mapping[str, object]) -> None:
    """In an expression ``{"a": {"b": 1}}`` is a constant: nobody means that, and nothing would be watched."""
    if not value:
        raise _refused(f"{key!r}: an empty document watches nothing", fields, "1, or an expression")
    for name, member in value.items():
        if name.startswith("$"):
            continue
        if isinstance(member, int | float):
            raise _refused(f"{key!r}: {name!r} within it is a constant", fields, f"{{'{key}.{name}': 1}}")
        if is_document(member):
            _check_nested(f"{key}.{name}", member, fields)


def _check_conflicts(paths: Mapping[str, list[str]], fields: Mapping[str, object]) -> None:
    in_order = sorted(paths.items(), key=lambda item: item[1])
    # Whatever begins with a path comes right behind it in this order.
    for (outer, short), (inner, long) in pairwise(in_order):
        if long[: len(short)] == short:
            raise _refused(f"{inner!r} is a part of {outer!r}", fields, "one of them")


def _place(expression: dict[str, object], segments: list[str], value: object) -> None:
    *parents, last = segments
    for parent in parents:
        # Without conflicts, what is there was made here.
        expression = cast("dict[str, object]", expression.setdefault(parent, {}))
    expression[last] = value


def _refused(problem: str, value: object, expected: str) -> ConfigurationError:
    return ConfigurationError(problem, option=OPTION, value=value, expected=expected)
