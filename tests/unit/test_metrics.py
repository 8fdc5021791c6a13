"""The edge to Prometheus: the text format, other registries, and what happens without the extra."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from oplogue import App, Monitoring, NotStartedError
from oplogue.metrics import METRICS, Histogram, Reading, collector, exposition
from oplogue.model import metrics


def parsed(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(text.decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def readings() -> tuple[Reading, ...]:
    runs = Histogram((0.1, 1.0), [2, 1, 1], 5.5)
    return (
        Reading(metrics.DURATION, ("sync", "success"), runs),
        Reading(metrics.RETRIES, ('a "quoted"\nname',), 3),
        Reading(metrics.RETRIES, ("sync",), 4),
        Reading(metrics.LEADER, (), 1.0),
    )


class Made:
    """As much of an app as a collector asks of one."""

    async def get_metrics(self) -> tuple[Reading, ...]:
        return readings()


def test_readings_become_prometheus_text() -> None:
    of_sync = (("status", "success"), ("task_name", "sync"))
    name = "reactive_tasks_duration_seconds"
    assert parsed(exposition(readings())) == {
        (f"{name}_bucket", (("le", "0.1"), *of_sync)): 2,
        (f"{name}_bucket", (("le", "1.0"), *of_sync)): 3,
        (f"{name}_bucket", (("le", "+Inf"), *of_sync)): 4,
        (f"{name}_count", of_sync): 4,
        (f"{name}_sum", of_sync): 5.5,
        ("reactive_tasks_retries_total", (("task_name", 'a "quoted"\nname'),)): 3,
        ("reactive_tasks_retries_total", (("task_name", "sync"),)): 4,
        ("reactive_tasks_leader", ()): 1,
    }


async def test_a_collector_joins_a_registry_that_has_metrics_of_its_own() -> None:
    registry = CollectorRegistry()
    Counter("orders_shipped", "Ours.", registry=registry).inc()
    joined = collector(cast(Any, Made()))
    registry.register(joined)
    assert parsed(generate_latest(registry))["orders_shipped_total", ()] == 1
    await joined.refresh()
    found = parsed(generate_latest(registry))
    assert (found["orders_shipped_total", ()], found["reactive_tasks_leader", ()]) == (1, 1)


def test_a_registry_refuses_names_that_a_collector_has_already() -> None:
    registry = CollectorRegistry()
    registry.register(collector(cast(Any, Made())))
    with pytest.raises(ValueError, match="reactive_tasks_retries"):
        Counter("reactive_tasks_retries", "A clash.", registry=registry)


def test_every_metric_is_described_by_its_type() -> None:
    described = {family.name: family.type for family in collector(cast(Any, Made())).describe()}
    assert described == {name.removesuffix("_total"): metric.kind.value for name, metric in METRICS.items()}


async def test_metrics_are_none_while_monitoring_is_disabled_and_need_a_started_app_else() -> None:
    disabled = App("mongodb://localhost/shop", monitoring=Monitoring(enabled=False))
    assert await disabled.get_prometheus_metrics() is None
    assert await disabled.get_metrics() is None
    with pytest.raises(NotStartedError):
        await App("mongodb://localhost/shop").get_prometheus_metrics()


def test_without_the_extra_the_package_works_and_the_text_format_names_what_to_install() -> None:
    code = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "import oplogue, oplogue.metrics\n"
        "print(oplogue.metrics.CONTENT_TYPE)\n"
        "try: oplogue.metrics.exposition(())\n"
        "except oplogue.ConfigurationError as error: print(error)"
    )
    without = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert without.stdout.splitlines() == [
        "text/plain; version=0.0.4; charset=utf-8",
        "metrics for Prometheus need prometheus-client; expected pip install 'oplogue[prometheus]'",
    ]
