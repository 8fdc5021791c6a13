"""The demo's verdict: what it finds missing when something was not handled."""

from __future__ import annotations

import pytest

from oplogue.cli.audit import Found, gaps
from oplogue.cli.customers import Book
from oplogue.cli.shop import NOTIFY, RATE, SYNC, Key

Values = dict[str, int]

EXPECTED: dict[Key, Values] = {(SYNC, 1): {"total": 5}, (SYNC, 2): {"total": 7}}
RECORDS: dict[Key, Found] = {key: Found("completed", values) for key, values in EXPECTED.items()}
LEDGER = dict(EXPECTED)


def test_nothing_is_missing_when_records_and_ledger_agree_with_what_was_written() -> None:
    assert gaps(EXPECTED, RECORDS, LEDGER) == []


def test_an_order_that_the_ledger_misses_is_told() -> None:
    ledger: dict[Key, Values] = {(SYNC, 1): {"total": 5}}
    assert gaps(EXPECTED, RECORDS, ledger) == ["sync-order of 2: its handler never came to its end"]


def test_an_order_without_a_record_is_told() -> None:
    records: dict[Key, Found] = {(SYNC, 2): RECORDS[SYNC, 2]}
    assert gaps(EXPECTED, records, LEDGER) == ["sync-order of 1: it has no record"]


@pytest.mark.parametrize("status", ["pending", "processing", "processing_dirty", "failed"])
def test_a_record_that_is_not_completed_is_told(status: str) -> None:
    records = {**RECORDS, (SYNC, 2): Found(status, {"total": 7})}
    assert gaps(EXPECTED, records, LEDGER) == [f"sync-order of 2: its record is {status}, not completed"]


def test_a_record_with_older_values_is_told() -> None:
    records = {**RECORDS, (SYNC, 1): Found("completed", {"total": 4})}
    assert gaps(EXPECTED, records, LEDGER) == [
        "sync-order of 1: its record has {'total': 4}, its document {'total': 5}"
    ]


def test_a_handler_that_last_ran_with_older_values_is_told() -> None:
    ledger = {**LEDGER, (SYNC, 1): {"total": 4}}
    assert gaps(EXPECTED, RECORDS, ledger) == [
        "sync-order of 1: its handler last ran with {'total': 4}, its document has {'total': 5}"
    ]


def test_the_book_expects_each_paid_order_synced_and_told_of_and_each_reviewed_product_rated() -> None:
    book = Book(orders=3, paid={1: 5}, reviews={"lamp": 4})
    assert book.expected() == {
        (SYNC, 1): {"total": 5},
        (NOTIFY, 1): {"status": "shipped"},
        (RATE, "lamp"): {"reviews": 4},
    }
