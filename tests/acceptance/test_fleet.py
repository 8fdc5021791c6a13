"""Three worker processes in each scrape mode, a ledger that handlers keep themselves, and a Prometheus that scrapes."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from tests.acceptance.test_readme import ROOT
from tests.support.fleet import ORDERS, Ledger, Worker, fleet, told_by
from tests.support.prometheus import MISSING, Prometheus, find_prometheus, prometheus

from oplogue.embedded import EmbeddedServer

Document = dict[str, Any]

PROCESSES = {"cluster": {"one": 1, "two": 1, "three": 1}, "local": {"one": 1, "two": 2}}
"""How many each worker has, in each scrape mode."""
DASHBOARD: Document = json.loads(files("oplogue").joinpath("grafana/reactive_tasks.json").read_text("utf-8"))
CHOSEN = {
    "${datasource}": "",
    "$job": ".*",
    "$instance": ".*",
    "$task": ".*",
    "$__rate_interval": "1m",
    "$__range": "5m",
}
"""What Grafana puts in the place of variables."""

needs_prometheus = pytest.mark.skipif(find_prometheus() is None, reason=MISSING)


@dataclass(frozen=True, slots=True)
class Scene:
    """Three processes that have done all that there was to do."""

    mode: str
    uri: str
    workers: tuple[Worker, ...]
    ledger: Ledger
    prometheus: Prometheus | None
    """It scrapes all addresses in local mode; in cluster mode two, each as a job of its own."""

    @property
    def jobs(self) -> dict[str, list[str]]:
        """The addresses that are scraped, by job."""
        addresses = [worker.address for worker in self.workers]
        return {"shop": addresses} if self.mode == "local" else {"a": addresses[:1], "b": addresses[1:2]}

    @property
    def asked(self) -> Prometheus:
        """The Prometheus of a test that needs one."""
        assert self.prometheus is not None
        return self.prometheus


@pytest.fixture(scope="module", params=["cluster", "local"])
def scene(
    request: pytest.FixtureRequest, replica_set: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    """A database, three processes and a Prometheus for each scrape mode, shared by the tests of this page."""
    mode, folder = str(request.param), tmp_path_factory.mktemp("fleet")
    uri = replica_set.uri_for(f"test_{uuid.uuid4().hex[:12]}")
    with ExitStack() as opened:
        client = opened.enter_context(MongoClient[Document](uri))
        opened.callback(client.drop_database, client.get_default_database().name)
        ledger = Ledger(client)
        workers = opened.enter_context(fleet(folder, uri, mode, PROCESSES[mode]))
        scene = Scene(mode, uri, workers, ledger, None)
        if find_prometheus() is not None:
            watching = opened.enter_context(prometheus(folder, scene.jobs, alerts()))
            # A rate needs a first value to rise from.
            while watching.one("count(reactive_tasks_slots)") != (3 if mode == "local" else 2):
                pass
            scene = replace(scene, prometheus=watching)
        ledger.write_orders()
        yield scene


def alerts() -> str:
    """The rules that the documents recommend."""
    page = (ROOT / "docs/how-to/monitoring.md").read_text("utf-8")
    (rules,) = re.findall(r"```yaml\n(groups:\n.*?)```", page, re.DOTALL)
    return rules


# -- sums


def names_of(worker: Worker, mode: str) -> list[str]:
    """The instances of a worker."""
    count = PROCESSES[mode][worker.name]
    return [worker.name] if count == 1 else [f"{worker.name}-{number + 1}" for number in range(count)]


def test_sums_are_the_ledger_s(scene: Scene) -> None:
    # In cluster mode each answer brings along what its own instance has counted.
    for worker in scene.workers * 2:
        worker.scrape()
    scrapes = [worker.scrape() for worker in scene.workers]
    names = {name for worker in scene.workers for name in names_of(worker, scene.mode)}
    assert set(scene.ledger.database["ledger"].distinct("by")) == names
    if scene.mode == "cluster":
        for scraped in scrapes:
            assert told_by(scraped) == scene.ledger.expected()
            assert (scraped.one("instances"), scraped.one("leader"), scraped.one("slots")) == (3, 1, 12)
            assert scraped.one("claimed_records_sum") == sum(scene.ledger.counts().values())
    else:
        for worker, scraped in zip(scene.workers, scrapes, strict=True):
            own = names_of(worker, scene.mode)
            assert told_by(scraped) == scene.ledger.expected(by={"$in": own})
            assert scraped.all("slots") == [4] * len(own)
        assert scrapes[1].all("slots", process="1") == scrapes[1].all("slots", process="2") == [4]
        assert sorted(value for scraped in scrapes for value in scraped.all("leader")) == [0, 0, 1]
        # What is about the cluster is there once.
        assert sorted(len(scraped.all("queue_depth")) for scraped in scrapes) == [0, 12]


@needs_prometheus
def test_sums_in_prometheus_are_the_ledger_s(scene: Scene) -> None:
    for (name, task, status), count in scene.ledger.expected().items():
        labels = f'task_name="{task}"' + (f', status="{status}"' if status else "")
        for job in scene.jobs:
            total = f'sum(reactive_tasks_{name}{{job="{job}", {labels}}})'
            while scene.asked.one(total) != count:
                pass


# -- the dashboard


def queries() -> list[Any]:
    """Every query of the dashboard, by its panel's title."""
    return [
        pytest.param(target["expr"], id=f"{panel['title']} {target['refId']}")
        for panel in DASHBOARD["panels"]
        for target in panel.get("targets", ())
    ]


def chosen(query: str) -> str:
    """The query as Grafana sends it."""
    for variable, value in CHOSEN.items():
        query = query.replace(variable, value)
    assert "$" not in query
    return query


@needs_prometheus
@pytest.mark.parametrize("query", queries())
def test_every_query_of_the_dashboard_finds_figures(scene: Scene, query: str) -> None:
    for job in scene.jobs:
        total = f'sum(reactive_tasks_claimed_records_sum{{job="{job}"}})'
        while scene.asked.one(total) != sum(scene.ledger.counts().values()):
            pass
    found = scene.asked.query(chosen(query))
    assert found
    assert not [labels for labels, value in found if math.isnan(value)]
    exported = {family for worker in scene.workers for family in worker.scrape().types}
    for name in re.findall(r"reactive_tasks_\w+", query):
        assert re.sub(r"_(bucket|sum|count|total)$", "", name) in exported


@needs_prometheus
@pytest.mark.parametrize(
    "variable",
    [one for one in DASHBOARD["templating"]["list"] if one["type"] == "query"],
    ids=lambda one: one["name"],
)
def test_every_variable_of_the_dashboard_has_values(scene: Scene, variable: Document) -> None:
    asked = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"])
    assert asked is not None
    values = {series[asked[2]] for series in scene.asked.series(chosen(asked[1]))}
    expected = {
        "job": set(scene.jobs),
        "instance": {address for addresses in scene.jobs.values() for address in addresses},
        "task": {"bill", "ship", "archive"},
    }
    assert values == expected[variable["name"]]


@needs_prometheus
def test_the_recommended_alerts_are_read_and_tell_of_what_failed_for_good(scene: Scene) -> None:
    while not scene.asked.alerts():
        pass
    assert scene.asked.alerts() == {"ReactiveTasksFailForGood"}


# -- operators


def told(scene: Scene, folder: Path, *arguments: str) -> Any:
    """What a command prints, in a folder without any module; isolated, so that none is found elsewhere."""
    ended = subprocess.run(
        [sys.executable, "-I", "-m", "oplogue.cli", *arguments, "--uri", scene.uri, "--json"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return json.loads(ended.stdout)


@pytest.mark.parametrize("scene", ["cluster"], indirect=True)
def test_every_operating_command_works_without_any_module(scene: Scene, tmp_path: Path) -> None:
    def oplogue(*arguments: str) -> Any:
        return told(scene, tmp_path, *arguments)

    database, failed = scene.ledger.database, ORDERS // 3
    page = oplogue("tasks", "list", "--task", "ship", "--status", "failed")
    assert page["total"] == failed
    assert {item["last_error"] for item in page["items"]} == {"ValueError: no such address"}
    (third,) = oplogue("tasks", "list", "--task", "ship", "--source-doc-filter", '{"_id": 3}')["items"]
    shown = oplogue("tasks", "show", json.dumps(third["id"]))
    assert [run["status"] for run in shown["execution_history"]] == ["failed", "failed"]
    oplogue("tasks", "pause", "ship")
    database["orders"].update_many({}, {"$set": {"mended": True}})
    assert oplogue("tasks", "retry", "--task", "ship", "--status", "failed", "--yes")["retried"] == failed
    assert oplogue("tasks", "list", "--task", "ship", "--status", "pending")["total"] == failed
    with database["ledger"].watch([{"$match": {"operationType": "insert"}}]) as written:
        oplogue("tasks", "resume", "ship")
        mended = {next(written)["fullDocument"]["doc"] for _ in range(failed)}
    assert mended == set(range(0, ORDERS, 3))
    assert oplogue("tasks", "delete", "--task", "bill", "--yes")["deleted"] == ORDERS
    findings = {finding["check"]: finding["level"] for finding in oplogue("doctor")}
    assert findings["instances"] == "ok"
    assert "problem" not in findings.values()
