"""Random documents, filters and projections, few enough values that they often meet: strategies for Hypothesis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from bson import Binary, Decimal128, Int64, ObjectId, Regex, Timestamp
from hypothesis import strategies as st

Document = dict[str, Any]

_DATES = (datetime(2001, 1, 1, tzinfo=UTC), datetime(2101, 1, 1, tzinfo=UTC))
_SCALARS: tuple[Any, ...] = (
    None, True, False, 0, 1, 2, -1, 1.0, 2.5, float("nan"), Int64(1), Decimal128("1"), Decimal128("2.50"),
    "", "a", "ab", "A", "1", "$a", "$5", "$$ROOT", "$$NOW", "a.b", *_DATES, ObjectId(b"0" * 12), Binary(b"a"),
    Timestamp(1, 1),
)  # fmt: skip
_NOWS: tuple[Document, ...] = (
    {"$gt": "$$NOW"},
    {"$lte": "$$NOW"},
    {"$not": {"$gt": "$$NOW"}},
    {"$elemMatch": {"$lte": "$$NOW"}},
)
scalars = st.sampled_from(_SCALARS)
names: st.SearchStrategy[str] = st.sampled_from(("a", "b", "c"))
paths: st.SearchStrategy[str] = st.sampled_from(
    ("a", "b", "c", "a.b", "a.c", "b.c", "a.b.c", "a.0", "a.0.b", "a.b.0", "_id")
)


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3)


values: st.SearchStrategy[Any] = st.recursive(scalars, _nested, max_leaves=4)
_odd: st.SearchStrategy[Any] = st.sampled_from(
    (
        Regex("^a"),
        {"$a": 1},
        {"a.b": 1},
        {"$literal": "x"},
        [{"$gt": 1}],
        [[1, [2]]],
        [{"b": 1}, {"b": [1, 2]}],
    )
)
_dates: st.SearchStrategy[Any] = st.sampled_from(_DATES) | st.lists(st.sampled_from(_DATES), max_size=2)
documents: st.SearchStrategy[Document] = st.dictionaries(
    names, values | values | values | _odd | _dates, max_size=3
)


# -- filters in query syntax


def _one(operator: str, operand: Any) -> Document:
    return {operator: operand}


def _all_of(conditions: list[Document]) -> Document:
    return {operator: operand for condition in conditions for operator, operand in condition.items()}


def _compared(operator: str, one: Any, other: Any) -> Document:
    return {operator: [one, other]}


def _contained(value: Any, several: list[Any]) -> Document:
    return {"$in": [value, {"$literal": several}]}


def _literal(value: Any) -> Document:
    return {"$literal": value}


def _negated(expression: Document) -> Document:
    return {"$not": [expression]}


def _as_query(expression: Document) -> Document:
    return {"$expr": expression}


_comparators = st.sampled_from(("$eq", "$ne", "$gt", "$gte", "$lt", "$lte"))
_members = st.lists(values | st.just(Regex("^a", "i")), max_size=3)
_others: st.SearchStrategy[Document] = st.sampled_from(
    (
        {"$exists": True}, {"$exists": False}, {"$size": 0}, {"$size": 1}, {"$size": 2}, {"$type": "number"},
        {"$type": ["string", "array"]}, {"$type": "null"}, {"$mod": [2, 1]}, {"$regex": "^a"},
        {"$regex": Regex("B", "i")}, {"$all": [1]}, {"$all": ["a", "b"]}, {"$all": []},
        {"$all": [{"$elemMatch": {"b": 1}}]}, {"$bitsAllSet": 1},
        {"$not": Regex("^a")},
    )
)  # fmt: skip
_single = (
    st.builds(_one, _comparators, values)
    | st.builds(_one, st.sampled_from(("$in", "$nin")), _members)
    | _others
) | st.sampled_from(_NOWS)


def _operators(inner: st.SearchStrategy[Document]) -> st.SearchStrategy[Document]:
    nested = st.lists(inner, min_size=1, max_size=2).map(_all_of)
    of_fields: st.SearchStrategy[Document] = st.dictionaries(names, nested | scalars, max_size=2)
    return st.builds(_one, st.just("$not"), nested) | st.builds(
        _one, st.just("$elemMatch"), nested | of_fields
    )


_operator = st.recursive(_single, _operators, max_leaves=3)
_condition: st.SearchStrategy[Any] = (
    st.lists(_operator, min_size=1, max_size=2).map(_all_of)
    | values
    | st.just(Regex("^A", "i"))
    | st.sampled_from(_NOWS)
)


# -- expressions

_operand: st.SearchStrategy[Any] = st.sampled_from(
    ("$a", "$b", "$a.b", "$a.b.c", "$_id", "$$ROOT.c", "$$NOW", 1, {"$literal": "$a"}, {"$type": "$a"})
) | values.map(_literal)
_size_of_a: Document = {"$size": {"$cond": [{"$isArray": "$a"}, "$a", []]}}
_tests: st.SearchStrategy[Document] = st.sampled_from(
    (
        {"$isArray": ["$a"]},
        {"$ifNull": ["$a", False]},
        {"$cond": ["$a", "$b", "$c"]},
        {"$gt": [_size_of_a, 1]},
    )
)
_simple = (
    st.builds(_compared, _comparators, _operand, _operand)
    | st.builds(_contained, _operand, st.lists(values, max_size=3))
    | _tests
)


def _combined_expressions(inner: st.SearchStrategy[Document]) -> st.SearchStrategy[Document]:
    several = st.lists(inner, min_size=1, max_size=3)
    return st.builds(_one, st.sampled_from(("$and", "$or")), several) | inner.map(_negated)


expressions = st.recursive(_simple, _combined_expressions, max_leaves=4)


# -- either

_fields: st.SearchStrategy[Document] = st.dictionaries(paths, _condition, min_size=1, max_size=2)


def _combined_queries(inner: st.SearchStrategy[Document]) -> st.SearchStrategy[Document]:
    return st.builds(_one, st.sampled_from(("$and", "$or", "$nor")), st.lists(inner, min_size=1, max_size=3))


queries = st.recursive(_fields | expressions.map(_as_query), _combined_queries, max_leaves=4)


@dataclass(frozen=True)
class AnyFilter:
    """A filter as a user writes it, and as ``find`` takes it."""

    raw: Document

    @property
    def is_expression(self) -> bool:
        """Whether it is an expression, by what this module makes of them."""
        return _is_expression(self.raw)

    def for_find(self, now: datetime) -> Document:
        """The query; ``$$NOW`` is not known to query syntax."""
        return {"$expr": self.raw} if self.is_expression else cast(Document, _at(now, self.raw))


def _is_expression(raw: Mapping[str, Any]) -> bool:
    key = next(iter(raw), "")
    if key in ("$and", "$or", "$nor"):
        return any(_is_expression(member) for member in raw[key])
    return key.startswith("$") and key not in ("$expr", "$comment")


def _at(now: datetime, node: Any) -> Any:
    """The time in place of the operands of these strategies that stand for it."""
    if isinstance(node, dict):
        document = cast(Document, node)
        return {k: v if k == "$expr" else now if _is_now(k, v) else _at(now, v) for k, v in document.items()}
    if isinstance(node, list):
        return [_at(now, member) for member in cast(list[Any], node)]
    return node


def _is_now(key: str, value: Any) -> bool:
    return key in ("$gt", "$lte") and isinstance(value, str) and value == "$$NOW"


filters: st.SearchStrategy[AnyFilter] = st.builds(AnyFilter, queries | queries | expressions)


# -- projections


@dataclass(frozen=True)
class AnyProjection:
    """A projection as a user writes it, and the expression that it stands for."""

    raw: Any
    expression: Any


projections: st.SearchStrategy[AnyProjection] = st.sampled_from(
    (
        AnyProjection(None, "$$ROOT"),
        AnyProjection({}, "$$ROOT"),
        AnyProjection(["a"], {"a": "$a"}),
        AnyProjection({"a": 1, "c": True}, {"a": "$a", "c": "$c"}),
        AnyProjection({"a.b": 1}, {"a": {"b": "$a.b"}}),
        AnyProjection(["a.b", "a.c", "b"], {"a": {"b": "$a.b", "c": "$a.c"}, "b": "$b"}),
        AnyProjection({"a.b.c": 1, "_id": 1}, {"a": {"b": {"c": "$a.b.c"}}, "_id": "$_id"}),
        AnyProjection({"n": {"$ifNull": ["$a.b", "none"]}}, {"n": {"$ifNull": ["$a.b", "none"]}}),
        AnyProjection({"x.y": "$a", "z": {"$literal": "$a"}}, {"x": {"y": "$a"}, "z": {"$literal": "$a"}}),
        AnyProjection({"t": {"of": {"$type": "$c"}}}, {"t": {"of": {"$type": "$c"}}}),
    )
)
