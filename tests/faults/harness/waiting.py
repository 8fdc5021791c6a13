"""Waiting for something to become true, with a deadline."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from oplogue.clock import Clock

CLOCK = Clock()
T = TypeVar("T")


def until(ready: Callable[[], T], *, timeout: float, what: str | Callable[[], str], every: float = 0.01) -> T:
    """The first truthy answer; AssertionError that names what was waited for."""
    deadline = CLOCK.monotonic() + timeout
    while True:
        answer = ready()
        if answer:
            return answer
        if CLOCK.monotonic() > deadline:
            raise AssertionError(f"not within {timeout:g} s: {what if isinstance(what, str) else what()}")
        CLOCK.block(every)
