"""What the annotations of a handler stand for, also where they are text.

Text names things that may be known only where the function was written: its module, its closure, or the
function around it, which is still running while a decorator in it is applied.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType, SimpleNamespace
from typing import Annotated, Any, cast

Scope = Mapping[str, object]
"""Names for annotations that are text, beside the ones of their own module."""


@dataclass(frozen=True, slots=True)
class Unresolved:
    """An annotation whose names are not known here."""

    text: str
    reason: str


def resolved(annotation: object, function: Callable[..., Any], scope: Scope) -> object:
    """The annotation of one parameter as a type, ``Unresolved`` if that can't be found out.

    >>> def handle(order: "dict[str, int]"): ...
    >>> resolved("dict[str, int]", handle, {})
    dict[str, int]
    """
    holder = SimpleNamespace(__annotations__={"parameter": annotation})
    try:
        return resolved_hints(holder, getattr(underlying(function), "__globals__", {}), scope)["parameter"]
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        return Unresolved(str(annotation).strip("'\""), str(error))


def resolved_hints(holder: object, names: dict[str, Any] | None, scope: Scope) -> dict[str, Any]:
    """The annotations of a class, or of anything that has some."""
    return typing.get_type_hints(holder, names, dict(scope), include_extras=True)


def scope_of(function: Callable[..., Any]) -> Scope:
    """The names around the function: of its closure, and of functions around it that are still running."""
    target = underlying(function)
    if not isinstance(target, FunctionType):
        return {}
    names: dict[str, object] = {}
    *outer, _ = target.__qualname__.split(".<locals>")
    around = {".<locals>".join(outer[:depth]) for depth in range(1, len(outer) + 1)}
    frame = inspect.currentframe()
    while frame is not None and around:
        if frame.f_code.co_qualname in around and frame.f_globals is target.__globals__:
            # From the inside out: what is nearer wins.
            names = {**frame.f_locals, **names}
        frame = frame.f_back
    return {**names, **_closure(target)}


def underlying(function: Callable[..., Any]) -> object:
    """The plain function below partials, bound methods, decorators and callable objects."""
    target: object = function
    while not isinstance(target, FunctionType) or hasattr(target, "__wrapped__"):
        if isinstance(target, functools.partial):
            target = cast("functools.partial[Any]", target).func
        elif inspect.ismethod(target):
            target = target.__func__
        elif hasattr(target, "__wrapped__"):
            target = cast("Any", target).__wrapped__
        elif isinstance(call := inspect.getattr_static(type(target), "__call__", None), FunctionType):
            target = call
        else:
            break
    return target


def plain(annotation: object) -> object:
    """The annotation without ``Annotated[…]``, and the type behind a ``NewType`` or an alias."""
    while True:
        if typing.get_origin(annotation) is Annotated:
            annotation = typing.get_args(annotation)[0]
        elif isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType":
            annotation = cast("Any", annotation).__value__
        else:
            return type(None) if annotation is None else annotation


def _closure(function: FunctionType) -> dict[str, object]:
    names: dict[str, object] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            names[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return names
