from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from oplogue.errors import ConfigurationError
from oplogue.model.projection import compile_projection


@pytest.mark.parametrize("raw", [None, {}, [], ()])
def test_no_projection_is_the_whole_document(raw: Mapping[str, object] | Sequence[str] | None) -> None:
    projection = compile_projection(raw)
    assert projection.expression == "$$ROOT"
    assert projection.whole_document
    assert projection.inputs is None


@pytest.mark.parametrize(
    ("raw", "expression", "inputs"),
    [
        ({"status": 1}, {"status": "$status"}, {"status"}),
        ({"status": True, "total": 1.0}, {"status": "$status", "total": "$total"}, {"status", "total"}),
        (["status", "total"], {"status": "$status", "total": "$total"}, {"status", "total"}),
        (("a.b",), {"a": {"b": "$a.b"}}, {"a.b"}),
        ({"a.b": 1}, {"a": {"b": "$a.b"}}, {"a.b"}),
        (
            {"a.b": 1, "x": 1, "a.c.d": 1},
            {"a": {"b": "$a.b", "c": {"d": "$a.c.d"}}, "x": "$x"},
            {"a.b", "a.c.d", "x"},
        ),
        ({"_id": 1}, {"_id": "$_id"}, {"_id"}),
        ({"items.0": 1}, {"items": {"0": "$items.0"}}, {"items.0"}),
        ({"day": {"$dayOfYear": "$paidAt"}}, {"day": {"$dayOfYear": "$paidAt"}}, {"paidAt"}),
        ({"a.day": {"$dayOfYear": "$paidAt"}}, {"a": {"day": {"$dayOfYear": "$paidAt"}}}, {"paidAt"}),
        ({"name": "$customer.name"}, {"name": "$customer.name"}, {"customer.name"}),
        (
            {"x": {"y": "$a", "z": {"$add": ["$b", 1]}}},
            {"x": {"y": "$a", "z": {"$add": ["$b", 1]}}},
            {"a", "b"},
        ),
        ({"n": {"$literal": 0}}, {"n": {"$literal": 0}}, set[str]()),
        ({"n": {"$literal": "$$NOW"}}, {"n": {"$literal": "$$NOW"}}, set[str]()),
        ({"size": {"$bsonSize": "$$ROOT"}}, {"size": {"$bsonSize": "$$ROOT"}}, None),
        ({"all": "$$ROOT"}, {"all": "$$ROOT"}, None),
    ],
)
def test_the_expression_has_the_shape_of_the_stored_values(
    raw: Any, expression: object, inputs: set[str] | None
) -> None:
    projection = compile_projection(raw)
    assert projection.expression == expression
    assert projection.inputs == inputs
    assert not projection.whole_document


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        ({"a": 0}, "excluded"),
        ({"a": False}, "excluded"),
        ({"_id": 0, "a": 1}, "excluded"),
        ({"a": 0.0}, "excluded"),
        ({"a": 2}, "number 2"),
        ({"a": -1}, "number -1"),
        ({"a": float("nan")}, "number nan"),
        ({"a": 1, "a.b": 1}, "'a.b' is a part of 'a'"),
        ({"a.b.c": 1, "x": 1, "a.b": 1}, "'a.b.c' is a part of 'a.b'"),
        ({"a": {"b": "$x"}, "a.c": 1}, "'a.c' is a part of 'a'"),
        ({"a.c": 1, "a": {"b": "$x"}}, "'a.c' is a part of 'a'"),
        (["a.b", "a"], "'a.b' is a part of 'a'"),
        ({"a..b": 1}, "empty segment"),
        ({"": 1}, "empty segment"),
        ({".a": 1}, "empty segment"),
        ({"a.": 1}, "empty segment"),
        ([""], "empty segment"),
        ({"$toUpper": "$a"}, "begin with"),
        ({"a.$b": 1}, "begin with"),
        (["$a"], "begin with"),
        ({"a": {"$rand": {}}}, "differs every time"),
        ({"a": "$$NOW"}, "differs every time"),
        ({"a": {"$add": ["$$NOW", 5]}}, "differs every time"),
        ({"a": {"b": ["$$CLUSTER_TIME"]}}, "differs every time"),
        ({"a": {"b": 1}}, "constant"),
        ({"a": {"b": {"c": True}}}, "constant"),
        ({"a": {}}, "empty document"),
        (["a", "a"], "twice"),
        (["a", 1], "not a field"),
        ("status", "neither"),
        (5, "neither"),
        ({"a", "b"}, "neither"),
        ({1: 1}, "not a string"),
    ],
)
def test_what_cannot_be_watched_is_refused(raw: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem) as caught:
        compile_projection(raw)
    assert caught.value.option == "watch_projection"
    assert caught.value.expected


def test_names_that_only_begin_alike_do_not_conflict() -> None:
    assert compile_projection(["a", "ab", "a-b.c"]).inputs == {"a", "ab", "a-b.c"}


def test_later_changes_to_the_users_projection_do_not_matter() -> None:
    operands: list[object] = ["$a", 1]
    projection = compile_projection({"sum": {"$add": operands}})
    operands.append("$b")
    assert projection.expression == {"sum": {"$add": ["$a", 1]}}
