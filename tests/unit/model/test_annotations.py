from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NewType

import pytest

from oplogue.model.annotations import Unresolved, plain, resolved, scope_of, underlying

OrderId = NewType("OrderId", int)


@dataclass
class Known:
    id: int


def handle(order: Known) -> None: ...


class Service:
    def handle(self, order: Known) -> None: ...

    def __call__(self, order: Known) -> None: ...


def wrapper(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(*args: Any) -> Any:
        return function(*args)

    return wrapped


@pytest.mark.parametrize(
    ("function", "target"),
    [
        (handle, handle),
        (functools.partial(functools.partial(handle), Known(1)), handle),
        (Service().handle, Service.handle),
        (Service(), Service.__call__),
        (wrapper(handle), handle),
        (functools.partial(wrapper(Service().handle)), Service.handle),
        (len, len),
    ],
)
def test_the_function_below_its_wrappings_is_found(function: Callable[..., Any], target: object) -> None:
    assert underlying(function) is target


def test_names_of_the_functions_module_are_known() -> None:
    assert resolved("Known", handle, {}) is Known
    assert resolved("list[Known] | None", wrapper(handle), {}) == list[Known] | None
    assert resolved(Known, handle, {}) is Known


def test_unknown_names_are_told() -> None:
    found = resolved("elsewhere.Order", handle, {})
    assert isinstance(found, Unresolved)
    assert found.text == "elsewhere.Order"
    assert "elsewhere" in found.reason
    assert isinstance(resolved("not python", handle, {}), Unresolved)


def test_names_of_a_function_around_that_still_runs_are_known() -> None:
    @dataclass
    class Local:
        id: int

    def inner() -> Callable[..., Any]:
        def handler(order: Local) -> None: ...

        assert resolved("Local", handler, scope_of(handler)) is Local
        return handler

    assert resolved("Local", inner(), scope_of(inner())) is Local


def test_names_of_the_closure_are_known_when_the_function_around_has_returned() -> None:
    def outer() -> Callable[..., Any]:
        class Local: ...

        def handler(order: Local) -> Any:
            return Local()

        return handler

    handler = outer()
    assert resolved("Local", handler, scope_of(handler)) is type(handler(None))
    assert isinstance(resolved("Other", handler, scope_of(handler)), Unresolved)


def test_a_closure_may_hold_names_without_a_value() -> None:
    def handler(order: Known) -> Any:
        return later

    scope = scope_of(handler)
    later = 1
    assert "later" not in scope or scope["later"] == later


def test_what_is_no_function_has_no_scope() -> None:
    assert scope_of(len) == {}


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (int, int),
        (None, type(None)),
        (Annotated[int, "cents"], int),
        (OrderId, int),
        (Annotated[OrderId, "x"], int),
        (list[int], list[int]),
    ],
)
def test_wrappings_of_a_type_are_taken_off(annotation: object, expected: object) -> None:
    assert plain(annotation) == expected
