"""The page of metrics says what the code's table says."""

from __future__ import annotations

import re
from pathlib import Path

from oplogue.model.metrics import METRICS

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"


def test_page_of_metrics_lists_every_metric_of_the_code_in_order() -> None:
    rows = [row for row in PAGE.read_text().splitlines() if row.startswith("| `reactive_tasks_")]
    listed: list[tuple[str, ...]] = []
    for row in rows:
        name, kind, labels, whose, meaning = (cell.strip() for cell in row.strip("|").split("|"))
        assert meaning
        listed.append((name.strip("`"), kind, ",".join(re.findall("`([a-z_]+)`", labels)), whose))
    of_code = [
        (name, metric.kind.value, ",".join(metric.labels), "cluster" if metric.of_cluster else "instances")
        for name, metric in METRICS.items()
    ]
    assert listed == of_code
