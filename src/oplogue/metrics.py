"""Metrics for Prometheus. Needs the extra: ``pip install 'oplogue[prometheus]'``.

``await app.get_prometheus_metrics()`` is all that most services need. An app that has metrics of its own registers
a collector with them::

    registry = prometheus_client.CollectorRegistry()
    collector = oplogue.metrics.collector(app)
    registry.register(collector)

    await collector.refresh()
    body = prometheus_client.generate_latest(registry)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any

from oplogue.errors import ConfigurationError
from oplogue.model.figures import Histogram
from oplogue.model.metrics import CONTENT_TYPE, METRICS, Kind, Metric, Reading

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family

    from oplogue.app import App

__all__ = [
    "CONTENT_TYPE",
    "METRICS",
    "Collector",
    "Histogram",
    "Metric",
    "Reading",
    "collector",
    "exposition",
]


class Collector:
    """An app's metrics, to be registered with any registry. It collects what was read at the last refresh."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._readings: tuple[Reading, ...] = ()

    async def refresh(self) -> None:
        """Read the metrics."""
        self._readings = await self._app.get_metrics() or ()

    def describe(self) -> Iterator[Family]:
        """Every metric, without values: what a registry compares names by."""
        return (_family(metric, ()) for metric in METRICS.values())

    def collect(self) -> Iterator[Family]:
        """Every metric with its values."""
        return _families(self._readings)


def collector(app: App) -> Collector:
    """A collector for a registry of yours; ``await collector.refresh()`` before each scrape."""
    _client("core")
    return Collector(app)


def exposition(readings: Iterable[Reading]) -> bytes:
    """Readings in Prometheus's text format."""

    registry = _client("registry").CollectorRegistry()
    registry.register(_Snapshot(readings))
    return _client("exposition").generate_latest(registry)


@dataclass(frozen=True, slots=True)
class _Snapshot:
    readings: Iterable[Reading]

    def collect(self) -> Iterator[Family]:
        return _families(self.readings)


def _families(readings: Iterable[Reading]) -> Iterator[Family]:
    for metric, group in groupby(readings, key=lambda reading: reading.metric):
        yield _family(metric, group)


def _family(metric: Metric, readings: Iterable[Reading]) -> Family:
    core = _client("core")
    kinds: dict[Kind, Any] = {
        Kind.COUNTER: core.CounterMetricFamily,
        Kind.GAUGE: core.GaugeMetricFamily,
        Kind.HISTOGRAM: core.HistogramMetricFamily,
    }
    family = kinds[metric.kind](metric.name, metric.help, labels=metric.labels)
    for reading in readings:
        if isinstance(reading.value, Histogram):
            family.add_metric(reading.labels, _buckets(reading.value), reading.value.sum)
        else:
            family.add_metric(reading.labels, reading.value)
    return family


def _buckets(histogram: Histogram) -> list[tuple[str, int]]:
    """Cumulative, with the names of their bounds."""
    bounds = [*map(str, histogram.bounds), "+Inf"]
    return list(zip(bounds, accumulate(histogram.counts), strict=True))


def _client(module: str) -> Any:
    try:
        return import_module(f"prometheus_client.{module}")
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "metrics for Prometheus need prometheus-client", expected="pip install 'oplogue[prometheus]'"
        ) from error
