"""A handler's signature: does it ask for the context, for the document, or for both, and in which shape.

The document is the first parameter, the context any one that is annotated with its type or named after it.
Whatever else has a default is left alone.
"""

from __future__ import annotations

import functools
import inspect
import re
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import Parameter
from typing import Any

from oplogue.errors import ConfigurationError
from oplogue.model.annotations import Scope, Unresolved, plain, resolved, scope_of
from oplogue.model.conversion import document_converter, takes_documents

EXPECTED = "a function of (ctx: Context), (order: Order) or (order: Order, ctx: Context)"

_CONTEXT_NAMES = ("ctx", "context")
_UNIONS: tuple[object, ...] = (typing.Union, types.UnionType)
_DOCUMENT = "document"
_CONTEXT = "context"


@dataclass(frozen=True, slots=True)
class Handler:
    """A user's function, and how to call it.

    >>> async def sync_order(order: dict, ctx): ...
    >>> handler = bind_handler(sync_order, context_type=Handler, task="sync-order")
    >>> handler.is_async, handler.arguments({"_id": 1}, "the context")
    (True, ({'_id': 1}, 'the context'))
    """

    function: Callable[..., Any]
    is_async: bool
    wants_document: bool
    wants_context: bool
    _convert: Callable[[object], object] = field(repr=False, compare=False)
    _fill: tuple[tuple[str, object], ...] = field(repr=False, compare=False)

    def convert(self, document: dict[str, Any]) -> object:
        """The document as the annotation asks for it, or a ``DocumentConversionError`` naming the field."""
        return self._convert(document)

    def arguments(self, document: object, context: object) -> tuple[object, ...]:
        """What to call the function with; the document is what ``convert`` returned."""
        given = {_DOCUMENT: document, _CONTEXT: context}
        return tuple(given.get(kind, default) for kind, default in self._fill)


def bind_handler(function: Callable[..., Any], *, context_type: type, task: str) -> Handler:
    """Read the function's signature; a ``ConfigurationError`` if it can't be called with what there is."""
    try:
        return _bound(function, context_type)
    except ConfigurationError as error:
        raise ConfigurationError(
            error.problem, option="handler", value=function, expected=error.expected or EXPECTED, task=task
        ) from None


def _bound(function: Callable[..., Any], context_type: type) -> Handler:
    parameters = _parameters(function)
    scope = scope_of(function)
    hints = {p.name: _annotation(p, function, scope) for p in parameters}
    kinds = _kinds(parameters, hints, context_type)
    convert: Callable[[object], object] = _as_it_is
    if _DOCUMENT in kinds:
        convert = document_converter(hints[parameters[0].name], scope)
    needed = 1 + max(place for place, kind in enumerate(kinds) if kind)
    return Handler(
        function=function,
        is_async=_is_async(function),
        wants_document=_DOCUMENT in kinds,
        wants_context=_CONTEXT in kinds,
        _convert=convert,
        # A parameter with a default that stands before the context gets its default.
        _fill=tuple((kind, p.default) for kind, p in zip(kinds[:needed], parameters, strict=False)),
    )


def _parameters(function: Callable[..., Any]) -> list[Parameter]:
    """The parameters that can be given by position."""
    _check_callable(function)
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        raise _refused("its parameters can't be read") from None
    parameters = list(signature.parameters.values())
    for parameter in parameters:
        if parameter.kind is Parameter.KEYWORD_ONLY and parameter.default is Parameter.empty:
            raise _refused(f"{parameter.name!r} can be given by keyword only")
    positional = [
        parameter
        for parameter in parameters
        if parameter.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    ]
    if positional and positional[0].name in ("self", "cls") and inspect.isfunction(function):
        raise _refused(
            f"{positional[0].name!r} belongs to a method", "a method that is bound to its object: obj.method"
        )
    return positional


def _check_callable(function: object) -> None:
    if inspect.isclass(function):
        raise _refused("a class, not a function")
    if not callable(function):
        raise _refused("not a function")
    for target in _targets(function):
        if inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target):
            raise _refused("a generator: its body would never run")


def _annotation(parameter: Parameter, function: Callable[..., Any], scope: Scope) -> object:
    """The parameter's type; ``Parameter.empty`` if it has none."""
    if parameter.annotation is Parameter.empty:
        return Parameter.empty
    return resolved(parameter.annotation, function, scope)


def _kinds(parameters: list[Parameter], hints: dict[str, object], context_type: type) -> list[str]:
    """What each parameter gets: the document, the context, or nothing."""
    kinds = [
        _CONTEXT if _is_context(p.name, hints[p.name], context_type, first=not place) else ""
        for place, p in enumerate(parameters)
    ]
    if kinds.count(_CONTEXT) > 1:
        raise _refused("two parameters ask for the context")
    if parameters and not kinds[0] and parameters[0].default is Parameter.empty:
        kinds[0] = _DOCUMENT
        _check_document(parameters[0].name, hints)
    if not any(kinds):
        raise _refused("it takes neither the context nor the document")
    for parameter, kind in zip(parameters, kinds, strict=True):
        if not kind and parameter.default is Parameter.empty:
            order = "; the document comes first" if kinds[0] == _CONTEXT else ""
            raise _refused(f"nothing is known to give for {parameter.name!r}{order}")
    return kinds


def _check_document(name: str, hints: dict[str, object]) -> None:
    hint = hints[name]
    if hint is Parameter.empty:
        hints[name] = Any
    if isinstance(hint, Unresolved):
        raise _refused(
            f"the annotation {hint.text} of {name!r} can't be resolved ({hint.reason})",
            "a name that the function's module knows when the program runs, not only for type checkers",
        )


def _is_context(name: str, hint: object, context_type: type, *, first: bool) -> bool:
    if isinstance(hint, Unresolved):
        *_, last = ["", *re.findall(r"\w+", hint.text.removesuffix(" | None"))]
        return last == context_type.__name__ or name in _CONTEXT_NAMES
    if hint is not Parameter.empty and _includes(hint, context_type):
        return True
    if name not in _CONTEXT_NAMES:
        return False
    # By its name alone, unless it plainly asks for the document.
    untyped = hint is Parameter.empty or hint is Any or hint is object
    return untyped or not first or not takes_documents(hint)


def _includes(hint: object, context_type: type) -> bool:
    hint = plain(hint)
    origin = typing.get_origin(hint) or hint
    if isinstance(origin, type) and issubclass(origin, context_type):
        return True
    return origin in _UNIONS and any(_includes(member, context_type) for member in typing.get_args(hint))


def _is_async(function: Callable[..., Any]) -> bool:
    return any(inspect.iscoroutinefunction(target) for target in _targets(function))


def _targets(function: object) -> tuple[object, object]:
    """What may carry the marks of a coroutine or a generator: the function, or its class's ``__call__``."""
    while isinstance(function, functools.partial):
        function = function.func
    return function, inspect.getattr_static(type(function), "__call__", None)


def _as_it_is(document: object) -> object:
    return document


def _refused(problem: str, expected: str = EXPECTED) -> ConfigurationError:
    return ConfigurationError(problem, option="handler", expected=expected)
