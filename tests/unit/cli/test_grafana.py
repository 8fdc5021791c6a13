"""The dashboard as ``oplogue grafana`` prints it: what Grafana asks of it, and what it shows."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import combinations
from typing import Any

import pytest

from oplogue.model.metrics import METRICS


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    """What the command prints, with an encoding that does not know all of its characters."""
    ended = subprocess.run(
        [sys.executable, "-m", "oplogue.cli", "grafana"],
        capture_output=True,
        env={"PYTHONIOENCODING": "ascii"},
        timeout=60,
    )
    assert (ended.returncode, ended.stderr) == (0, b"")
    return json.loads(ended.stdout.decode())


def test_panels_have_ids_of_their_own_and_don_t_cover_one_another(dashboard: dict[str, Any]) -> None:
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert beside or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]


def test_every_panel_asks_the_chosen_data_source_and_says_what_it_shows(dashboard: dict[str, Any]) -> None:
    chosen = {"type": "prometheus", "uid": "${datasource}"}
    for panel in dashboard["panels"]:
        if panel["type"] != "row":
            assert panel["title"]
            assert panel["description"].endswith(".")
            assert panel["datasource"] == chosen
            assert [target["datasource"] for target in panel["targets"]] == [chosen] * len(panel["targets"])
            assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


def test_there_is_a_row_for_each_area(dashboard: dict[str, Any]) -> None:
    rows = [panel["title"] for panel in dashboard["panels"] if panel["type"] == "row"]
    assert rows == [
        "Health and lag",
        "Throughput and latency",
        "Queue",
        "Errors and retries",
        "Planner and leadership",
        "Reconciliation",
        "Executor and database",
    ]
    assert [panel["type"] for panel in dashboard["panels"]].count("heatmap") == 2


def test_every_query_goes_by_what_is_chosen_and_every_variable_is_used(dashboard: dict[str, Any]) -> None:
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    used: set[str] = set()
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            selectors = re.findall(r"(reactive_tasks_\w+)(\{.*?\})?", target["expr"])
            assert selectors
            for name, selector in selectors:
                metric = METRICS.get(name) or METRICS[re.sub(r"_(bucket|sum|count)$", "", name)]
                used |= set(re.findall(r"\$(\w+)", selector))
                assert 'job=~"$job"' in selector
                # In local mode the cluster's own metrics come from whoever leads, chosen or not.
                assert ('instance=~"$instance"' in selector) <= (not metric.of_cluster)
                assert ('task_name=~"$task"' in selector) == ("task_name" in metric.labels)
    assert used | {"datasource"} == variables


def test_every_metric_is_shown(dashboard: dict[str, Any]) -> None:
    shown = json.dumps(dashboard)
    assert not [name for name in METRICS if name not in shown]
