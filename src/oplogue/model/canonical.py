"""Definitions compared canonically: what means the same is written the same.

In a query the order of its conditions means nothing, nor that of the operators on one field; in a projection the
order of its fields. Somebody who sorts them has changed nothing. What is compared as a value (an embedded document,
a list) or computed as an expression keeps its order, because there the server tells orders apart.
"""

from __future__ import annotations

from collections.abc import Mapping

from oplogue.model.documents import is_array, is_document
from oplogue.model.filters import Filter
from oplogue.model.query import LOGICAL, TOP_LEVEL, has_operators

_REFERENCE = frozenset({"$ref", "$id", "$db"})


def canonical_filter(filter_: Filter) -> Mapping[str, object]:
    """A filter in the order that all filters of its meaning share.

    >>> from oplogue.model.filters import compile_filter
    >>> canonical_filter(compile_filter({"total": {"$lt": 9, "$gt": 5}, "at": {"city": "x", "by": "y"}}))
    {'at': {'city': 'x', 'by': 'y'}, 'total': {'$gt': 5, '$lt': 9}}
    """
    return filter_.raw if filter_.is_expression else _query(filter_.raw)


def canonical_projection(expression: object) -> object:
    """Watched values in the order of their names; computed ones as they are.

    >>> canonical_projection({"b": "$b", "a": {"d": "$a.d", "c": {"$add": ["$x", 1]}}})
    {'a': {'c': {'$add': ['$x', 1]}, 'd': '$a.d'}, 'b': '$b'}
    """
    if not is_document(expression) or _is_computed(expression):
        return expression
    return {name: canonical_projection(expression[name]) for name in sorted(expression)}


def ordered_like(expression: object, values: object) -> object:
    """Watched values in the order that a record has them: the server finds documents in another order different.

    >>> ordered_like({"a": "$a", "b": {"c": "$b.c", "d": "$b.d"}}, {"b": {"d": 1}, "a": 2})
    {'b': {'d': '$b.d', 'c': '$b.c'}, 'a': '$a'}
    """
    if not is_document(expression) or _is_computed(expression) or not is_document(values):
        return expression
    names = [*(name for name in values if name in expression), *(n for n in expression if n not in values)]
    return {name: ordered_like(expression[name], values.get(name)) for name in names}


def _is_computed(expression: Mapping[str, object]) -> bool:
    return any(name.startswith("$") for name in expression)


def _query(query: Mapping[str, object]) -> dict[str, object]:
    return {key: _under(key, query[key]) for key in sorted(query)}


def _under(key: str, value: object) -> object:
    if key in LOGICAL and is_array(value):
        return [_query(member) if is_document(member) else member for member in value]
    return value if key.startswith("$") else _condition(value)


def _condition(condition: object) -> object:
    """What is asked of one field: operators in any order, or a value."""
    if not is_document(condition) or not has_operators(condition) or next(iter(condition)) in _REFERENCE:
        return condition
    return {operator: _operand(operator, condition[operator]) for operator in sorted(condition)}


def _operand(operator: str, operand: object) -> object:
    if operator in ("$not", "$elemMatch") and is_document(operand):
        first = next(iter(operand), "")
        about_the_element = first.startswith("$") and first not in TOP_LEVEL
        return _condition(operand) if about_the_element else _query(operand)
    if operator == "$all" and is_array(operand):
        return [_condition(member) for member in operand]
    return operand
