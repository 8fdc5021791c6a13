"""``oplogue grafana``: the dashboard for Grafana, to be imported there."""

from __future__ import annotations

import sys
from importlib.resources import files

from oplogue.cli.failures import OK


def grafana() -> int:
    """Print a dashboard for Grafana.

    It is imported there: oplogue grafana > reactive_tasks.json, then Dashboards, New, Import. Its metrics are those
    of oplogue worker --health, and of App.get_prometheus_metrics().
    """
    dashboard = files("oplogue").joinpath("grafana/reactive_tasks.json")
    # Bytes: the file is UTF-8, whatever the terminal or the pipe is.
    sys.stdout.buffer.write(dashboard.read_bytes())
    sys.stdout.flush()
    return OK
