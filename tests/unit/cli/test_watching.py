"""Looking again and again: what a failure of the database does, and how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import pytest
from rich.text import Text

from oplogue.cli import watching
from oplogue.cli.output import Output
from oplogue.cli.watching import watch
from oplogue.clock import Clock
from oplogue.store.faults import StoreError


class Hurried(Clock):
    """No rest between the looks; how long they would have been is kept."""

    def __init__(self) -> None:
        self.rests: list[float] = []

    async def sleep(self, seconds: float) -> None:
        """Only let others run."""
        self.rests.append(seconds)
        await super().sleep(0)


class Looks:
    """The first sees 1, the second fails, the third hangs, the fourth sees 2 and is interrupted."""

    def __init__(self, number: signal.Signals) -> None:
        self.begun = 0
        self._number = number

    async def __call__(self) -> int:
        """Look."""
        self.begun += 1
        match self.begun:
            case 1:
                return 1
            case 2:
                raise StoreError("db:1: refused (configured timeouts: …)")
            case 3:
                await asyncio.Event().wait()
            case _:
                os.kill(os.getpid(), self._number)
        return 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_it_goes_on_after_failures_and_ends_at_a_signal(
    number: signal.Signals, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_PATIENCE", 0.1)
    looks, clock = Looks(number), Hurried()
    await watch(
        Output(as_json=True),
        looks,
        lambda seen, width: Text(f"{seen} {width}"),
        lambda seen: {"seen": seen},
        clock=clock,
    )
    said = capsys.readouterr()
    assert [json.loads(line)["seen"] for line in said.out.splitlines()][:2] == [1, 2]
    assert said.err.splitlines() == [
        "oplogue: the database does not answer: PyMongoError: db:1: refused",
        "oplogue: the database does not answer: it was silent for 0.1 s",
    ]
    assert min(clock.rests) >= 1
    # The next one ends the program as usual.
    assert signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL)


async def test_a_look_that_took_long_is_followed_by_a_longer_rest(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Hurried()
    monotonic = iter(range(0, 10_000, 3)).__next__
    clock.monotonic = lambda: float(monotonic())  # type: ignore[method-assign]  # each look takes three seconds
    looks = 0

    async def look() -> int:
        nonlocal looks
        looks += 1
        if looks == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return looks

    await watch(Output(as_json=False), look, lambda seen, _: Text(str(seen)), lambda seen: seen, clock=clock)
    assert clock.rests[0] == 12
    assert capsys.readouterr().out.split()[:3] == ["1", "2", "3"]


async def test_what_is_no_failure_of_the_database_ends_it() -> None:
    async def look() -> int:
        raise ZeroDivisionError("a mistake of ours")

    with pytest.raises(ZeroDivisionError):
        await watch(
            Output(as_json=True), look, lambda _seen, _width: Text(), lambda seen: seen, clock=Clock()
        )
