"""Row 24: random filters over random documents, the planner against ``find()``."""

from __future__ import annotations

import pytest
from harness import CLOCK, Scene
from harness.oracle import Verdict
from tests.support.pairs import compare_pairs


@pytest.mark.row("24", "random filters, planner vs. find()")
def test_what_is_planned_is_what_find_finds(scene: Scene, full: bool) -> None:
    pairs = 100_000 if full else 5_000
    began = CLOCK.monotonic()
    # The first difference ends it, and names its filter and its document.
    tally = compare_pairs(scene.uri, pairs, scene.report.seed)
    scene.conclude(
        Verdict(lost=(), stuck=(), effects_off=0, duplicates=0, runs=tally.matches, writes=tally.pairs),
        times=tally.pairs,
        refused=tally.refused,
        seconds=round(CLOCK.monotonic() - began, 1),
    )
    assert tally.pairs >= pairs
