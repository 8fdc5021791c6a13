"""A walk through MongoDB's query syntax: every predicate in it, and its ``"$$NOW"`` operands put in place.

What is a value is never looked into: an embedded document that is compared as a whole may hold anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from oplogue.model.documents import is_array, is_document

NOW = "$$NOW"

LOGICAL = frozenset({"$and", "$or", "$nor"})

TOP_LEVEL = LOGICAL | {
    "$alwaysFalse",
    "$alwaysTrue",
    "$comment",
    "$db",
    "$expr",
    "$id",
    "$jsonSchema",
    "$ref",
    "$sampleRate",
    "$text",
    "$where",
}

_SINGLE = frozenset({"$eq", "$ne", "$gt", "$gte", "$lt", "$lte"})
_LISTS = frozenset({"$in", "$nin"})


@dataclass(frozen=True, slots=True)
class Predicate:
    """One operator and its operand; ``path`` is the outermost field, None for an operator of the document."""

    path: str | None
    operator: str
    operand: object

    @property
    def compares_with_now(self) -> bool:
        """Whether the server's time is to be put in place of the operand, or of a member of its list."""
        if self.operator in _SINGLE:
            return _is_now(self.operand)
        return self.operator in _LISTS and is_array(self.operand) and any(map(_is_now, self.operand))


def predicates(query: Mapping[str, object]) -> Iterator[Predicate]:
    """Every predicate of a query, those below ``$and``, ``$not``, ``$elemMatch`` … too.

    >>> [(p.path, p.operator) for p in predicates({"status": "paid", "$or": [{"total": {"$gt": 5}}, {}]})]
    [('status', '$eq'), ('total', '$gt')]
    """
    for key, value in query.items():
        if key in LOGICAL:
            for member in value if is_array(value) else [value]:
                if is_document(member):
                    yield from predicates(member)
        elif key.startswith("$"):
            yield Predicate(None, key, value)
        else:
            yield from _field_predicates(key, value)


def with_now(query: Mapping[str, object], now: datetime) -> dict[str, object]:
    """A copy of the query in which ``"$$NOW"`` as the operand of a comparison is the given time.

    >>> with_now({"dueAt": {"$lte": "$$NOW"}}, datetime(2026, 1, 1))
    {'dueAt': {'$lte': datetime.datetime(2026, 1, 1, 0, 0)}}
    """
    return {key: _bound(key, value, now) for key, value in query.items()}


def has_operators(value: object) -> bool:
    """Whether a field's condition is made of operators, as the server sees it: by the first key."""
    return is_document(value) and next(iter(value), "").startswith("$")


def _field_predicates(path: str, condition: object) -> Iterator[Predicate]:
    if not (is_document(condition) and has_operators(condition)):
        yield Predicate(path, "$eq", condition)
        return
    for operator, operand in condition.items():
        yield Predicate(path, operator, operand)
        for nested in _nested(operator, operand):
            for predicate in _of_elements(nested):
                yield Predicate(path, predicate.operator, predicate.operand)


def _nested(operator: str, operand: object) -> list[Mapping[str, object]]:
    """The conditions within an operand."""
    if operator in ("$not", "$elemMatch") and is_document(operand):
        return [operand]
    if operator == "$all" and is_array(operand):
        return [member for member in operand if is_document(member) and "$elemMatch" in member]
    return []


def _of_elements(condition: Mapping[str, object]) -> Iterator[Predicate]:
    return _field_predicates("", condition) if _is_field_condition(condition) else predicates(condition)


def _is_field_condition(condition: Mapping[str, object]) -> bool:
    """``$elemMatch`` takes operators on the element itself, or a query on the element's fields."""
    first = next(iter(condition), "")
    return first.startswith("$") and first not in TOP_LEVEL


def _bound(key: str, value: object, now: datetime) -> object:
    if key in LOGICAL and is_array(value):
        return [with_now(member, now) if is_document(member) else member for member in value]
    return value if key.startswith("$") else _bound_condition(value, now)


def _bound_condition(condition: object, now: datetime) -> object:
    if is_document(condition) and has_operators(condition):
        return {operator: _bound_operand(operator, operand, now) for operator, operand in condition.items()}
    return now if _is_now(condition) else condition


def _bound_operand(operator: str, operand: object, now: datetime) -> object:
    if operator in _SINGLE:
        return now if _is_now(operand) else operand
    if operator in _LISTS and is_array(operand):
        return [now if _is_now(member) else member for member in operand]
    if operator == "$all" and is_array(operand):
        return [_bound_condition(member, now) if is_document(member) else member for member in operand]
    if operator in ("$not", "$elemMatch") and is_document(operand):
        return _bound_condition(operand, now) if _is_field_condition(operand) else with_now(operand, now)
    return operand


def _is_now(operand: object) -> bool:
    # Values of users' types may compare to anything in their own way.
    return isinstance(operand, str) and operand == NOW
