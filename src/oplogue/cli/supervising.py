"""What ``oplogue worker`` sets up in the parent: its children, and the probes that ask after them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from http import HTTPStatus
from pathlib import Path

from oplogue.cli.changes import SourceFiles
from oplogue.cli.probes import Answer, Probes
from oplogue.cli.processes import Processes
from oplogue.cli.scrapes import scraped
from oplogue.cli.targets import check_form, check_target
from oplogue.clock import Clock
from oplogue.model.health import Health

_JSON = "application/json"
_LIVE = ("/live", "/livez", "/healthz")
_READY = ("/ready", "/readyz")
_METRICS = "/metrics"


@dataclass(frozen=True, slots=True)
class Orders:
    """How an app is to be run."""

    processes: int = 1
    health: tuple[str, int] | None = None
    burst: bool = False
    """End when nothing is left to do."""
    reload: bool = False
    """Start again when source files change."""


def supervise(target: str, orders: Orders) -> int:
    """Run the app in processes of its own, as ordered; the exit code."""
    clock = Clock()
    if orders.reload:
        # Its code may be broken, and mended while this runs.
        check_form(target)
        files = SourceFiles(Path.cwd(), clock)
    else:
        # Found here first, so that a mistake in the target is told once and nothing is started again and again.
        check_target(target)
        files = None
    processes = Processes(
        _command(target, orders),
        orders.processes,
        clock,
        until_quiet=orders.burst,
        changed=None if files is None else files.have_changed,
    )
    with ExitStack() as opened:
        if orders.health is not None:
            opened.enter_context(Probes(*orders.health, _answers(processes), clock))
        return processes.run()


def _command(target: str, orders: Orders) -> list[str]:
    burst = ["--burst"] if orders.burst else []
    debug = ["--debug"] if "--debug" in sys.argv else []
    # -P: a folder named oplogue here must not be taken for the package.
    return [sys.executable, "-P", "-m", "oplogue.cli", *debug, "worker", target, *burst]


def _answers(processes: Processes) -> dict[str, Callable[[], Answer]]:
    def live() -> Answer:
        found = processes.health()
        return _answer(found, well=found.live)

    def ready() -> Answer:
        found = processes.health()
        return _answer(found, well=found.ready)

    return {
        **dict.fromkeys(_LIVE, live),
        **dict.fromkeys(_READY, ready),
        _METRICS: lambda: scraped(processes.metrics()),
    }


def _answer(health: Health, *, well: bool) -> Answer:
    body = json.dumps(asdict(health)).encode() + b"\n"
    return Answer(HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE, body, _JSON)
