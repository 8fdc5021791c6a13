"""What is declared is what is emitted, and what can be imported."""

from __future__ import annotations

import ast
import inspect
import logging
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

import oplogue
import oplogue.events
from oplogue.model import payloads
from oplogue.model.events import EVENTS

SOURCES = sorted(Path(oplogue.__path__[0]).rglob("*.py"))
OF_EVERY_LINE = {*vars(logging.makeLogRecord({})), "message", "asctime"}


def emissions() -> Iterator[tuple[str, ast.Call]]:
    """Every call of an ``emit`` in the package, and where it is."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "emit":
                yield f"{path.name}:{node.lineno}", node


def code_of(call: ast.Call) -> str:
    (code,) = call.args
    assert isinstance(code, ast.Constant), "the code is written out where it is emitted"
    return cast(str, code.value)


CALLS = dict(emissions())


@pytest.mark.parametrize("where", CALLS)
def test_what_is_emitted_is_declared(where: str) -> None:
    given = [str(keyword.arg) for keyword in CALLS[where].keywords]
    assert sorted(given) == sorted(EVENTS[code_of(CALLS[where])].fields)


def test_what_is_declared_is_emitted_somewhere() -> None:
    assert set(EVENTS) == {code_of(call) for call in CALLS.values()}


def test_every_class_of_an_event_can_be_imported() -> None:
    classes = {
        name
        for name, found in inspect.getmembers(payloads, inspect.isclass)
        if issubclass(found, payloads.Event)
    }
    assert classes == set(oplogue.events.__all__)
    assert classes == {base.__name__ for kind in EVENTS.values() for base in kind.payload.__mro__[:-1]}


@pytest.mark.parametrize("code", EVENTS)
def test_no_field_hides_one_that_every_line_of_a_log_has(code: str) -> None:
    assert not OF_EVERY_LINE & {"code", "instance_id", *EVENTS[code].fields}


def test_a_field_has_one_type_in_all_events() -> None:
    """Whoever indexes the log gives each field one type."""
    types: defaultdict[str, set[str]] = defaultdict(set)
    for kind in EVENTS.values():
        for base in kind.payload.__mro__[:-1]:
            for name, hint in base.__annotations__.items():
                types[name].add(str(hint))
    assert all(len(found) == 1 for found in types.values()), types
