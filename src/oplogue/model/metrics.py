"""Every metric there is: its name, type, labels and meaning. The page ``docs/reference/metrics.md`` promises the same.

An *instance's* metrics are about what one instance did: in the cluster they are added up. The *cluster's* metrics
are about the database, the same whoever looks.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from oplogue.model.figures import Histogram


class Kind(Enum):
    """A metric's type, in Prometheus's words."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. Its name is a promise."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    """A histogram's upper bounds; the last bucket, without a bound, is not among them."""
    of_cluster: bool = False
    """Whether it is about the whole cluster, and not about what one instance did."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a metric stands at, for one combination of its labels."""

    metric: Metric
    labels: tuple[str, ...]
    value: float | Histogram


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""What the bytes of `App.get_prometheus_metrics` are: the header that goes with them."""

METRICS: dict[str, Metric] = {}
"""All metrics by name, in the order of the reference."""

_TASK = ("task_name",)
_RUNS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
_STATEMENTS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_RECORDS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)


def _metric(metric: Metric) -> Metric:
    METRICS[metric.name] = metric
    return metric


def _counter(name: str, help: str, labels: tuple[str, ...] = ()) -> Metric:
    return _metric(Metric(f"reactive_tasks_{name}_total", Kind.COUNTER, help, labels))


def _histogram(
    name: str, help: str, bounds: tuple[float, ...] = _STATEMENTS, labels: tuple[str, ...] = ()
) -> Metric:
    return _metric(Metric(f"reactive_tasks_{name}", Kind.HISTOGRAM, help, labels, bounds))


def _gauge(name: str, help: str, labels: tuple[str, ...] = (), *, of_cluster: bool = True) -> Metric:
    return _metric(Metric(f"reactive_tasks_{name}", Kind.GAUGE, help, labels, of_cluster=of_cluster))


# -- runs

DURATION = _histogram(
    "duration_seconds",
    "How long runs took, by how they ended: success (skips too) or failed (each failed attempt).",
    _RUNS,
    ("task_name", "status"),
)
RETRIES = _counter("retries", "Failed attempts that are followed by another.", _TASK)
DEAD_LETTERS = _counter("dead_letters", "Records that failed for good.", _TASK)
SKIPS = _counter("skips", "Runs that were needless: the document is gone, outside, or moved on.", _TASK)
DEFERRALS = _counter("deferrals", "Runs that put themselves off.", _TASK)
LOST_LEASES = _counter("lost_leases", "Runs whose record was lost to another instance.", _TASK)

# -- the backlog

QUEUE_DEPTH = _gauge("queue_depth", "Records by status.", ("task_name", "status"))
GLOBAL_LAG = _gauge("global_lag_seconds", "How long the oldest pending record has been due.", _TASK)

# -- the planner

STREAM_LAG = _gauge(
    "change_stream_lag_seconds", "How long ago the newest change was made that is planned with all before it."
)
LAST_RECONCILIATION = _gauge(
    "last_reconciliation_timestamp_seconds", "When a reconciliation last finished, in Unix time."
)
UNRECONCILED = _gauge("unreconciled", "Tasks whose documents are still to be reconciled.")
RECONCILED_DOCUMENTS = _gauge(
    "reconciliation_documents", "Documents that the reconciliation under way has planned.", ("collection",)
)
DOCUMENTS_TO_RECONCILE = _gauge(
    "reconciliation_estimated_documents", "About how many documents it has to plan.", ("collection",)
)
PLANNED = _counter("planned_documents", "Changed documents that were planned.")
PARKED = _counter(
    "parked_documents", "Documents that were put aside because they could not be planned.", _TASK
)
FAILED_BATCHES = _counter("failed_batches", "Batches of changes that could not be planned at once.")
STREAM_ERRORS = _counter("stream_errors", "Times that the change stream broke and was opened again.")
HISTORY_LOSSES = _counter("history_losses", "Times that the stream's position was lost.")
RECONCILIATIONS = _counter("reconciliations", "Collections that were reconciled to their end.")

# -- the cluster

LEADER = _gauge(
    "leader",
    "1 on the instance that leads, 0 on others; in cluster mode 1 while any leads.",
    of_cluster=False,
)
LEADER_ELECTIONS = _counter("leader_elections", "Times that an instance became the leader.")
INSTANCES = _gauge("instances", "Instances that are alive.")

# -- the executor

SLOTS = _gauge("slots", "Handlers that can run at once.", of_cluster=False)
SLOTS_IN_USE = _gauge("slots_in_use", "Handlers that run now.", of_cluster=False)
WAKE_UPS = _counter("wake_ups", "Times that the planner's or another instance's word woke the claims.")
CLAIM_DURATION = _histogram("claim_duration_seconds", "How long claims took.")
CLAIMED_RECORDS = _histogram("claimed_records", "How many records each claim took.", _RECORDS)
SETTLE_DURATION = _histogram("settle_duration_seconds", "How long writing groups of outcomes took.")
FAILED_OPERATIONS = _counter(
    "failed_operations", "Claims, settles and renewals that failed and were tried again.", ("operation",)
)
PART_FAILURES = _counter(
    "part_failures", "Parts of an instance that failed and were started again.", ("part",)
)
