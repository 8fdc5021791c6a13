"""The line between a parent and its worker process: whoever asks gets an answer, or is told that there is none."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from oplogue.cli.link import Link


class Child:
    """The other end of a line, worked by hand."""

    def __init__(self, link: Link) -> None:
        self._line = socket.socket(fileno=os.dup(link.descriptor))
        self._lines = self._line.makefile("rb")
        link.started()

    def heard(self) -> dict[str, Any]:
        """What it was asked next."""
        return json.loads(self._lines.readline())

    def say(self, text: str) -> None:
        """Say anything."""
        self._line.sendall(text.encode())

    def die(self) -> None:
        """Its end of the line is closed."""
        self._lines.close()
        self._line.close()


@pytest.fixture
def link() -> Iterator[Link]:
    """A line."""
    opened = Link()
    yield opened
    opened.close()


@pytest.fixture
def child(link: Link) -> Iterator[Child]:
    """Its other end."""
    other = Child(link)
    yield other
    other.die()


def test_answers_come_in_any_order(link: Link, child: Child) -> None:
    slow, quick = link.ask("metrics"), link.ask("health")
    first, second = child.heard(), child.heard()
    assert (first["ask"], second["ask"]) == ("metrics", "health")
    child.say(json.dumps({"id": second["id"], "live": True}) + "\n")
    assert quick.wait(20) == {"id": second["id"], "live": True}
    child.say(json.dumps({"id": first["id"], "text": "all"}) + "\n")
    assert slow.wait(20) == {"id": first["id"], "text": "all"}
    assert link.answered


def test_who_waits_for_a_child_that_died_waits_no_longer_nor_who_asks_after_that(
    link: Link, child: Child
) -> None:
    before = link.ask("health")
    child.say('{"failed": "no such table"}\n{"id": 1, "li')
    child.die()
    assert before.wait(1_000) is None
    assert link.ask("health").wait(1_000) is None
    assert (link.answered, link.last_words) == (False, "no such table")


def test_a_child_that_reads_nothing_costs_its_parent_no_more_than_the_wait(link: Link, child: Child) -> None:
    questions = [link.ask("health") for _ in range(5_000)]
    assert questions[-1].wait(0) is None
    assert not link.answered
