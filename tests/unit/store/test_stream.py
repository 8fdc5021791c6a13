"""Which saved position may be used, and how."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from bson import Timestamp

from oplogue.store.stream import Following, Position, read_position

FOLLOWS = Following("shop", "pipeline-1", ("hash",))
TIME = Timestamp(1_700_000_000, 3)


def token(time: Timestamp) -> dict[str, Any]:
    return {"_data": (b"\x82" + struct.pack(">II", time.time, time.inc) + b"\x00").hex().upper()}


def stored(**fields: Any) -> dict[str, Any]:
    return {**Position(TIME, token(TIME)).stored(FOLLOWS, 1), **fields}


def test_a_position_of_the_same_stream_is_used_by_its_token() -> None:
    assert read_position(stored(), FOLLOWS) == Position(TIME, token(TIME))


@pytest.mark.parametrize(
    "fields",
    [
        {"target": "other"},
        {"target": ""},
        {"pipeline": "pipeline-2"},
        {"token": token(Timestamp(TIME.time + 9, 1))},
        {"token": {"_data": "zz"}},
        {"token": {"_data": "00"}},
        {"token": {}},
        {"token": "x"},
        {"token": None},
    ],
    ids=str,
)
def test_a_token_that_stands_for_something_else_is_not_used_but_its_time_is(fields: dict[str, Any]) -> None:
    assert read_position(stored(**fields), FOLLOWS) == Position(TIME)


@pytest.mark.parametrize("nonsense", [None, {}, {"time": "x"}, {"token": token(TIME)}])
def test_a_position_without_a_time_is_none(nonsense: dict[str, Any] | None) -> None:
    assert read_position(nonsense, FOLLOWS) is None


def test_a_position_goes_back_to_right_after_an_earlier_moment_and_never_forward() -> None:
    here = Position(TIME, token(TIME))
    assert here.not_after(Timestamp(TIME.time - 5, 7)) == Position(Timestamp(TIME.time - 5, 8))
    assert here.not_after(Timestamp(TIME.time + 5, 7)) == here
