"""Which leases are to be renewed, and which have passed."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from oplogue.clock import Clock
from oplogue.model.definition import Namespace
from oplogue.runtime.leases import LeaseBook

ORDERS = Namespace("shop", "orders")


class SetClock(Clock):
    """A clock that a test moves."""

    time = 100.0

    def monotonic(self) -> float:
        return self.time


class ARun:
    """As much of a run as the book looks at."""

    deadline = None
    definition = SimpleNamespace(source=ORDERS)

    def __init__(self, token: str, id_: int) -> None:
        self.record = SimpleNamespace(token=token, id=id_)


def a_run(token: str, id_: int) -> Any:
    """One of them."""
    return ARun(token, id_)


def make_book() -> tuple[LeaseBook, SetClock]:
    """A book of leases of 60 s."""
    clock = SetClock()
    return LeaseBook(timedelta(seconds=60), clock), clock


def test_a_lease_is_renewed_when_a_third_of_it_has_passed() -> None:
    book, clock = make_book()
    book.hold([a_run("t", 1), a_run("t", 2), a_run("u", 3)], 100.0)
    clock.time = 119.9
    assert not book.fading()
    clock.time = 120.0
    assert book.fading() == {ORDERS: {"t": [1, 2], "u": [3]}}


def test_a_renewed_lease_counts_from_before_the_renewal() -> None:
    book, clock = make_book()
    book.hold([a_run("t", 1)], 100.0)
    clock.time = 125.0
    assert book.renewed({"t": [1]}, [], 121.0) == []
    clock.time = 140.9
    assert not book.fading()
    clock.time = 141.0
    assert book.fading() == {ORDERS: {"t": [1]}}


def test_what_is_lost_is_handed_out() -> None:
    book, _ = make_book()
    runs = [a_run("t", 1), a_run("t", 2)]
    book.hold(runs, 100.0)
    assert book.renewed({"t": [1, 2]}, [("t", 2)], 121.0) == [runs[1]]


def test_a_lease_that_has_passed_is_expired() -> None:
    book, clock = make_book()
    run = a_run("t", 1)
    book.hold([run], 100.0)
    clock.time = 159.9
    assert book.expired() == []
    clock.time = 160.0
    assert book.expired() == [run]


def test_a_dropped_lease_is_neither_renewed_nor_expired() -> None:
    book, clock = make_book()
    run = a_run("t", 1)
    book.hold([run], 100.0)
    book.drop(run)
    book.drop(run)
    clock.time = 500.0
    assert (len(book), book.expired(), dict(book.fading())) == (0, [], {})


def test_a_renewal_that_comes_back_after_its_lease_was_dropped_revives_nothing() -> None:
    book, clock = make_book()
    run = a_run("t", 1)
    book.hold([run], 100.0)
    book.drop(run)
    assert book.renewed({"t": [1]}, [], 121.0) == []
    clock.time = 500.0
    assert book.expired() == []
