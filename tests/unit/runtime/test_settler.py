"""How outcomes are written when a write fails: again as they are, or halved down to the one that is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from pymongo.errors import AutoReconnect, OperationFailure

from oplogue.clock import Clock
from oplogue.model.definition import Namespace
from oplogue.model.outcomes import Raised, Succeeded
from oplogue.runtime.bus import Bus
from oplogue.runtime.meter import Meter
from oplogue.runtime.settler import Settler
from oplogue.runtime.work import Ended

ORDERS = Namespace("shop", "orders")
REFUSED = OperationFailure("no such value", code=2)


class Written:
    """A source that notes what it is given, and fails where it is told to."""

    namespace = ORDERS

    def __init__(self, fails: Callable[[Sequence[Ended]], Exception | None]) -> None:
        self.groups: list[list[Ended]] = []
        self._fails = fails

    async def settle(self, ended: Sequence[Ended]) -> None:
        self.groups.append(list(ended))
        error = self._fails(ended)
        if error is not None:
            raise error


def ended(number: int) -> Ended:
    """A run that succeeded."""
    run: Any = SimpleNamespace(
        lost=False, number=number, definition=SimpleNamespace(source=ORDERS, task="sync")
    )
    return Ended(run, Succeeded(1))


async def write(source: Any, *all_: Ended) -> list[Ended]:
    """Let a settler write these; what it says is settled."""
    clock = Clock()
    bus = Bus(clock, "me")
    settled: list[Ended] = []
    settler = Settler(sources=[source], settled=settled.extend, meter=Meter(bus), bus=bus, clock=clock)
    for one in all_:
        settler.add(one)
    settler.start()
    await settler.stop(10.0)
    return settled


async def test_a_passing_failure_sends_the_same_group_again() -> None:
    failures = [AutoReconnect("gone"), AutoReconnect("gone again")]
    source = Written(lambda _group: failures.pop() if failures else None)
    group = [ended(number) for number in range(4)]
    assert await write(source, *group) == group
    assert source.groups == [group] * 3


async def test_what_is_refused_is_halved_down_to_one_run_which_has_failed_by_it() -> None:
    def fails(group: Sequence[Ended]) -> Exception | None:
        bad = any(getattr(one.run, "number", 0) == 2 and isinstance(one.outcome, Succeeded) for one in group)
        return REFUSED if bad else None

    source = Written(fails)
    group = [ended(number) for number in range(4)]
    assert await write(source, *group) == group
    assert [len(written) for written in source.groups] == [4, 2, 2, 1, 1, 1]
    (refused,) = [one for one in source.groups[4] if one.run is group[2].run]
    assert isinstance(refused.outcome, Raised)
    assert "no such value" in refused.outcome.error


async def test_a_run_whose_lease_is_lost_is_not_written() -> None:
    source = Written(lambda _group: None)
    mine, lost = ended(1), ended(2)
    lost.run.lost = True
    assert await write(source, mine, lost) == [mine, lost]
    assert source.groups == [[mine]]
