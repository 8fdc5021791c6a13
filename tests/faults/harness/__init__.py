"""What the rows of the fault matrix share: processes, writers, the oracle, reports."""

from __future__ import annotations

from harness.failpoints import FailPoint
from harness.oracle import Oracle, Run, Verdict
from harness.processes import Worker, WorkerConfig
from harness.report import Report, percentile
from harness.scene import Scene, task
from harness.waiting import CLOCK, until
from harness.writer import Writer

__all__ = [
    "CLOCK",
    "FailPoint",
    "Oracle",
    "Report",
    "Run",
    "Scene",
    "Verdict",
    "Worker",
    "WorkerConfig",
    "Writer",
    "percentile",
    "task",
    "until",
]
