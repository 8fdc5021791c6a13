"""A task's filter: which documents the task is for, in the server's own words.

A filter is never translated from one syntax into the other: arrays, missing fields and strings like ``"$5"``
mean different things in them. An expression is handed to the server in ``$expr``, a query as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from oplogue.errors import ConfigurationError
from oplogue.model.documents import is_array, is_document, snapshot
from oplogue.model.paths import expression_inputs, is_dynamic
from oplogue.model.query import LOGICAL, TOP_LEVEL, predicates, with_now

OPTION = "filter"

_REFUSED = {
    "$where": "an expression under $expr",
    "$text": "a regex, or a field that your code keeps",
    "$near": "$geoWithin with $centerSphere",
    "$nearSphere": "$geoWithin with $centerSphere",
    "$geoNear": "$geoWithin with $centerSphere",
}

# These read nothing of a document.
_CONSTANT = frozenset({"$alwaysTrue", "$alwaysFalse", "$comment", "$sampleRate"})


@dataclass(frozen=True)
class Filter:
    """A filter as ``compile_filter`` understood it.

    >>> paid = compile_filter({"status": "paid"})
    >>> paid.match(None), sorted(paid.inputs)
    ({'status': 'paid'}, ['status'])
    """

    raw: Mapping[str, object]
    is_expression: bool
    needs_now: bool
    is_dynamic: bool
    """Whether the result depends on the time or on chance, not on the document alone."""
    inputs: frozenset[str] | None
    """The dotted paths that the result depends on; None: unknown, no update may be pruned."""

    @property
    def matches_all(self) -> bool:
        """Whether no condition was given."""
        return not self.raw

    def match(self, now: datetime | None) -> dict[str, object]:
        """The document for ``$match`` or a find; ``now`` is the server's time, where the filter needs it."""
        if self.is_expression:
            return {"$expr": self.raw}
        if not self.needs_now:
            return dict(self.raw)
        if now is None:
            raise ValueError("the filter compares with $$NOW: the server's time is needed")
        return with_now(self.raw, now)


def compile_filter(raw: Mapping[str, object] | None) -> Filter:
    """Tell query syntax from an expression, and refuse what no task can filter by.

    >>> compile_filter({"$eq": ["$status", "paid"]}).match(None)
    {'$expr': {'$eq': ['$status', 'paid']}}
    >>> compile_filter({"status": "paid", "$gt": ["$total", 5]})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    oplogue.errors.ConfigurationError: ...the field 'status' stands beside the expression operator $gt...
    """
    if raw is None:
        raw = {}
    if not is_document(raw):
        raise ConfigurationError(
            "not a document",
            option=OPTION,
            value=raw,
            expected="a mapping such as {'status': 'paid'}, or None",
        )
    document = snapshot(raw, option=OPTION)
    return _expression(document) if _is_expression(document) else _query(document)


def _expression(document: dict[str, object]) -> Filter:
    _check_shape(document, document)
    dynamic = is_dynamic(document)
    return Filter(
        raw=document,
        is_expression=True,
        needs_now=False,
        is_dynamic=dynamic,
        inputs=None if dynamic else expression_inputs(document),
    )


def _query(document: dict[str, object]) -> Filter:
    needs_now, dynamic = False, False
    for predicate in predicates(document):
        if predicate.operator in _REFUSED:
            raise ConfigurationError(
                f"the server can't evaluate {predicate.operator} here",
                option=OPTION,
                value=document,
                expected=_REFUSED[predicate.operator],
            )
        needs_now = needs_now or predicate.compares_with_now
        dynamic = dynamic or predicate.operator == "$sampleRate"
        dynamic = dynamic or (predicate.operator == "$expr" and is_dynamic(predicate.operand))
    dynamic = dynamic or needs_now
    return Filter(
        raw=document,
        is_expression=False,
        needs_now=needs_now,
        is_dynamic=dynamic,
        inputs=None if dynamic else _query_inputs(document),
    )


def _query_inputs(document: Mapping[str, object]) -> frozenset[str] | None:
    found: set[str] = set()
    for predicate in predicates(document):
        if predicate.path is not None:
            found.add(predicate.path)
        elif predicate.operator == "$expr":
            read = expression_inputs(predicate.operand)
            if read is None:
                return None
            found |= read
        elif predicate.operator not in _CONSTANT:
            return None
    return frozenset(found)


def _is_expression(document: Mapping[str, object]) -> bool:
    signs = list(_signs(document))
    operator = next((key for key, expression in signs if expression), None)
    other = next((key for key, expression in signs if not expression), None)
    if operator is not None and other is not None:
        kind = "query operator" if other.startswith("$") else "field"
        name = other if other.startswith("$") else repr(other)
        raise ConfigurationError(
            f"the {kind} {name} stands beside the expression operator {operator}",
            option=OPTION,
            value=document,
            expected="a query with the expression under $expr",
        )
    return operator is not None


def _signs(document: Mapping[str, object]) -> Iterator[tuple[str, bool]]:
    """The keys that show the syntax, and whether each shows an expression."""
    for key, value in document.items():
        if key not in LOGICAL:
            yield key, key.startswith("$") and key not in TOP_LEVEL
            continue
        for member in value if is_array(value) else [value]:
            if is_document(member):
                yield from _signs(member)
            elif isinstance(member, str) and member.startswith("$"):
                yield member, True


def _check_shape(expression: Mapping[str, object], document: Mapping[str, object]) -> None:
    """The server's own message on these two would puzzle somebody who thinks in queries."""
    if len(expression) > 1:
        raise ConfigurationError(
            f"an expression has one operator, not {' and '.join(expression)}",
            option=OPTION,
            value=document,
            expected="the conditions in one $and",
        )
    for key, value in expression.items():
        if key == "$nor":
            raise ConfigurationError(
                "expressions have no $nor",
                option=OPTION,
                value=document,
                expected="{'$not': [{'$or': [...]}]}",
            )
        if key in LOGICAL:
            for member in value if is_array(value) else [value]:
                if is_document(member):
                    _check_shape(member, document)
