from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import pytest

from oplogue.errors import ConfigurationError
from oplogue.model.filters import compile_filter

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
CHANCE: dict[str, Any] = {"$rand": {}}


@pytest.mark.parametrize("raw", [None, {}])
def test_no_condition_matches_all(raw: Mapping[str, object] | None) -> None:
    compiled = compile_filter(raw)
    assert compiled.matches_all
    assert compiled.match(None) == {}
    assert compiled.inputs == frozenset()
    assert not compiled.is_dynamic


@pytest.mark.parametrize(
    "raw",
    [
        {"status": "paid"},
        {"status": {"$in": ["paid", "sent"]}, "total": {"$gt": 5}},
        {"$and": [{"status": "paid"}, {"$or": [{"a": 1}, {"b": 2}]}]},
        {"$nor": [{"status": "paid"}]},
        {"$expr": {"$gt": ["$total", "$limit"]}},
        {"$or": [{"$expr": {"$gt": ["$total", 5]}}, {"status": "paid"}]},
        {"$comment": "why", "status": "paid"},
        {"$jsonSchema": {"required": ["status"]}},
        {"$alwaysTrue": 1},
        {"$sampleRate": 0.5},
        {"a": {"$eq": ["$status", "paid"]}},
        {"$and": []},
        {"status": "$paid"},
    ],
)
def test_query_syntax_goes_to_the_server_as_it_is(raw: dict[str, Any]) -> None:
    compiled = compile_filter(raw)
    assert not compiled.is_expression
    assert compiled.match(None) == raw


@pytest.mark.parametrize(
    "raw",
    [
        {"$eq": ["$status", "paid"]},
        {"$not": [{"$eq": ["$status", "paid"]}]},
        {"$in": ["paid", "$tags"]},
        {"$and": [{"$eq": ["$status", "paid"]}, {"$gt": ["$total", 5]}]},
        {"$or": [{"$and": [{"$gt": ["$a", 1]}, {"$lt": ["$a", 5]}]}, {"$eq": ["$b", 1]}]},
        {"$and": ["$paid", {"$gt": ["$total", 5]}]},
        {"$and": ["$paid", "$sent"]},
        {"$or": {"$gt": ["$total", 5]}},
        {"$regexMatch": {"input": "$name", "regex": "^a"}},
        {"$operatorOfTheFuture": 1},
    ],
)
def test_an_expression_goes_to_the_server_in_expr(raw: dict[str, Any]) -> None:
    compiled = compile_filter(raw)
    assert compiled.is_expression
    assert compiled.match(None) == {"$expr": raw}


@pytest.mark.parametrize(
    "raw",
    [
        {"status": "paid", "$gt": ["$total", 5]},
        {"$and": [{"status": "paid"}, {"$gt": ["$total", 5]}]},
        {"$or": [{"$eq": ["$a", 1]}, {"$expr": {"$eq": ["$b", 1]}}]},
        {"$eq": ["$a", 1], "$comment": "why"},
        {"$and": [{"$or": [{"$eq": ["$a", 1]}]}, {"$nor": [{"a": 1}]}]},
    ],
)
def test_a_mixture_is_refused(raw: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"beside the expression operator.*\$expr") as caught:
        compile_filter(raw)
    assert caught.value.option == "filter"
    assert caught.value.value == raw


@pytest.mark.parametrize(
    ("raw", "hint"),
    [
        ({"$eq": ["$a", 1], "$gt": ["$b", 1]}, "one operator"),
        ({"$and": [{"$eq": ["$a", 1], "$gt": ["$b", 1]}]}, "one operator"),
        ({"$or": [{"$eq": ["$a", 1]}], "$and": [{"$gt": ["$b", 1]}]}, "one operator"),
        ({"$nor": [{"$eq": ["$a", 1]}]}, r"no \$nor"),
    ],
)
def test_an_expression_that_the_server_would_refuse_puzzlingly(raw: dict[str, Any], hint: str) -> None:
    with pytest.raises(ConfigurationError, match=hint):
        compile_filter(raw)


@pytest.mark.parametrize(
    ("raw", "operator"),
    [
        ({"$where": "this.a > 1"}, "$where"),
        ({"$and": [{"a": 1}, {"$where": "this.a > 1"}]}, "$where"),
        ({"$text": {"$search": "x"}}, "$text"),
        ({"$or": [{"$text": {"$search": "x"}}]}, "$text"),
        ({"at": {"$near": [1, 2]}}, "$near"),
        ({"at": {"$nearSphere": [1, 2]}}, "$nearSphere"),
        ({"at": {"$geoNear": [1, 2]}}, "$geoNear"),
        ({"at": {"$not": {"$near": [1, 2]}}}, "$near"),
        ({"places": {"$elemMatch": {"at": {"$near": [1, 2]}}}}, "$near"),
        ({"places": {"$all": [{"$elemMatch": {"at": {"$near": [1, 2]}}}]}}, "$near"),
    ],
)
def test_operators_that_the_server_refuses_in_match_are_refused(raw: dict[str, Any], operator: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(f"{operator} here")) as caught:
        compile_filter(raw)
    assert caught.value.option == "filter"


@pytest.mark.parametrize("raw", [{"a": {"b": {"$where": 1}}}, {"a": {"$eq": {"$near": 1}}}, {"a": "$where"}])
def test_operators_within_values_are_values(raw: dict[str, Any]) -> None:
    assert compile_filter(raw).match(None) == raw


@pytest.mark.parametrize("raw", [[], "status", 5, [("status", "paid")], {1, 2}])
def test_what_is_not_a_document_is_refused(raw: Any) -> None:
    with pytest.raises(ConfigurationError, match="not a document"):
        compile_filter(raw)


@pytest.mark.parametrize("raw", [{1: 2}, {"a": {None: 1}}, {"$or": [{"a": 1}, {b"b": 1}]}])
def test_keys_that_are_not_strings_are_refused(raw: Any) -> None:
    with pytest.raises(ConfigurationError, match="not a string"):
        compile_filter(raw)


def test_a_filter_without_end_is_refused() -> None:
    endless: dict[str, Any] = {}
    endless["a"] = endless
    with pytest.raises(ConfigurationError, match="nested deeper"):
        compile_filter(endless)


@pytest.mark.parametrize(
    ("raw", "bound"),
    [
        ({"at": "$$NOW"}, {"at": NOW}),
        ({"at": {"$lte": "$$NOW"}}, {"at": {"$lte": NOW}}),
        *[({"at": {op: "$$NOW"}}, {"at": {op: NOW}}) for op in ("$eq", "$ne", "$gt", "$gte", "$lt")],
        ({"at": {"$in": [None, "$$NOW"]}}, {"at": {"$in": [None, NOW]}}),
        ({"at": {"$nin": ("$$NOW",)}}, {"at": {"$nin": [NOW]}}),
        ({"at": {"$not": {"$gt": "$$NOW"}}}, {"at": {"$not": {"$gt": NOW}}}),
        ({"at": {"$elemMatch": {"$gt": "$$NOW"}}}, {"at": {"$elemMatch": {"$gt": NOW}}}),
        ({"r": {"$elemMatch": {"at": {"$gt": "$$NOW"}}}}, {"r": {"$elemMatch": {"at": {"$gt": NOW}}}}),
        (
            {"r": {"$elemMatch": {"$or": [{"at": "$$NOW"}, {"n": 1}]}}},
            {"r": {"$elemMatch": {"$or": [{"at": NOW}, {"n": 1}]}}},
        ),
        (
            {"r": {"$all": [{"$elemMatch": {"at": "$$NOW"}}]}},
            {"r": {"$all": [{"$elemMatch": {"at": NOW}}]}},
        ),
        (
            {"$or": [{"a": 1}, {"$and": [{"at": {"$lt": "$$NOW", "$ne": None}}]}]},
            {"$or": [{"a": 1}, {"$and": [{"at": {"$lt": NOW, "$ne": None}}]}]},
        ),
    ],
)
def test_now_is_the_servers_time_in_comparisons(raw: dict[str, Any], bound: dict[str, Any]) -> None:
    compiled = compile_filter(raw)
    assert compiled.needs_now
    assert compiled.is_dynamic
    assert compiled.inputs is None
    assert compiled.match(NOW) == bound
    with pytest.raises(ValueError, match="time is needed"):
        compiled.match(None)


@pytest.mark.parametrize(
    "raw",
    [
        {"$expr": {"$lt": ["$at", "$$NOW"]}},
        {"a": {"text": "$$NOW"}},
        {"a": {"$eq": {"text": "$$NOW"}}},
        {"a": {"$regex": "$$NOW"}},
        {"a": ["$$NOW"]},
        {"$comment": "$$NOW"},
        {"$lt": ["$at", "$$NOW"]},
    ],
)
def test_now_elsewhere_is_left_to_the_server(raw: dict[str, Any]) -> None:
    compiled = compile_filter(raw)
    assert not compiled.needs_now
    assert compiled.match(NOW) == compiled.match(None)
    assert compiled.match(None) in (raw, {"$expr": raw})


@pytest.mark.parametrize(
    "raw",
    [
        {"$lt": ["$at", "$$NOW"]},
        {"$lt": [CHANCE, 0.5]},
        {"$expr": {"$eq": ["$ts", "$$CLUSTER_TIME"]}},
        {"$or": [{"a": 1}, {"$expr": {"$lt": ["$at", "$$NOW"]}}]},
        {"$sampleRate": 0.5},
    ],
)
def test_time_and_chance_make_a_filter_dynamic(raw: dict[str, Any]) -> None:
    compiled = compile_filter(raw)
    assert compiled.is_dynamic
    assert compiled.inputs is None


@pytest.mark.parametrize(
    ("raw", "inputs"),
    [
        ({"status": "paid"}, {"status"}),
        ({"a.b": 1, "c": {"$exists": True}}, {"a.b", "c"}),
        ({"$or": [{"a": 1}, {"$nor": [{"b.c": 2}]}]}, {"a", "b.c"}),
        ({"items": {"$elemMatch": {"sku": "x"}}}, {"items"}),
        ({"a": {"$not": {"$gt": 5}}}, {"a"}),
        ({"a": {"$all": [{"$elemMatch": {"b": 1}}, 5]}}, {"a"}),
        ({"a": {}}, {"a"}),
        ({"$comment": "why", "a": 1}, {"a"}),
        ({"$expr": {"$gt": ["$total", "$limit.max"]}, "a": 1}, {"a", "total", "limit.max"}),
        ({"$gt": ["$total", 5]}, {"total"}),
        ({"$expr": {"$gt": [{"$getField": "a.b"}, 5]}}, None),
        ({"$jsonSchema": {"required": ["a"]}}, None),
        ({"$eq": [{"$bsonSize": "$$ROOT"}, 5]}, None),
    ],
)
def test_inputs_are_the_fields_that_a_filter_reads(raw: dict[str, Any], inputs: set[str] | None) -> None:
    assert compile_filter(raw).inputs == inputs


def test_values_are_taken_as_they_are() -> None:
    class Custom:
        def __eq__(self, other: object) -> bool:
            raise AssertionError("nobody compares users' values")

        __hash__ = None  # pyright: ignore[reportAssignmentType] - as a value that can't be hashed

    value, pattern = Custom(), re.compile("^a")
    matched = compile_filter({"a": value, "b": {"$in": [value, pattern]}}).match(None)
    assert matched["a"] is value
    members = matched["b"]
    assert isinstance(members, dict)
    assert members["$in"][1] is pattern


def test_later_changes_to_the_users_filter_do_not_matter() -> None:
    tags = ["new"]
    raw: dict[str, Any] = {"tags": {"$in": tags}}
    compiled = compile_filter(raw)
    tags.append("old")
    raw["more"] = 1
    assert compiled.match(None) == {"tags": {"$in": ["new"]}}


def test_any_mapping_will_do() -> None:
    assert compile_filter(MappingProxyType({"a": MappingProxyType({"$gt": 5})})).match(None) == {
        "a": {"$gt": 5}
    }


def test_a_filter_is_frozen() -> None:
    with pytest.raises(AttributeError):
        compile_filter({}).is_dynamic = True  # pyright: ignore[reportAttributeAccessIssue] - the point
