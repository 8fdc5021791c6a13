"""Priority first, then the tasks of a priority in turn."""

from __future__ import annotations

from typing import cast

from oplogue.runtime.buffer import Buffer
from oplogue.runtime.context import Run


class _Record:
    def __init__(self, task: str) -> None:
        self.task = task


class _Run:
    """As much of a run as waiting takes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.record = _Record(name[0])


def filled(*names: str, urgent: str = "") -> Buffer:
    buffer = Buffer()
    for name in names:
        buffer.add(cast(Run, _Run(name)), 1 if name[0] == urgent else 0)
    return buffer


def emptied(buffer: Buffer) -> list[str]:
    return [cast(_Run, buffer.pop()).name for _ in range(len(buffer))]


def test_tasks_start_in_turn_each_in_the_order_of_its_claims() -> None:
    assert emptied(filled("a1", "a2", "a3", "b1", "b2")) == ["a1", "b1", "a2", "b2", "a3"]


def test_a_higher_priority_starts_first() -> None:
    assert emptied(filled("a1", "a2", "b1", "b2", urgent="b")) == ["b1", "b2", "a1", "a2"]


def test_what_comes_later_takes_its_turn() -> None:
    buffer = filled("a1", "a2", "a3")
    assert cast(_Run, buffer.pop()).name == "a1"
    buffer.add(cast(Run, _Run("b1")), 0)
    assert emptied(buffer) == ["a2", "b1", "a3"]


def test_what_is_taken_back_does_not_start() -> None:
    buffer = filled("a1", "b1", "a2", urgent="a")
    taken = buffer.take_back(lambda run: run.record.task == "a")
    assert [cast(_Run, run).name for run in taken] == ["a1", "a2"]
    assert len(buffer) == 1
    assert emptied(buffer) == ["b1"]
