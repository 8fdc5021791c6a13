"""Spans of runs, as OpenTelemetry's own SDK exports them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

import pytest
from opentelemetry import trace
from opentelemetry.propagate import inject
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from pymongo.asynchronous.collection import AsyncCollection
from tests.integration.runtime.conftest import Document, MakeStage
from tests.support.running import Gate, Stage

from oplogue import Context, Fixed

Orders = AsyncCollection[Document]
ONCE = Fixed(0, max_attempts=1)


@pytest.fixture(autouse=True)
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """What was exported. A process has one provider for good: the test's is taken away again."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


def runs(exported: InMemorySpanExporter) -> list[ReadableSpan]:
    """The spans of runs, in the order of their ends."""
    return [span for span in exported.get_finished_spans() if span.name.startswith("run ")]


def told(span: ReadableSpan) -> dict[str, object]:
    """What a span says about its run, without the common prefix."""
    return {name.removeprefix("oplogue."): value for name, value in (span.attributes or {}).items()}


def linked(span: ReadableSpan) -> dict[object, trace.SpanContext]:
    """What a span is linked to, by what that is."""
    return {dict(link.attributes or {})["oplogue.link"]: link.context for link in span.links}


def traceparent() -> tuple[str, int]:
    """A change's trace as a document keeps it, and its id."""
    carrier: dict[str, str] = {}
    with trace.get_tracer("shop").start_as_current_span("pay") as span:
        inject(carrier)
    return carrier["traceparent"], span.get_span_context().trace_id


async def test_each_run_is_a_span_of_a_trace_of_its_own(
    stage: Stage, orders: Orders, exported: InMemorySpanExporter
) -> None:
    seen: list[trace.SpanContext] = []

    @stage.app.reactive_task(task="sync", collection="orders", debounce=0)
    async def sync(ctx: Context) -> None:
        seen.append(trace.get_current_span().get_span_context())

    @stage.app.reactive_task(task="call", collection="orders", debounce=0)
    def call(ctx: Context) -> None:
        seen.append(trace.get_current_span().get_span_context())

    with trace.get_tracer("shop").start_as_current_span("start-up"):
        await stage.app.start()
    await orders.insert_one({"_id": 7})
    await stage.counted(2, status="completed")
    spans = runs(exported)
    assert {span.name for span in spans} == {"run sync", "run call"}
    contexts = [span.get_span_context() for span in spans]
    assert {one.span_id for one in contexts if one} == {one.span_id for one in seen}
    assert len({one.trace_id for one in seen}) == 2
    assert [span.parent for span in spans] == [None, None]
    assert told(next(span for span in spans if span.name == "run sync")) == {
        "task": "sync",
        "doc_id": "7",
        "attempt": 1,
        "instance_id": stage.app.instance_id,
        "outcome": "completed",
    }
    assert {span.status.status_code for span in spans} == {StatusCode.UNSET}


async def test_attempts_that_failed_are_errors_and_the_next_is_linked_on_whichever_instance_it_runs(
    make_stage: MakeStage, orders: Orders, exported: InMemorySpanExporter
) -> None:
    async def sync(ctx: Context) -> None:
        if ctx.attempt < 3:
            raise ValueError(f"attempt {ctx.attempt}")

    async def on_an_instance_of_its_own() -> None:
        stage = make_stage()
        stage.app.reactive_task(
            task="sync", collection="orders", debounce=0, retry_policy=Fixed("1h", max_attempts=3)
        )(sync)
        await stage.app.start()
        if not await orders.count_documents({}):
            await orders.insert_one({"_id": 1})
        else:
            retried = {"nextRunAt": {"$type": "date"}}
            await orders.database["orders_tasks"].update_one(retried, [{"$set": {"nextRunAt": "$$NOW"}}])
        await stage.until(lambda: bool(stage.heard("task.retried") or stage.heard("task.completed")))
        await stage.app.stop()

    for _ in range(3):
        await on_an_instance_of_its_own()
    first, second, third = runs(exported)
    assert [told(span)["outcome"] for span in (first, second, third)] == ["failed", "failed", "completed"]
    assert [told(span)["attempt"] for span in (first, second, third)] == [1, 2, 3]
    assert len({told(span)["instance_id"] for span in (first, second, third)}) == 3
    assert (first.status.status_code, first.status.description) == (StatusCode.ERROR, "ValueError: attempt 1")
    (event,) = first.events
    assert dict(event.attributes or {})["exception.type"] == "ValueError"
    assert "raise ValueError" in str(dict(event.attributes or {})["exception.stacktrace"])
    assert linked(first) == {}
    for before, after in ((first, second), (second, third)):
        assert before.context is not None
        link = linked(after)["previous_attempt"]
        assert (link.trace_id, link.span_id) == (before.context.trace_id, before.context.span_id)
    assert third.status.status_code is StatusCode.UNSET


async def test_new_sequence_of_attempts_is_not_linked_to_the_last_one(
    stage: Stage, orders: Orders, exported: InMemorySpanExporter
) -> None:
    @stage.app.reactive_task(collection="orders", debounce=0, retry_policy=Fixed(0, max_attempts=2))
    async def sync(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ValueError("at first")

    await stage.app.start()
    await orders.insert_one({"_id": 1})
    await stage.next("task.completed")
    await orders.update_one({"_id": 1}, {"$set": {"total": 2}})
    await stage.next("task.completed")
    assert [set(linked(span)) for span in runs(exported)] == [set(), {"previous_attempt"}] * 2


@dataclass
class Order:
    """As much of an order as a handler wants."""

    status: str


@pytest.mark.parametrize("reads", ["by get_document", "as a parameter", "in the watched values"])
async def test_run_is_linked_to_the_trace_that_its_document_names(
    stage: Stage, orders: Orders, exported: InMemorySpanExporter, reads: str
) -> None:
    if reads == "as a parameter":

        @stage.app.reactive_task(collection="orders", debounce=0, watch_projection=["status"])
        async def given(order: Order) -> None:
            assert order.status == "paid"

    elif reads == "by get_document":

        @stage.app.reactive_task(collection="orders", debounce=0, watch_projection=["status"])
        async def fetched(ctx: Context) -> None:
            await ctx.get_document()

    else:

        @stage.app.reactive_task(collection="orders", debounce=0, watch_projection=["status", "traceparent"])
        async def watched(ctx: Context) -> None:
            await ctx.get_document()

    await stage.app.start()
    named, trace_id = traceparent()
    await orders.insert_one({"_id": 1, "status": "paid", "traceparent": named})
    await stage.next("task.completed")
    (span,) = runs(exported)
    assert [link.context.trace_id for link in span.links] == [trace_id]
    assert span.context is not None
    assert span.context.trace_id != trace_id


@pytest.mark.parametrize("named", ["nonsense", 7, {"a": 1}, None, "00-" + 32 * "0" + "-" + 16 * "0" + "-01"])
async def test_what_names_no_trace_is_passed_over(
    stage: Stage, orders: Orders, exported: InMemorySpanExporter, named: object
) -> None:
    @stage.app.reactive_task(collection="orders", debounce=0)
    async def sync(ctx: Context) -> None:
        await ctx.get_document()

    await stage.app.start()
    await orders.insert_one({"_id": 1, "traceparent": named})
    await stage.next("task.completed")
    assert [linked(span) for span in runs(exported)] == [{}]


async def test_every_end_of_a_run_has_its_word(
    make_stage: MakeStage, orders: Orders, exported: InMemorySpanExporter
) -> None:
    stage, gate = make_stage(shutdown_timeout="0s"), Gate()

    @stage.app.reactive_task(
        collection="orders", debounce=0, filter={"for": "sync"}, timeout="200ms", retry_policy=ONCE
    )
    async def sync(ctx: Context) -> None:
        match ctx.doc_id:
            case "gone":
                await orders.delete_one({"_id": ctx.doc_id})
                await ctx.get_document()
            case "later":
                ctx.defer_current("1h")
            case "hangs":
                await asyncio.Event().wait()
            case _:
                await ctx.mark_completed()
                raise ValueError("too late to matter")

    @stage.app.reactive_task(collection="orders", debounce=0, filter={"for": "convert"}, retry_policy=ONCE)
    async def convert(order: Order) -> None: ...

    @stage.app.reactive_task(collection="orders", debounce=0, filter={"for": "wait"})
    async def wait(ctx: Context) -> None:
        await gate()

    await stage.app.start()
    await orders.insert_many([{"_id": id_, "for": "sync"} for id_ in ("gone", "later", "hangs", "marked")])
    await orders.insert_many([{"_id": "odd", "for": "convert"}, {"_id": "cut", "for": "wait"}])
    await gate.reached()
    for code, task in (
        ("task.skipped", "sync"),
        ("task.deferred", "sync"),
        ("task.failed", "sync"),
        ("task.completed", "sync"),
        ("task.failed", "convert"),
    ):
        await stage.next(code, task=task)
    await stage.app.stop()
    ends = {
        str(told(span)["doc_id"]): (told(span)["outcome"], span.status.description) for span in runs(exported)
    }
    assert ends.pop("odd")[0] == "failed"
    assert ends == {
        "gone": ("skipped", None),
        "later": ("deferred", None),
        "hangs": ("failed", "TimeoutError: still running after 0:00:00.200000"),
        "marked": ("completed", None),
        "cut": ("released", None),
    }


async def test_other_middleware_stands_inside_the_span(
    make_stage: MakeStage, orders: Orders, exported: InMemorySpanExporter
) -> None:
    async def correlated(ctx: Context, call_next: Callable[[], Awaitable[None]]) -> None:
        trace.get_current_span().set_attribute("correlation", "7")
        await call_next()

    stage = make_stage(middleware=correlated)

    @stage.app.reactive_task(collection="orders", debounce=0)
    async def sync(ctx: Context) -> None: ...

    await stage.app.start()
    await orders.insert_one({"_id": 1})
    await stage.next("task.completed")
    assert [told(span)["correlation"] for span in runs(exported)] == ["7"]


async def test_nothing_is_traced_where_the_environment_says_so(
    make_stage: MakeStage,
    orders: Orders,
    exported: InMemorySpanExporter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_PYTHON_DISABLED_INSTRUMENTATIONS", "redis, oplogue")
    stage = make_stage()

    @stage.app.reactive_task(collection="orders", debounce=0)
    async def sync(ctx: Context) -> None: ...

    await stage.app.start()
    await orders.insert_one({"_id": 1})
    await stage.next("task.completed")
    assert runs(exported) == []


def test_without_the_extra_apps_have_no_middleware_of_their_own() -> None:
    code = (
        "import sys; sys.modules['opentelemetry.context'] = sys.modules['opentelemetry'] = None\n"
        "import oplogue\n"
        "print(oplogue.App('mongodb://localhost/shop')._settings.middleware)"
    )
    without = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (without.stdout.strip(), without.stderr) == ("()", "")
