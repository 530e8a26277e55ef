"""A collector of OpenTelemetry: receives OTLP over HTTP, and keeps the spans."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.waiting import until

# So that spans are sent as soon as they are made.
AT_ONCE = {"OTEL_BSP_SCHEDULE_DELAY": "50"}


@dataclass(frozen=True)
class Span:
    """A span as it came. Times are nanoseconds since 1970, ids are hex."""

    service: str
    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    began: int
    ended: int
    attributes: dict[str, Any]
    links: tuple[tuple[str, str], ...]
    status: int
    message: str
    tracestate: str

    @property
    def seconds(self) -> float:
        return (self.ended - self.began) / 1e9


@dataclass
class Collector:
    """What came so far.

    Attributes:
        url: base URL, as `OTEL_EXPORTER_OTLP_ENDPOINT` has it.
    """

    url: str
    spans: list[Span] = field(default_factory=list)

    @property
    def settings(self) -> dict[str, str]:
        """Variables of a program that sends its spans here at once."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.url, **AT_ONCE}

    def of(self, trace_id: str) -> list[Span]:
        """The spans of a trace, in the order in which they began."""
        return sorted(
            (span for span in list(self.spans) if span.trace_id == trace_id), key=lambda s: s.began
        )

    def children(self, span: Span) -> list[Span]:
        return [one for one in self.of(span.trace_id) if one.parent_id == span.span_id]

    def wait_for(self, wanted: Callable[[Span], bool]) -> Span:
        """The first span for which `wanted` is true, once it has come."""
        found: list[Span] = []

        def has_come() -> bool:
            found[:] = [span for span in list(self.spans) if wanted(span)]
            return bool(found)

        until(has_come)
        return found[0]

    def add(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = _attributes(resource.resource.attributes)["service.name"]
            for scope in resource.scope_spans:
                self.spans += [_span(service, span) for span in scope.spans]


def _span(service: str, span: Any) -> Span:
    return Span(
        *(service, span.name, span.kind, span.trace_id.hex(), span.span_id.hex()),
        *(span.parent_span_id.hex(), span.start_time_unix_nano, span.end_time_unix_nano),
        _attributes(span.attributes),
        tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
        *(span.status.code, span.status.message, span.trace_state),
    )


def _attributes(found: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in found}


@contextmanager
def running_collector() -> Iterator[Collector]:
    """A collector on a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            assert self.path == "/v1/traces"
            collector.add(body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            """Write nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(f"http://127.0.0.1:{server.server_address[1]}")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield collector
        finally:
            server.shutdown()
