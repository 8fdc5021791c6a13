"""A Prometheus of a test's own: it scrapes every second, and is asked by its HTTP interface."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.processes import await_words, free_port

_UNPACKED = Path(__file__).parents[2] / ".tools" / "usr" / "bin" / "prometheus"
MISSING = (
    "there is no prometheus on PATH or in .tools: apt-get install prometheus, or make test as root on Debian"
)


def find_prometheus() -> str | None:
    """Where it is; None where it is not."""
    found = shutil.which("prometheus")
    return found or (str(_UNPACKED) if _UNPACKED.exists() else None)


class Prometheus:
    """One that runs."""

    def __init__(self, port: int) -> None:
        self._api = f"http://127.0.0.1:{port}/api/v1"

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """What an expression comes to now: labels and values."""
        found = self._ask("query", query=expression)
        if found["resultType"] == "scalar":
            return [({}, float(found["result"][1]))]
        return [(one["metric"], float(one["value"][1])) for one in found["result"]]

    def one(self, expression: str) -> float | None:
        """The value of the only series; None where there is none."""
        found = self.query(expression)
        assert len(found) <= 1, found
        return found[0][1] if found else None

    def series(self, selector: str) -> list[dict[str, str]]:
        """The labels of the series that a selector finds."""
        return self._ask("series", **{"match[]": selector})

    def alerts(self) -> set[str]:
        """The names of alerts that are pending or firing."""
        return {alert["labels"]["alertname"] for alert in self._ask("alerts")["alerts"]}

    def _ask(self, what: str, **parameters: str) -> Any:
        url = f"{self._api}/{what}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=20) as answer:
            return json.load(answer)["data"]


@contextmanager
def prometheus(
    folder: Path, jobs: Mapping[str, Sequence[str]], rules: str = "groups: []"
) -> Generator[Prometheus]:
    """Scrape these addresses, by the name of their job. It refuses rules that it can't read."""
    program, port = find_prometheus(), free_port()
    assert program is not None
    (folder / "rules.yml").write_text(rules)
    scrapes = [{"job_name": job, "static_configs": [{"targets": list(of)}]} for job, of in jobs.items()]
    every = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    # JSON is YAML.
    (folder / "prometheus.yml").write_text(
        json.dumps({"global": every, "rule_files": ["rules.yml"], "scrape_configs": scrapes})
    )
    process = subprocess.Popen(
        [
            program,
            "--config.file=prometheus.yml",
            "--storage.tsdb.path=data",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        await_words(process.stderr, "ready to receive web requests")
        yield Prometheus(port)
    finally:
        # Nothing of it is kept: it need not take leave.
        process.kill()
        process.wait()
