"""Makes spans with OpenTelemetry's SDK, within a bound on the work that they cost.

A span is made when it has ended, from times that are known then.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable, Mapping, Sequence

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
)
from prometheus_client.core import CounterMetricFamily, Metric

from warpcall_service.admission import TokenBucket

# The spans of a call cost 0.3 ms of CPU, nearly half of it in the thread that sends them, and a request
# that the sampler leaves out 5 us. So what the server traces by itself takes at most 0.3 % of a CPU, and
# what callers trace 1.5 %, whatever the load; on a machine that is busy with more, some times as much.
TRACE_UNITS = 40.0  # of a request or a run whose spans are made; 1 of any other
OWN_UNITS_PER_S = 400.0
CALLERS_UNITS_PER_S = 2000.0
OWN_BURST = 2000.0  # units at once, after a time with fewer requests
CALLERS_BURST = 4000.0
KNOWN_FLAGS = 3  # of a `traceparent`: sampled, and a random id
CLOSE_S = 3.0  # to send the last spans when the server stops

Attributes = Mapping[str, str | int | float | bool]


class OpenSpan:
    """A span that is not ended yet, and whose children may be ended before it."""

    __slots__ = ("_context", "_span", "_tracer")

    def __init__(self, tracer: trace.Tracer, span: trace.Span) -> None:
        self._tracer = tracer
        self._span = span
        self._context = trace.set_span_in_context(span, Context())

    @property
    def traceparent(self) -> str:
        """The header that names it as the parent of others."""
        context = self._span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    def child(self, name: str, began_ns: int) -> OpenSpan:
        """A part of it, which has begun at a time in nanoseconds since 1970."""
        return OpenSpan(
            self._tracer, self._tracer.start_span(name, self._context, start_time=began_ns)
        )

    def rename(self, name: str) -> None:
        """Change its name."""
        self._span.update_name(name)

    def end(self, ended_ns: int, attributes: Attributes | None = None, error: str = "") -> None:
        """End it.

        Args:
            error: why it failed; empty if it did not.
        """
        if attributes:
            self._span.set_attributes(attributes)
        if error:
            self._span.set_status(Status(StatusCode.ERROR, error))
        self._span.end(ended_ns)


class Tracer:
    """Begins spans, and sends them to the collector that the variables name, in a thread."""

    def __init__(self, version: str, instance: str) -> None:
        own = {
            "service.name": "warpcall-server",
            "service.version": version,
            "service.instance.id": instance,
        }
        given = Resource.create().attributes
        if not str(given["service.name"]).startswith("unknown_service"):
            own["service.name"] = str(given["service.name"])
        self._provider = TracerProvider(resource=Resource.create(own), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("warpcall", version)
        now = time.monotonic()
        self._own = TokenBucket(OWN_BURST, 1 / OWN_UNITS_PER_S, now)
        self._callers = TokenBucket(CALLERS_BURST, 1 / CALLERS_UNITS_PER_S, now)
        self._left_out = 0

    def admits(self, traceparent: str | bytes) -> bool:
        """Whether a request or a run may be traced now. If not, it is counted as left out.

        Args:
            traceparent: as for `begin`.
        """
        if not (self._callers if traceparent else self._own).take(time.monotonic()):
            return True
        self._left_out += 1
        return False

    def begin(
        self,
        name: str,
        began_ns: int,
        *,
        serves: bool,
        traceparent: str = "",
        tracestate: str = "",
        link: str = "",
    ) -> OpenSpan | None:
        """Begin a span, after `admits`; None if the sampler leaves it out.

        Args:
            began_ns: nanoseconds since 1970.
            serves: whether it is a request that this server answers.
            traceparent: names the span that it belongs to, in a valid form; empty begins a trace.
            tracestate: what the caller's tracing systems add to that; what is malformed is ignored.
            link: names a span of another trace that led to it, in the same form as `traceparent`.
        """
        parent = Context()
        if traceparent:
            parent = trace.set_span_in_context(
                NonRecordingSpan(_context_of(traceparent, tracestate)), parent
            )
        span = self._tracer.start_span(
            name,
            parent,
            SpanKind.SERVER if serves else SpanKind.INTERNAL,
            links=[Link(_context_of(link))] if link else [],
            start_time=began_ns,
        )
        if not span.is_recording():
            return None
        units = self._callers if traceparent else self._own
        units.spend(time.monotonic(), TRACE_UNITS - 1)
        return OpenSpan(self._tracer, span)

    def metrics(self) -> Iterable[Metric]:
        """What was left out, as a Prometheus metric."""
        family = CounterMetricFamily(
            "warpcall_traces_left_out",
            "Requests and runs of jobs without spans because too many were traced in that second",
        )
        family.add_metric([], self._left_out)
        return (family,)

    async def close(self) -> None:
        """Send the last spans, for CLOSE_S at most. Spans that end later are dropped."""
        # A thread of asyncio's pool would be awaited when the process ends.
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, CLOSE_S)


def _context_of(traceparent: str, tracestate: str = "") -> SpanContext:
    _, trace_id, span_id, flags = traceparent.split("-")
    states: Sequence[str] = [tracestate] if tracestate else ()
    return SpanContext(
        int(trace_id, 16),
        int(span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(int(flags, 16) & KNOWN_FLAGS),
        trace_state=TraceState.from_header(list(states)),
    )
