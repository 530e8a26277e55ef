"""What a server traces: requests, with the stages of calls, and runs of jobs."""

from __future__ import annotations

import time
from collections.abc import Iterable

from prometheus_client.core import Metric

from warpcall_service.http.access_log import Answered, without_token
from warpcall_service.http.exchange import Exchange
from warpcall_service.tracing.tracer import Attributes, OpenSpan, Tracer

PROBES = frozenset(("/healthz", "/readyz", "/metrics"))
METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
SERVER_ERRORS = 500  # from this status on, the server is at fault


class ServerTraces:
    """Makes the spans of requests after they were answered, and begins those of runs of jobs.

    Args:
        link_folders: below these, a path goes on with the token of a share link, which no span has.
    """

    def __init__(self, tracer: Tracer, link_folders: tuple[str, ...]) -> None:
        self._tracer = tracer
        self._link_folders = link_folders

    def traceparent(self, exchange: Exchange) -> str:
        """Begin the span of a request before its answer, and return the header that names it.

        If the request is not traced here, this is the header of the request, or empty.
        """
        if exchange.span is None and self._tracer.admits(exchange.traceparent):
            exchange.span = self._begin(exchange, _since_1970(exchange.began))
        span: OpenSpan | None = exchange.span
        return exchange.traceparent.decode() if span is None else span.traceparent

    def begin_run(self, name: str, began_ns: int, link: str) -> OpenSpan | None:
        """Begin a trace of its own for a run of a job; None if it is not traced.

        Args:
            began_ns: nanoseconds since 1970.
            link: what `traceparent` returned for the request that submitted the job, or empty.
        """
        if not self._tracer.admits(""):
            return None
        return self._tracer.begin(name, began_ns, serves=False, link=link)

    async def close(self) -> None:
        """As `Tracer.close`."""
        await self._tracer.close()

    def metrics(self) -> Iterable[Metric]:
        """What was not traced, as a Prometheus metric."""
        return self._tracer.metrics()

    def record(self, request: Answered, seconds: float) -> None:
        """Make the spans of a request that has just been answered, in so many seconds."""
        span: OpenSpan | None = request.span
        if span is None and (
            request.scope["path"] in PROBES or not self._tracer.admits(request.traceparent)
        ):
            return
        began_ns = _since_1970(request.began)
        ended_ns = began_ns + round(seconds * 1e9)
        span = span or self._begin(request, began_ns)
        if span is None:
            return
        if request.stages_ms:
            at = began_ns
            for name, milliseconds in request.stages_ms.items():
                stage, at = span.child(name, at), at + round(milliseconds * 1e6)
                compiled = name == "kernel" and request.compile_ms
                stage.end(at, {"warpcall.compile_ms": request.compile_ms} if compiled else None)
            computed_ns = began_ns + round((request.computed - request.began) * 1e9)
            if at < computed_ns:
                span.child("reply", at).end(computed_ns)
            span.child("response", computed_ns).end(ended_ns)
        span.rename(f"{_method(request)} {request.route}".rstrip())
        failed = request.status >= SERVER_ERRORS
        span.end(ended_ns, self._attributes(request), request.outcome if failed else "")

    def _begin(self, request: Answered, began_ns: int) -> OpenSpan | None:
        return self._tracer.begin(
            _method(request),
            began_ns,
            serves=True,
            traceparent=request.traceparent.decode(),
            tracestate=request.tracestate.decode("latin-1"),
        )

    def _attributes(self, request: Answered) -> Attributes:
        """Facts about a request, by the semantic conventions for HTTP where these have a name."""
        scope, client = request.scope, request.scope["client"]
        found: dict[str, str | int | float | bool] = {
            "http.request.method": scope["method"] if scope["method"] in METHODS else "_OTHER",
            "url.path": without_token(scope["path"], self._link_folders),
            "url.scheme": scope["scheme"],
            "http.request.body.size": request.received,
            "http.response.body.size": request.sent,
            "http.response.status_code": request.status,
            "warpcall.request_id": request.request_id,
        }
        if request.route:
            found["http.route"] = request.route
        if client:
            found["client.address"] = client[0]
        if request.caller.name:
            found["user.name"] = request.caller.name
        if request.op:
            found["warpcall.op"] = request.op
        if request.outcome != "ok":
            found["error.type"] = request.outcome
        return found


def _method(request: Answered) -> str:
    """The method of a request, or HTTP, so that there are few names of spans."""
    method: str = request.scope["method"]
    return method if method in METHODS else "HTTP"


def _since_1970(moment: float) -> int:
    """The nanoseconds since 1970 at a time of time.monotonic()."""
    return time.time_ns() - round((time.monotonic() - moment) * 1e9)
