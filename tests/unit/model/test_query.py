from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from oplogue.model.query import predicates, with_now

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({}, []),
        ({"a": 1}, [("a", "$eq", 1)]),
        ({"a": {"b": 1, "$gt": 2}}, [("a", "$eq", {"b": 1, "$gt": 2})]),
        ({"a": {"$gt": 1, "$lt": 5}}, [("a", "$gt", 1), ("a", "$lt", 5)]),
        ({"$comment": "x"}, [(None, "$comment", "x")]),
        ({"$or": [{"a": 1}, 5], "$and": "x"}, [("a", "$eq", 1)]),
        ({"a": {"$not": {"$gt": 1}}}, [("a", "$not", {"$gt": 1}), ("a", "$gt", 1)]),
        (
            {"a": {"$elemMatch": {"b": 1, "$or": [{"c": 2}]}}},
            [("a", "$elemMatch", {"b": 1, "$or": [{"c": 2}]}), ("a", "$eq", 1), ("a", "$eq", 2)],
        ),
        ({"a": {"$elemMatch": {"$gt": 1}}}, [("a", "$elemMatch", {"$gt": 1}), ("a", "$gt", 1)]),
        ({"a": {"$in": [{"$gt": 1}]}}, [("a", "$in", [{"$gt": 1}])]),
    ],
)
def test_predicates_are_found_at_every_level_but_within_values(
    query: dict[str, Any], found: list[Any]
) -> None:
    assert [(p.path, p.operator, p.operand) for p in predicates(query)] == found


def test_the_query_itself_is_not_changed() -> None:
    query = {"$or": [{"at": {"$in": ["$$NOW", {"at": "$$NOW"}]}}], "n": 1}
    assert with_now(query, NOW) == {"$or": [{"at": {"$in": [NOW, {"at": "$$NOW"}]}}], "n": 1}
    assert query == {"$or": [{"at": {"$in": ["$$NOW", {"at": "$$NOW"}]}}], "n": 1}


@pytest.mark.parametrize(
    "query",
    [
        {"$or": "$$NOW"},
        {"a": {"$in": "$$NOW"}},
        {"a": {"$not": "$$NOW"}},
        {"a": {"$all": ["$$NOW"]}},
        {"a": {}},
    ],
)
def test_what_the_server_will_refuse_is_left_to_it(query: dict[str, Any]) -> None:
    assert with_now(query, NOW) == query
    assert not any(predicate.compares_with_now for predicate in predicates(query))
