"""What the engine does is counted as the metrics promise."""

from __future__ import annotations

import ast
import re
from datetime import timedelta
from pathlib import Path

import pytest

import oplogue
from oplogue.clock import Clock
from oplogue.model import metrics, states
from oplogue.model.metrics import Metric
from oplogue.model.states import Transition
from oplogue.runtime.bus import Bus
from oplogue.runtime.meter import PARTS, Meter

STARTERS = ("keep_running", "report", "_run_errand")
SECOND = timedelta(seconds=1)

COMPLETED = states.completed(duration_ms=40, debounce=SECOND, history_limit=5)
SKIPPED = states.skipped(duration_ms=40, debounce=SECOND, history_limit=5)
MOVED = states.moved({}, duration_ms=40, debounce=SECOND, history_limit=5)
RETRIED = states.retried(
    SECOND, error="e", duration_ms=40, again_in=SECOND, resets_attempts=True, history_limit=5
)
FAILED = states.failed(error="e", duration_ms=40, again_in=SECOND, resets_attempts=True, history_limit=5)


@pytest.mark.parametrize(
    ("transition", "status", "also"),
    [
        (COMPLETED, "success", None),
        (SKIPPED, "success", metrics.SKIPS),
        (MOVED, "success", metrics.SKIPS),
        (RETRIED, "failed", metrics.RETRIES),
        (FAILED, "failed", metrics.DEAD_LETTERS),
        (states.deferred(SECOND), None, metrics.DEFERRALS),
        (states.released(debounce=SECOND), None, None),
    ],
)
def test_a_run_is_counted_by_how_it_ended(
    transition: Transition, status: str | None, also: Metric | None
) -> None:
    meter = Meter(Bus(Clock(), "i"))
    meter.run_ended("sync", transition)
    read = meter.read()
    runs = {series: one.sum for series, one in read.histograms.items()}
    assert runs == ({} if status is None else {(metrics.DURATION.name, "sync", status): 0.04})
    assert read.counters == ({} if also is None else {(also.name, "sync"): 1})


@pytest.mark.parametrize(
    ("code", "fields", "series", "amount"),
    [
        ("task.lease_lost", {"task": "t", "doc_id": 1, "attempt": 1}, (metrics.LOST_LEASES, "t"), 1),
        ("task.dead_letter", {"task": "t", "count": 3}, (metrics.DEAD_LETTERS, "t"), 3),
        ("leadership.gained", {"term": 1}, (metrics.LEADER_ELECTIONS,), 1),
        ("planner.planned", {"count": 7}, (metrics.PLANNED,), 7),
        (
            "planner.parked",
            {"source": "a.b", "doc_id": 1, "task": "t", "error": "e"},
            (metrics.PARKED, "t"),
            1,
        ),
        ("planner.batch_failed", {"count": 9, "error": "e"}, (metrics.FAILED_BATCHES,), 1),
        ("planner.stream_error", {"error": "e"}, (metrics.STREAM_ERRORS,), 1),
        ("planner.history_lost", {"error": "e"}, (metrics.HISTORY_LOSSES,), 1),
        (
            "reconciliation.finished",
            {"source": "a.b", "tasks": ["t"], "documents": 5},
            (metrics.RECONCILIATIONS,),
            1,
        ),
        ("claim.failed", {"source": "a.b", "error": "e"}, (metrics.FAILED_OPERATIONS, "claim"), 1),
        ("settle.failed", {"source": "a.b", "error": "e"}, (metrics.FAILED_OPERATIONS, "settle"), 1),
        ("lease.renewal_failed", {"error": "e"}, (metrics.FAILED_OPERATIONS, "renewal"), 1),
        (
            "part.failed",
            {"part": "leader", "error": "e", "exception": None},
            (metrics.PART_FAILURES, "leader"),
            1,
        ),
    ],
)
def test_what_is_rare_is_counted_from_its_event(
    code: str, fields: dict[str, object], series: tuple[Metric | str, ...], amount: int
) -> None:
    bus = Bus(Clock(), "i")
    meter = Meter(bus)
    bus.emit(code, **fields)
    bus.emit(code, **fields)
    named = tuple(part.name if isinstance(part, Metric) else part for part in series)
    assert meter.read().counters == {named: 2 * amount}


def test_claims_settles_and_wake_ups_are_counted() -> None:
    meter = Meter(Bus(Clock(), "i"))
    meter.claimed(20, 0.004)
    meter.claimed(30, 0.004)
    meter.settled(0.002)
    meter.woken()
    read = meter.read()
    sums = {series[0]: (one.count, one.sum) for series, one in read.histograms.items()}
    assert sums == {
        metrics.CLAIM_DURATION.name: (2, 0.008),
        metrics.CLAIMED_RECORDS.name: (2, 50),
        metrics.SETTLE_DURATION.name: (1, 0.002),
    }
    assert read.counters == {(metrics.WAKE_UPS.name,): 1}


def test_parts_that_may_fail_are_counted_from_zero() -> None:
    """A rate needs a first value to rise from."""
    named: set[str] = set()
    for path in sorted(Path(oplogue.__path__[0]).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in STARTERS:
                named |= {
                    argument.value
                    for argument in node.args
                    if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
                }
    assert named == set(PARTS)


def test_every_metric_is_counted_or_read_somewhere() -> None:
    """One that nothing feeds would be exported as zero for ever."""
    runtime = Path(oplogue.__path__[0]) / "runtime"
    code = "\n".join(path.read_text(encoding="utf-8") for path in sorted(runtime.glob("*.py")))
    used = set(re.findall(r"\bmetrics\.([A-Z_]+)\b", code))
    assert {name for name, found in vars(metrics).items() if isinstance(found, Metric)} == used - {"METRICS"}
