"""Every edge between the states of a record, as one table."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from oplogue.model import states
from oplogue.model.states import RUNNING, Reason, Status, Transition

SECOND = timedelta(seconds=1)
AT = datetime(2026, 1, 1, tzinfo=UTC)

EDGES = [
    # transition, status, counts as an attempt, ends an error sequence
    (
        states.completed(duration_ms=1, debounce=SECOND, history_limit=5),
        Reason.COMPLETED,
        Status.COMPLETED,
        True,
        True,
    ),
    (
        states.skipped(duration_ms=1, debounce=SECOND, history_limit=5),
        Reason.SKIPPED,
        Status.COMPLETED,
        True,
        True,
    ),
    (
        states.moved({}, duration_ms=1, debounce=SECOND, history_limit=5),
        Reason.MOVED,
        Status.PENDING,
        True,
        True,
    ),
    (
        states.retried(
            SECOND, error="E", duration_ms=1, again_in=SECOND, resets_attempts=True, history_limit=5
        ),
        Reason.RETRIED,
        Status.PENDING,
        True,
        False,
    ),
    (
        states.failed(error="E", duration_ms=1, again_in=SECOND, resets_attempts=True, history_limit=5),
        Reason.FAILED,
        Status.FAILED,
        True,
        False,
    ),
    (states.deferred(SECOND), Reason.DEFERRED, Status.PENDING, False, False),
    (states.deferred(AT), Reason.DEFERRED, Status.PENDING, False, False),
    (states.released(debounce=SECOND), Reason.RELEASED, Status.PENDING, False, False),
]


@pytest.mark.parametrize(
    ("made", "reason", "status", "counts", "succeeded"), EDGES, ids=[str(edge[1]) for edge in EDGES]
)
def test_edges(made: Transition, reason: Reason, status: Status, counts: bool, succeeded: bool) -> None:
    assert (made.reason, made.status, made.counts, made.succeeded) == (reason, status, counts, succeeded)


def test_every_reason_has_an_edge() -> None:
    assert {reason for _, reason, *_ in EDGES} == set(Reason)


def test_only_what_becomes_pending_says_when() -> None:
    for made, _, status, *_ in EDGES:
        says_when = made.run_in is not None or made.run_at is not None
        assert says_when == (status is Status.PENDING)
        assert made.run_in is None or made.run_at is None


def test_only_failures_have_an_error() -> None:
    for made, reason, *_ in EDGES:
        assert (made.error is not None) == (reason in (Reason.RETRIED, Reason.FAILED))


def test_a_deferral_says_for_how_long_or_until_when() -> None:
    assert states.deferred(SECOND).run_in == SECOND
    assert states.deferred(AT).run_at == AT


def test_equal_ends_are_equal() -> None:
    assert states.released(debounce=SECOND) == states.released(debounce=SECOND)
    assert hash(states.deferred(AT)) == hash(states.deferred(AT))


def test_statuses_are_the_words_on_disk() -> None:
    assert [str(status) for status in Status] == [
        "pending",
        "processing",
        "processing_dirty",
        "completed",
        "failed",
    ]
    assert RUNNING == (Status.PROCESSING, Status.PROCESSING_DIRTY)
