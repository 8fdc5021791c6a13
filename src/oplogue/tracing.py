"""A span for each run, by OpenTelemetry: ``pip install 'oplogue[otel]'``, and set up a tracer provider.

Every `App` traces its runs where ``opentelemetry-api`` is installed; without a provider that costs nothing but a look
for one. A run begins a trace of its own: it may come long after the change, and stand for several. It is *linked* to
the trace of the change, where the document says which that was (a field ``traceparent``, as W3C Trace Context writes
it), and an attempt after a failed one to that one, whichever instance it ran on.
"""

from __future__ import annotations

import os
from asyncio import CancelledError
from collections.abc import Iterator, Mapping
from typing import Any, cast

from opentelemetry.context import Context as Ambient
from opentelemetry.trace import (
    Link,
    ProxyTracerProvider,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    get_current_span,
    get_tracer,
    get_tracer_provider,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from oplogue.model.outcomes import Deferred, Moved, Raised, Skipped
from oplogue.runtime.context import Context, Run, run_of
from oplogue.runtime.settings import CallNext, Middleware

FIELD = "traceparent"
"""Where a document says which trace its change belongs to."""

_DISABLED = "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"
_PROPAGATOR = TraceContextTextMapPropagator()


def middleware() -> tuple[Middleware, ...]:
    """What stands around the handlers of every app; nothing where the environment says so."""
    disabled = os.environ.get(_DISABLED, "").split(",")
    return () if "oplogue" in (name.strip() for name in disabled) else (trace_run,)


async def trace_run(context: Context, call_next: CallNext) -> None:
    """Run the handler in a span."""
    if isinstance(get_tracer_provider(), ProxyTracerProvider):
        await call_next()  # nobody listens
        return
    run = run_of(context)
    # A trace of its own: whatever span the app was started in has ended long ago.
    with get_tracer("oplogue").start_as_current_span(
        f"run {context.task}",
        context=Ambient(),
        kind=SpanKind.CONSUMER,
        attributes={
            "oplogue.task": context.task,
            "oplogue.doc_id": str(context.doc_id),
            "oplogue.attempt": context.attempt,
            "oplogue.instance_id": context.instance_id,
        },
        links=list(_links(run)),
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        _link_when_read(span, run)
        error: BaseException | None = None
        try:
            await call_next()
        except BaseException as raised:
            error = raised
            raise
        finally:
            _end(span, run, error)


def _links(run: Run) -> Iterator[Link]:
    change = _change(run.document) or _change(run.record.values)
    if change is not None:
        yield Link(change, {"oplogue.link": "change"})
    # Of an earlier sequence of attempts, where this one has not failed yet.
    if run.record.attempts > 1 and run.record.first_error_at is not None:
        before = _parsed(run.record.trace)
        if before is not None:
            yield Link(before, {"oplogue.link": "previous_attempt"})


def _link_when_read(span: Span, run: Run) -> None:
    """A document that the handler reads itself says only then where its change comes from."""
    known = _change(run.document) or _change(run.record.values)

    def read(document: Any) -> None:
        nonlocal known
        change = _change(document)
        if change is not None and change != known:
            known = change
            span.add_link(change, {"oplogue.link": "change"})

    run.on_document = read


def _change(document: Any) -> SpanContext | None:
    return _parsed(cast(Mapping[str, Any], document).get(FIELD)) if isinstance(document, Mapping) else None


def _parsed(traceparent: Any) -> SpanContext | None:
    if not isinstance(traceparent, str):
        return None
    # Into an empty context: where it can't be read there is no span, not the one that is current.
    found = get_current_span(_PROPAGATOR.extract({FIELD: traceparent}, Ambient())).get_span_context()
    return found if found.is_valid else None


def _end(span: Span, run: Run, error: BaseException | None) -> None:
    outcome, problem = _outcome(run, error)
    span.set_attribute("oplogue.outcome", outcome)
    if problem is None:
        return
    span.set_status(StatusCode.ERROR, problem)
    if error is not None and not isinstance(error, CancelledError):
        span.record_exception(error)
    found = span.get_span_context()
    if found.is_valid:
        run.trace = f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"


def _outcome(run: Run, error: BaseException | None) -> tuple[str, str | None]:
    """In the words of events; and what went wrong."""
    if isinstance(error, CancelledError) and run.cut_short:
        return ("lease_lost", "the lease was lost while it ran") if run.lost else ("released", None)
    match run.ended(error):
        case Raised(error=problem):
            return "failed", problem
        case Skipped() | Moved():
            return "skipped", None
        case Deferred():
            return "deferred", None
        case _:
            return "completed", None
