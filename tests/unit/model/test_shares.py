"""Priority first, then fair shares."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oplogue.model.shares import Offer, fair_shares

NAMES = st.sampled_from("abcdefgh")


@pytest.mark.parametrize(
    ("free", "offers", "expected"),
    [
        (10, [], {}),
        (0, [Offer("a", 5)], {}),
        (10, [Offer("a", 0)], {}),
        (10, [Offer("a", 3)], {"a": 3}),
        (10, [Offer("a", 1000), Offer("b", 1000)], {"a": 5, "b": 5}),
        (10, [Offer("a", 1000), Offer("b", 2)], {"a": 8, "b": 2}),
        (3, [Offer("a", 9), Offer("b", 9, priority=1)], {"b": 3}),
        (5, [Offer("a", 9), Offer("b", 2, priority=1), Offer("c", 9, priority=-1)], {"b": 2, "a": 3}),
    ],
)
def test_shares(free: int, offers: list[Offer], expected: dict[str, int]) -> None:
    assert fair_shares(free, offers) == expected


def test_what_is_held_already_counts_as_a_part_of_the_share() -> None:
    assert fair_shares(1, [Offer("a", 9, held=9), Offer("b", 9)]) == {"b": 1}
    assert fair_shares(6, [Offer("a", 9, held=4), Offer("b", 9)]) == {"a": 1, "b": 5}


def test_single_slots_are_given_in_turn() -> None:
    served = {"a": 0, "b": 0, "c": 0}
    order = ""
    for round_ in range(1, 10):
        (name,) = fair_shares(1, [Offer(name, 9, served=last) for name, last in served.items()])
        served[name] = round_
        order += name
    assert order == "abc" * 3


@given(
    st.integers(0, 100),
    st.dictionaries(
        NAMES, st.tuples(st.integers(0, 50), st.integers(-2, 2), st.integers(0, 40), st.integers(0, 9))
    ),
)
def test_shares_are_all_that_fits_and_fair(free: int, given: dict[str, tuple[int, int, int, int]]) -> None:
    offers = [Offer(name, *values) for name, values in given.items()]
    shares = fair_shares(free, offers)
    assert sum(shares.values()) == min(free, sum(offer.count for offer in offers))
    for one in offers:
        mine = shares.get(one.task, 0)
        assert 0 <= mine <= one.count
        for other in offers:
            theirs = shares.get(other.task, 0)
            if one.priority > other.priority and theirs:
                assert mine == one.count
            if one.priority == other.priority and mine and one.held + mine > other.held + theirs + 1:
                assert theirs == other.count
