from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

import pytest
from pydantic import BaseModel, ConfigDict, Field

from oplogue.errors import ConfigurationError, DocumentConversionError
from oplogue.model.handlers import Handler, bind_handler

if TYPE_CHECKING:
    from elsewhere import Unknown  # pyright: ignore[reportMissingImports, reportUnknownVariableType] - the point


class Context:
    pass


class JobContext(Context):
    pass


@dataclass
class Order:
    id: int
    total: float = 0.0


class Model(BaseModel):
    id: int
    tags: list[str] = []


DOCUMENT = {"_id": 1, "total": 5}
CONTEXT = Context()


def bind(function: Callable[..., Any]) -> Handler:
    return bind_handler(function, context_type=Context, task="sync-order")


def given(function: Callable[..., Any]) -> tuple[object, ...]:
    handler = bind(function)
    return handler.arguments(handler.convert(dict(DOCUMENT)), CONTEXT)


# What may be a handler.


async def context_only(ctx: Context) -> None: ...
async def other_name(it: Context) -> None: ...
async def named_ctx(ctx) -> None: ...  # pyright: ignore[reportUnknownParameterType, reportMissingParameterType]
async def named_context(context: Any) -> None: ...
async def optional_context(it: Optional[Context] = None) -> None: ...  # noqa: UP045 - the old form is in use
async def job_context(it: JobContext) -> None: ...
async def untold_context(it: elsewhere.Context) -> None: ...  # pyright: ignore # noqa: F821 - known to type checkers only
async def protocol_context(ctx: Unknown) -> None: ...  # pyright: ignore[reportUnknownParameterType]
async def ctx_of_a_type_of_its_own(ctx: int) -> None: ...


CONTEXT_HANDLERS: list[Callable[..., Any]] = [
    context_only,
    other_name,
    named_ctx,
    named_context,
    optional_context,
    job_context,
    untold_context,
    protocol_context,
    ctx_of_a_type_of_its_own,
]  # pyright: ignore[reportUnknownVariableType] - some are without annotations


@pytest.mark.parametrize("function", CONTEXT_HANDLERS)
def test_the_context_is_given_by_type_or_by_name(function: Callable[..., Any]) -> None:
    handler = bind(function)
    assert (handler.wants_context, handler.wants_document) == (True, False)
    assert handler.arguments(None, CONTEXT) == (CONTEXT,)
    assert handler.is_async


def document_untyped(order) -> None: ...  # pyright: ignore[reportUnknownParameterType, reportMissingParameterType]
def document_dict(order: dict[str, Any]) -> None: ...
def document_any(order: Any) -> None: ...
def document_named_ctx(ctx: dict[str, Any]) -> None: ...


DOCUMENT_HANDLERS: list[Callable[..., Any]] = [
    document_untyped,
    document_dict,
    document_any,
    document_named_ctx,
]


@pytest.mark.parametrize("function", DOCUMENT_HANDLERS)
def test_the_document_is_the_first_parameter(function: Callable[..., Any]) -> None:
    handler = bind(function)
    assert (handler.wants_context, handler.wants_document) == (False, True)
    document = dict(DOCUMENT)
    assert handler.convert(document) is document
    assert handler.arguments(document, CONTEXT) == (document,)
    assert not handler.is_async


def test_the_document_comes_as_what_the_annotation_asks_for() -> None:
    def plain(order: Order) -> None: ...
    def both(order: Order, ctx: Context) -> None: ...
    def untyped(order: Order, ctx) -> None: ...  # pyright: ignore[reportUnknownParameterType, reportMissingParameterType]
    def positional(order: Order, /, it: Context) -> None: ...
    def with_default(order: Order, retries: int = 3, ctx: Context = CONTEXT, more: str = "") -> None: ...
    def with_rest(order: Order, *args: Any, key: int = 1, **more: Any) -> None: ...

    order = Order(1, 5.0)
    assert given(plain) == (order,)
    assert given(both) == given(positional) == (order, CONTEXT)
    assert given(untyped) == (order, CONTEXT)  # pyright: ignore[reportUnknownArgumentType]
    assert given(with_default) == (order, 3, CONTEXT)
    assert given(with_rest) == (order,)


def test_classes_within_the_function_around_are_known() -> None:
    @dataclass
    class Item:
        price: float

    @dataclass
    class Local:
        id: int
        items: list[Item]

    def handle(order: Local) -> None: ...

    converted = bind(handle).convert({"_id": 1, "items": [{"price": 2}]})
    assert converted == Local(1, [Item(2.0)])


def test_a_document_that_does_not_fit_names_the_field() -> None:
    def handle(order: Order) -> None: ...

    with pytest.raises(DocumentConversionError, match=r"^Order\.total: expected float, got str 'x'$"):
        bind(handle).convert({"_id": 1, "total": "x"})


class Service:
    async def handle(self, order: Order, ctx: Context) -> None: ...

    def plain(self, ctx: Context) -> None: ...

    @classmethod
    async def of_class(cls, ctx: Context) -> None: ...

    @staticmethod
    async def of_nobody(ctx: Context) -> None: ...


class AsyncCallable:
    async def __call__(self, order: Order) -> None: ...


class PlainCallable:
    def __call__(self, ctx: Context) -> None: ...


async def with_setting(setting: str, order: Order, ctx: Context) -> None: ...


@pytest.mark.parametrize(
    ("function", "is_async", "arguments"),
    [
        (Service().handle, True, (Order(1, 5.0), CONTEXT)),
        (Service().plain, False, (CONTEXT,)),
        (Service.of_class, True, (CONTEXT,)),
        (Service.of_nobody, True, (CONTEXT,)),
        (AsyncCallable(), True, (Order(1, 5.0),)),
        (PlainCallable(), False, (CONTEXT,)),
        (functools.partial(with_setting, "x"), True, (Order(1, 5.0), CONTEXT)),
        (functools.partial(functools.partial(with_setting, "x")), True, (Order(1, 5.0), CONTEXT)),
        (functools.partial(AsyncCallable()), True, (Order(1, 5.0),)),
    ],
)
def test_all_kinds_of_callables_are_handlers(
    function: Callable[..., Any], is_async: bool, arguments: tuple[object, ...]
) -> None:
    assert bind(function).is_async is is_async
    assert given(function) == arguments


def test_a_decorated_function_keeps_its_signature() -> None:
    def traced(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        async def wrapped(*args: Any) -> Any:
            return await function(*args)

        return wrapped

    @traced
    async def handle(order: Order, ctx: Context) -> None: ...

    assert given(handle) == (Order(1, 5.0), CONTEXT)


# What may not.


def nothing() -> None: ...
def only_defaults(order: Any = None) -> None: ...
def only_rest(*args: Any) -> None: ...
def only_keywords(**more: Any) -> None: ...
def keyword_only(order: Order, *, ctx: Context) -> None: ...
def three(order: Order, other: Order, ctx: Context) -> None: ...
def two_documents(order: Order, other: Order) -> None: ...
def context_first(ctx: Context, order: Order) -> None: ...
def two_contexts(first: Context, second: Context) -> None: ...
def number(order: int) -> None: ...
def unknown(order: Unknown) -> None: ...  # pyright: ignore[reportUnknownParameterType]
def generator(ctx: Context) -> Iterator[int]:
    yield 1


async def async_generator(ctx: Context) -> AsyncIterator[int]:
    yield 1


class GeneratorCallable:
    def __call__(self, ctx: Context) -> Iterator[int]:
        yield 1


REFUSED: list[tuple[Any, str]] = [
    (nothing, "neither the context nor the document"),
    (only_defaults, "neither the context nor the document"),
    (only_rest, "neither the context nor the document"),
    (only_keywords, "neither the context nor the document"),
    (keyword_only, "'ctx' can be given by keyword only"),
    (three, "nothing is known to give for 'other'"),
    (two_documents, "nothing is known to give for 'other'"),
    (context_first, "the document comes first"),
    (two_contexts, "two parameters ask for the context"),
    (number, "nothing converts to int"),
    (unknown, "annotation Unknown of 'order' can't be resolved"),
    (generator, "a generator"),
    (async_generator, "a generator"),
    (functools.partial(generator), "a generator"),
    (GeneratorCallable(), "a generator"),
    (Order, "a class"),
    (Service.handle, "'self' belongs to a method"),
    ("handle", "not a function"),
    (None, "not a function"),
    (dict[str, int], "parameters can't be read"),
]


@pytest.mark.parametrize(("function", "problem"), REFUSED)
def test_what_cannot_be_called_is_refused(function: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem) as caught:
        bind(function)
    assert caught.value.option == "handler"
    assert caught.value.task == "sync-order"
    assert caught.value.value is function
    assert caught.value.expected


# pydantic


def test_a_pydantic_model_validates_the_document() -> None:
    def handle(order: Model) -> None: ...

    convert = bind(handle).convert
    assert convert({"_id": 1, "tags": ["a"], "more": 1}) == Model(id=1, tags=["a"])
    assert convert({"_id": 1, "id": 2}) == Model(id=2)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"_id": 1, "tags": ["a", 5]}, "Model.tags[1]: input should be a valid string, got int 5"),
        ({}, "Model.id: field required"),
        ({"_id": "x", "tags": 5}, "Model.id: input should be a valid integer.* got str 'x' (and 1 more)"),
    ],
)
def test_what_a_model_refuses_names_the_field(document: dict[str, Any], message: str) -> None:
    def handle(order: Model) -> None: ...

    with pytest.raises(DocumentConversionError) as caught:
        bind(handle).convert(document)
    before, _, after = message.partition(".*")
    assert str(caught.value).startswith(before)
    assert str(caught.value).endswith(after)


def test_a_model_with_an_alias_of_its_own_is_left_alone() -> None:
    class Aliased(BaseModel):
        model_config = ConfigDict(extra="forbid")
        id: int = Field(alias="_id")

    class Closed(BaseModel):
        model_config = ConfigDict(extra="forbid")
        id: int

    def aliased(order: Aliased) -> None: ...
    def closed(order: Closed) -> None: ...

    assert bind(aliased).convert({"_id": 1}) == Aliased(_id=1)
    assert bind(closed).convert({"_id": 1}) == Closed(id=1)


def test_models_and_dataclasses_may_hold_each_other() -> None:
    @dataclass
    class Holder:
        model: Model
        others: list[Model] | None = None

    def handle(holder: Holder) -> None: ...

    convert = bind(handle).convert
    assert convert({"model": {"_id": 1}}) == Holder(Model(id=1))
    with pytest.raises(DocumentConversionError, match=r"^Holder\.others\[0\]\.id: field required$"):
        convert({"model": {"id": 1}, "others": [{}]})


def test_pydantic_is_not_imported_for_handlers_without_models() -> None:
    script = """
import sys
from dataclasses import dataclass
from oplogue.model.handlers import bind_handler

@dataclass
class Order:
    id: int

def handle(order: Order): ...

bind_handler(handle, context_type=int, task="t").convert({"_id": 1})
sys.exit("pydantic" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True, env={"PYTHONPATH": ":".join(sys.path)})
