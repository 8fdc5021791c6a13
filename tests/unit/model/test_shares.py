"""Priority first, then fair shares."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oplogue.model.shares import fair_shares

NAMES = st.sampled_from("abcdefgh")


@pytest.mark.parametrize(
    ("free", "offers", "priorities", "expected"),
    [
        (10, {}, {}, {}),
        (0, {"a": 5}, {}, {}),
        (10, {"a": 0}, {}, {}),
        (10, {"a": 3}, {}, {"a": 3}),
        (10, {"a": 1000, "b": 1000}, {}, {"a": 5, "b": 5}),
        (10, {"a": 1000, "b": 2}, {}, {"a": 8, "b": 2}),
        (3, {"a": 9, "b": 9}, {"b": 1}, {"b": 3}),
        (5, {"a": 9, "b": 2, "c": 9}, {"b": 1, "c": -1}, {"b": 2, "a": 3}),
    ],
)
def test_shares(
    free: int, offers: dict[str, int], priorities: dict[str, int], expected: dict[str, int]
) -> None:
    assert fair_shares(free, offers, priorities) == expected


@given(
    st.integers(0, 100),
    st.dictionaries(NAMES, st.integers(0, 50)),
    st.dictionaries(NAMES, st.integers(-2, 2)),
)
def test_shares_are_all_that_fits_and_fair(
    free: int, offers: dict[str, int], priorities: dict[str, int]
) -> None:
    shares = fair_shares(free, offers, priorities)
    assert sum(shares.values()) == min(free, sum(offers.values()))
    assert all(0 < share <= offers[name] for name, share in shares.items())
    for one in offers:
        for other in offers:
            mine, theirs = shares.get(one, 0), shares.get(other, 0)
            rank, their_rank = priorities.get(one, 0), priorities.get(other, 0)
            if rank > their_rank and theirs:
                assert mine == offers[one]
            if rank == their_rank and mine > theirs + 1:
                assert theirs == offers[other]
