"""Spans of the client's requests, if OpenTelemetry is in use. Without it nothing is imported.

A request is traced if the program has an active span, or if the variables of OpenTelemetry ask for
traces. The server's spans become children of the request's span, by the header `traceparent`.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from warpcall._transport.base import Reply
from warpcall.errors import InvalidInput, Problem
from warpcall.telemetry import asks_for_traces, why_not

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

SERVICE = "warpcall-client"  # the name of the program, unless the variables have one
KEPT_SEGMENTS = 3  # of a path in the name of a span: "", "v1" and "jobs", without the id of a job


class RequestSpan:
    """The span of one request, with its retries.

    Attributes:
        headers: what the server needs to continue the trace.
    """

    def __init__(self, span: Span) -> None:
        from opentelemetry.trace import set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._span = span
        self.headers: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(self.headers, set_span_in_context(span))

    def answered(self, reply: Reply) -> None:
        """Note what the server answered."""
        self._span.set_attribute("http.response.status_code", reply.status)
        self._span.set_attribute("warpcall.request_id", reply.headers.get("x-request-id", ""))


def tracer() -> Tracer | None:
    """What makes the span of a request that begins now; None if it is not traced."""
    # A program with an active span has imported this module.
    api = sys.modules.get("opentelemetry.trace")
    if api is not None and api.get_current_span().get_span_context().is_valid:
        found: Tracer = api.get_tracer("warpcall")
        return found
    return _tracer_of_variables()


@contextmanager
def request_span(tracer: Tracer, method: str, url: str, label: str) -> Iterator[RequestSpan]:
    """The span of a request, which ends with the block.

    Args:
        label: name of the op that is called, or another name, or the path.
    """
    from opentelemetry.trace import SpanKind, Status, StatusCode

    path = label.partition("?")[0]
    name = "/".join(path.split("/")[:KEPT_SEGMENTS])
    attributes = {"http.request.method": method, "url.full": url, "warpcall.call": name}
    span = tracer.start_span(f"{method} {name}", kind=SpanKind.CLIENT, attributes=attributes)
    try:
        yield RequestSpan(span)
    except BaseException as error:
        kind = error.code if isinstance(error, Problem) else type(error).__name__
        span.set_attribute("error.type", kind)
        if isinstance(error, Problem):
            span.set_attribute("http.response.status_code", error.status)
        span.set_status(Status(StatusCode.ERROR, str(error)))
        raise
    finally:
        span.end()


@functools.cache
def _tracer_of_variables() -> Tracer | None:
    """The tracer that the variables ask for: of the program if it has set one up, or our own."""
    if not asks_for_traces(os.environ) or why_not(os.environ):
        return None
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    if isinstance(trace.get_tracer_provider(), TracerProvider):
        return trace.get_tracer("warpcall")
    try:
        resource = Resource.create()
        if str(resource.attributes["service.name"]).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": SERVICE}))
        provider = TracerProvider(resource=resource)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    except (ValueError, OSError) as error:
        raise InvalidInput(f"a variable OTEL_* cannot be used: {error}") from error
    return provider.get_tracer("warpcall")
