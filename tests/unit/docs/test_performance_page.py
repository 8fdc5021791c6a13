"""The figures on the page about performance are those of the runs that are kept."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]


def test_figures_of_the_page_are_those_of_the_kept_runs() -> None:
    page = load(ROOT / "bench" / "page.py")
    runs = [json.loads(results.read_text(encoding="utf-8")) for results in page.KEPT]
    written = page.PAGE.read_text(encoding="utf-8")
    assert all(run["benchmarks"] for run in runs), "a run without benchmarks proves nothing"
    assert page.replaced(written) == written, "python -m bench.page writes them"


def load(path: Path) -> Any:
    """A module of the benchmarks, which are no package of the tests."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
