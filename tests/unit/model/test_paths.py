from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oplogue.model.paths import (
    EVERY_KEY,
    LONGEST_PATTERN,
    expression_inputs,
    is_dynamic,
    key_pattern,
    merge_patterns,
)

CHANCE: dict[str, object] = {"$rand": {}}

names = st.sampled_from(["a", "b", "items", "x.", "a+b", "0", "12", "2024"])
paths = st.lists(names.map(lambda name: name.replace(".", "·")), min_size=1, max_size=4).map(".".join)


@pytest.mark.parametrize(
    ("expression", "inputs"),
    [
        ("paid", set[str]()),
        (5, set[str]()),
        (None, set[str]()),
        ("$status", {"status"}),
        ("$a.b.c", {"a.b.c"}),
        ("$$ROOT.a.b", {"a.b"}),
        ("$$CURRENT.a", {"a"}),
        ("$$NOW", set[str]()),
        ("$$CLUSTER_TIME", set[str]()),
        ("$$REMOVE", set[str]()),
        (["$a", 1, ["$b"]], {"a", "b"}),
        ({"$eq": ["$status", "paid"]}, {"status"}),
        ({"$literal": "$status"}, set[str]()),
        ({"$const": {"$getField": "x"}}, set[str]()),
        ({"total": "$total", "deep": {"x": "$y"}}, {"total", "y"}),
        ({"$cond": {"if": "$a", "then": "$b", "else": "$c"}}, {"a", "b", "c"}),
        ({"$let": {"vars": {"x": "$a.b"}, "in": {"$add": ["$$x", "$c"]}}}, {"a.b", "c"}),
        ({"$map": {"input": "$items", "as": "i", "in": "$$i.price"}}, {"items"}),
        ({"$filter": {"input": "$items", "cond": {"$gt": ["$$this.n", "$least"]}}}, {"items", "least"}),
        (
            {"$reduce": {"input": "$n", "initialValue": 0, "in": {"$add": ["$$value", "$$this"]}}},
            {"n"},
        ),
        (
            {"$switch": {"branches": [{"case": "$a", "then": "$b"}], "default": "$c"}},
            {"a", "b", "c"},
        ),
        ({"$dateToString": {"date": "$at", "format": "%Y"}}, {"at"}),
        ({"$sortArray": {"input": "$items", "sortBy": {"price": 1}}}, {"items"}),
    ],
)
def test_inputs_are_the_field_paths_of_the_expression(expression: object, inputs: set[str]) -> None:
    assert expression_inputs(expression) == inputs


@pytest.mark.parametrize(
    "expression",
    [
        "$$ROOT",
        "$$CURRENT",
        "$$USER_ROLES",
        "$",
        {"$bsonSize": "$$ROOT"},
        {"$getField": "status"},
        {"$getField": {"field": "status", "input": "$$ROOT"}},
        {"$setField": {"field": "x", "input": "$a", "value": 1}},
        {"$unsetField": {"field": "x", "input": "$a"}},
        {"$meta": "textScore"},
        {"$rand": {}},
        {"$function": {"body": "f", "args": ["$a"], "lang": "js"}},
        {"$operatorOfTheFuture": "$a"},
        {"$add": ["$a", {"$getField": "b"}]},
        {"$eq": ["$a", 1], "$gt": ["$b", 1]},
        {"$let": {"vars": {"CURRENT": "$sub"}, "in": "$x"}},
        {"$map": {"input": "$items", "as": "CURRENT", "in": "$x"}},
    ],
)
def test_inputs_that_cannot_be_known_are_none(expression: object) -> None:
    assert expression_inputs(expression) is None


@pytest.mark.parametrize(
    ("expression", "dynamic"),
    [
        ("$$NOW", True),
        ("$$NOWADAYS", False),
        ("$NOW", False),
        ({"$lt": ["$at", {"$subtract": ["$$NOW", 5]}]}, True),
        ({"$eq": ["$ts", "$$CLUSTER_TIME"]}, True),
        ({"$lt": [CHANCE, 0.1]}, True),
        ({"x": {"$sampleRate": 0.1}}, True),
        ({"$eq": ["$a", {"$literal": "$$NOW"}]}, False),
        ({"$eq": ["$a", 1]}, False),
        (None, False),
    ],
)
def test_time_and_chance_make_an_expression_dynamic(expression: object, dynamic: bool) -> None:
    assert is_dynamic(expression) is dynamic


@pytest.mark.parametrize(
    ("path", "key", "matches"),
    [
        ("a", "a", True),
        ("a", "a.b", True),
        ("a", "a.0", True),
        ("a", "ab", False),
        ("a", "b.a", False),
        ("a.b", "a", True),
        ("a.b", "a.0", True),
        ("a.b", "a.0.b", True),
        ("a.b", "a.0.1.b.2", True),
        ("a.b", "a.b.c.d", True),
        ("a.b", "a.c", False),
        ("a.b", "a.0.c", False),
        ("a.b", "a.bc", False),
        ("a.0.b", "a.3.b", True),
        ("a.0.b", "a", True),
        ("a.0", "a.7", True),
        ("2024.total", "2024.total", True),
        ("2024.total", "2024", True),
        ("2024.total", "2023.total", False),
        ("2024.total", "total", False),
        ("0.1", "0", True),
        ("a+b", "a+b", True),
        ("a+b", "aab", False),
        ("a*", "a", False),
        ("Ä", "Ä.x", True),
    ],
)
def test_key_pattern_matches_parents_and_children(path: str, key: str, matches: bool) -> None:
    assert bool(re.search(key_pattern(path), key)) is matches


@given(paths, st.lists(names, max_size=2))
def test_key_pattern_matches_every_prefix_and_every_extension(path: str, more: list[str]) -> None:
    pattern = re.compile(key_pattern(path))
    segments = path.split(".")
    for length in range(1, len(segments) + 1):
        assert pattern.search(".".join(segments[:length]))
    assert pattern.search(".".join(segments + [name.replace(".", "·") for name in more]))


@given(paths, st.data())
def test_key_pattern_ignores_places_in_arrays(path: str, data: st.DataObject) -> None:
    segments = path.split(".")
    key = [segments[0]]
    for segment in segments[1:]:
        key += [str(data.draw(st.integers(0, 99)))] * data.draw(st.integers(0, 2))
        key.append(segment)
    assert re.search(key_pattern(path), ".".join(key))


@given(paths, paths)
def test_key_pattern_does_not_match_another_field(path: str, other: str) -> None:
    assert not re.search(key_pattern(f"mine.{path}"), f"other.{other}")


def test_no_paths_give_no_pattern() -> None:
    assert merge_patterns([]) is None


def test_merged_patterns_leave_out_what_a_parent_covers() -> None:
    assert merge_patterns(["b.c", "a.b.0", "a", "b.c"]) == f"{key_pattern('a')}|{key_pattern('b.c')}"


def test_merged_patterns_do_not_depend_on_the_order() -> None:
    assert merge_patterns(["x", "a.b", "a.3.b"]) == merge_patterns(["a.b", "x"])


@given(st.lists(paths, min_size=1, max_size=5), paths)
def test_the_merged_pattern_matches_what_one_of_its_patterns_matches(wanted: list[str], key: str) -> None:
    merged = merge_patterns(wanted)
    assert merged is not None
    assert bool(re.search(merged, key)) is any(re.search(key_pattern(path), key) for path in wanted)


def test_a_pattern_too_long_for_the_server_is_widened_to_the_outermost_names() -> None:
    merged = merge_patterns(f"a{place % 3}.field{place}" for place in range(2_000))
    assert merged == "|".join(key_pattern(name) for name in ("a0", "a1", "a2"))


def test_a_pattern_that_stays_too_long_matches_every_key() -> None:
    assert merge_patterns(f"field{place}" for place in range(LONGEST_PATTERN)) == EVERY_KEY
