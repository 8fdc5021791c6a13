"""The runner: starts a server, lets contestants take turns, prints a table, writes the results."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.charts import Result, draw
from bench.lab import Lab
from bench.model import AbsentError, Benchmark, Series, VoidError, judge
from bench.report import print_benchmark, print_head
from oplogue.embedded import start_embedded

_HERE = Path(__file__).parent


def benchmarks() -> list[Benchmark]:
    """All of them, in the order of their numbers."""
    found = [path.stem for kind in "pg" for path in sorted(_HERE.glob(f"{kind}[0-9][0-9]_*.py"))]
    return [importlib.import_module(f"bench.{name}").BENCHMARK for name in found]


def main() -> int:
    """Run what was asked for."""
    arguments = _arguments()
    wanted = {name.strip().upper() for name in arguments.only.split(",") if name.strip()}
    chosen = [
        one for one in benchmarks() if one.id in wanted or (not wanted and (arguments.full or not one.heavy))
    ]
    if not chosen:
        known = ", ".join(one.id for one in benchmarks())
        print(f"there is no benchmark {arguments.only!r}; there are {known}", file=sys.stderr)
        return 2
    scale = arguments.scale
    now = datetime.now(UTC)
    path = _HERE / "results" / f"{arguments.name or f'{now:%Y-%m-%dT%H-%M-%S}'}.json"

    def keep(results: Sequence[Result]) -> None:
        outcome = [_as_json(benchmark, series) for benchmark, series in results]
        head = {"date": f"{now:%Y-%m-%d}", "machine": _machine(), "scale": scale}
        path.write_text(json.dumps({**head, "benchmarks": outcome}, indent=1) + "\n")

    with start_embedded() as server:
        lab = Lab(server.uri, server.uri_for, scale=scale, server_pid=server.members[0].pid)
        results = _loop(_run(lab, chosen, arguments.repetitions, keep))
    print(f"\nwritten to bench/results/{path.name}")
    if draw(results, path.with_suffix(".png")):
        print(f"drawn in bench/results/{path.stem}.png")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("--only", default="", help="benchmarks by number: P3 or P1,P4")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="0.1: a tenth of the documents")
    parser.add_argument("--name", default="", help="of the results; the date by default")
    parser.add_argument("--full", action="store_true", help="those too that take minutes")
    return parser.parse_args()


async def _run(
    lab: Lab, chosen: Sequence[Benchmark], repetitions: int, keep: Callable[[Sequence[Result]], None]
) -> list[Result]:
    print_head(_machine(), lab.scale)
    results: list[Result] = []
    for benchmark in chosen:
        begun = time.perf_counter()
        series = await _take_turns(lab, benchmark, repetitions)
        verdicts = [judge(target, series) for target in benchmark.targets]
        print_benchmark(benchmark, list(series.values()), verdicts, time.perf_counter() - begun)
        results.append((benchmark, list(series.values())))
        keep(results)  # a long run that is cut off has left what it measured
    await lab.close()
    return results


async def _take_turns(lab: Lab, benchmark: Benchmark, repetitions: int) -> dict[str, Series]:
    series = {one.name: Series(one.name) for one in benchmark.contestants}
    for turn in range(repetitions):
        for one in benchmark.contestants:
            mine = series[one.name]
            if mine.note or turn >= (one.repetitions or repetitions):
                continue
            try:
                mine.samples.append(dict(await one.measure(lab)))
            except AbsentError as reason:
                mine.note = f"absent: {reason}"
            except (VoidError, TimeoutError) as reason:
                mine.samples.clear()
                mine.note = f"void: {reason or 'not done in time'}"
            except Exception as failure:  # noqa: BLE001 - the others' figures are worth having all the same
                mine.samples.clear()
                mine.note = f"void: {failure!r}"[:200]
    return series


def _as_json(benchmark: Benchmark, series: Sequence[Series]) -> dict[str, Any]:
    by_name = {one.name: one for one in series}
    verdicts = [judge(target, by_name) for target in benchmark.targets]
    return {
        "id": benchmark.id,
        "title": benchmark.title,
        "contestants": [one.as_json() for one in series],
        "targets": [
            {"text": one.text, "op": target.op, "limit": target.limit, "value": one.value, "met": one.met}
            for target, one in zip(benchmark.targets, verdicts, strict=True)
        ],
    }


def _loop(work: Coroutine[Any, Any, list[Result]]) -> list[Result]:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)


def _machine() -> dict[str, Any]:
    return {
        "processors": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.system(),
        "uvloop": importlib.util.find_spec("uvloop") is not None,
    }


if __name__ == "__main__":
    sys.exit(main())
