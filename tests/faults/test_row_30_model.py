"""Row 30: random interleavings of instances whose statements go one by one, with a fault at each of them.

What it finds when it is taken out of the code, each within some hundred examples:

- the token in the fence of outcomes: a run that had lost its lease settles the record all the same;
- *touched*, which sends a record that was skipped back to pending: the state that came meanwhile is lost;
- *left*, by which a document that comes back to the filter fires: it never runs again;
- the term in the filter of the saved position: a former leader moves it.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest
from harness import CLOCK, Report, Scene
from harness.oracle import Verdict
from hypothesis import HealthCheck, Phase, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from interleaving.stage import Example, Stage
from interleaving.strands import Strand
from interleaving.world import GONE, STATES
from pymongo.errors import AutoReconnect, NetworkTimeout, OperationFailure

MOST_INSTANCES = 3
ERRORS = {
    "closed": lambda: AutoReconnect("connection closed"),
    "timed out": lambda: NetworkTimeout("timed out"),
    "conflict": lambda: OperationFailure("WriteConflict", code=112),
}
ANY = st.integers(0, 7)
DOCUMENT = st.integers(0, 2)
WISHES = st.sampled_from(["succeed", "succeed", "fetch", "raise", "defer", "mark", "mark, raise"])
PARTS = st.sampled_from(
    [
        *("leader", "one event", "a scan", "position", "claims", "run", "outcomes"),
        *("leader", "claims", "run", "suspects", "leases", "under way"),
    ]
)
HALTS = st.sampled_from([99, 99, 99, 1, 2, 3, 4, 6])
FATES = st.sampled_from(["", "", "", "", "killed", "killed, sent", *ERRORS])
TURN = st.tuples(PARTS, ANY, HALTS, FATES)
STATEMENTS = {
    "leader": ("find and update", "find", "aggregate", "update many"),
    "position": ("update one",),
    "claims": ("aggregate", "update many", "find", "bulk write"),
    "suspects": ("find", "update many", "aggregate"),
    "run": ("find", "update one", "aggregate"),
    "outcomes": ("bulk write", "find"),
    "leases": ("update one", "bulk write", "find"),
}
SITES = frozenset(
    f"{part}, {side} {statement}"
    for part, statements in STATEMENTS.items()
    for statement in statements
    for side in ("before", "behind")
)
"""Where a strand may halt: at every statement that the store sends."""


class Interleavings(RuleBasedStateMachine):
    """Writers, leaders and workers; each rule is one thing that may happen next."""

    stage: Stage

    @initialize(states=st.lists(st.sampled_from(["a", "b", "x"]), max_size=3), leads=st.booleans())
    def begin(self, states: list[str], leads: bool) -> None:
        """Two instances, and some documents; perhaps one of the instances leads and has planned them."""
        self.example = Example(self.stage)
        self._do(self.example.begin())
        self._do(self.example.start())
        self._do(self.example.start())
        for number, state in enumerate(states):
            self._do(self.example.write(number, state))
        if leads:
            for _ in range(2):
                self._do(self.example.go_on(self._parts("leader")[0], 99))

    def _do(self, doing: Coroutine[Any, Any, None]) -> None:
        self.stage.wait_for(doing)

    def _parts(self, *parts: str) -> list[Strand]:
        return [strand for strand in self.example.strands if strand.part in parts]

    def _under_way(self) -> list[Strand]:
        return [strand for strand in self.example.strands if not strand.rests]

    def _go_on(self, which: int, halts: int, *parts: str) -> None:
        strands = self._parts(*parts)
        self._do(self.example.go_on(strands[which % len(strands)], halts))

    # -- the world

    @rule(number=DOCUMENT, state=st.sampled_from([*STATES, GONE]), wish=WISHES)
    def write(self, number: int, state: str, wish: str) -> None:
        """A document changes, and its next run perhaps does something else than to succeed at once."""
        self._do(self.example.write(number, state))
        self.example.world.wishes[sorted(self.example.world.stories)[number]] = wish

    @rule(what=st.sampled_from(["leases_end", "debounces_end", "office_ends"]))
    def time_passes(self, what: str) -> None:
        """What runs is anybody's; what waits is due; who leads has not renewed in time, and may not know it."""
        self._do(getattr(self.example, what)())

    # -- the instances

    # One rule for all parts: Hypothesis leaves out some rules of each example, and without planning nothing happens.
    @precondition(lambda self: self.example.instances)
    @rule(turns=st.lists(TURN, min_size=1, max_size=4))
    def act(self, turns: list[tuple[str, int, int, str]]) -> None:
        """Parts of instances go on by some statements, and some meet their fate there."""
        for part, which, halts, fate in turns:
            strands = self._strands_of(part, which) if self.example.instances else []
            if strands:
                strand = strands[which % len(strands)]
                self._do(self.example.go_on(strand, halts))
                if strand.at_statement:
                    self._strike(strand, fate)

    def _strands_of(self, part: str, which: int) -> list[Strand]:
        if part in ("one event", "a scan"):
            one = self.example.instances[which % len(self.example.instances)]
            one.some_events, one.scans = (1, False) if part == "one event" else (None, True)
            return [strand for strand in one.strands if strand.part == "leader"]
        return self._parts(part) or self._under_way()

    def _strike(self, strand: Strand, fate: str) -> None:
        if fate in ERRORS:
            self._do(self.example.fail(strand, ERRORS[fate]()))
        elif fate:
            instance = next(one for one in self.example.instances if strand in one.strands)
            self._do(self.example.kill(instance, lands=fate == "killed, sent"))

    # -- what goes wrong

    @precondition(lambda self: self.example.on_its_way)
    @rule()
    def land(self) -> None:
        """What a killed instance had sent is done at last."""
        self._do(self.example.land())

    @precondition(lambda self: len(self.example.instances) < MOST_INSTANCES)
    @rule()
    def start(self) -> None:
        """One more instance."""
        self._do(self.example.start())

    # -- the end

    def teardown(self) -> None:
        """When everything has gone on to its end, nothing is lost and nothing is stuck."""
        if not hasattr(self, "example"):
            return
        try:
            wrong = self.stage.wait_for(self.example.settle_down())
            assert not wrong, "\n".join(wrong)
        finally:
            self._do(self.example.end())


@pytest.fixture
def stage(scene: Scene) -> Iterator[Stage]:
    """One collection for all examples: a new database for each would take most of the time."""
    logger = logging.getLogger("oplogue")
    before = logger.level
    # Thousands of faults that are meant.
    logger.setLevel(logging.CRITICAL)
    stage = Stage(scene.uri)
    yield stage
    stage.close()
    logger.setLevel(before)


@pytest.mark.timeout(3600)
@pytest.mark.row("30", "model-based: a crash at every await")
def test_no_interleaving_violates_a_promise(scene: Scene, stage: Stage, report: Report, full: bool) -> None:
    examples = 10_000 if full else 120
    began = CLOCK.monotonic()
    Interleavings.stage = stage
    seeded(report.seed)(Interleavings)
    # A violation ends it, with the shortest story that has it.
    run_state_machine_as_test(
        Interleavings,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            database=None,
            suppress_health_check=[
                HealthCheck.too_slow,
                HealthCheck.data_too_large,
                HealthCheck.filter_too_much,
            ],
            phases=[Phase.generate, Phase.shrink],
        ),
    )
    scene.conclude(
        Verdict((), (), effects_off=0, duplicates=stage.again, runs=stage.calls, writes=stage.writes),
        times=stage.examples,
        seconds=round(CLOCK.monotonic() - began),
        killed=dict(sorted(stage.killed.items())),
        failed=dict(sorted(stage.failed.items())),
        landed=stage.landed,
        fenced=stage.fenced,
    )
    assert stage.examples >= examples
    for struck in (stage.killed, stage.failed):
        # A full run strikes every site, a short one some.
        missing = SITES - struck.keys()
        assert not missing if full else len(SITES) - len(missing) >= 8, f"never struck: {missing}"
    assert stage.landed
    assert stage.fenced or not full, "no run came too late"
