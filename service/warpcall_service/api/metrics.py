"""The metrics of GET /metrics: requests, latency by stage, bytes moved, state of lanes and jobs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from warpcall_service.http.exchange import Exchange

# From 0.1 ms, the time of a small call, to 60 s, the default deadline of a call.
_BUCKETS_S = (
    1e-4,
    2.5e-4,
    5e-4,
    1e-3,
    2.5e-3,
    5e-3,
    1e-2,
    2.5e-2,
    5e-2,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    10,
    60,
)


class Metrics:
    """Counts requests and collects the state of the server. Each application has its own registry."""

    def __init__(self, state: Callable[[], Iterable[Metric]]) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        requests = Counter(
            "warpcall_requests",
            "Requests answered, by op (empty for requests that are not calls) and status",
            ["op", "status"],
            registry=self._registry,
        )
        stages = Histogram(
            "warpcall_stage_seconds",
            "Seconds of calls by stage: upload, queue, h2d, kernel, d2h, total",
            ["stage"],
            buckets=_BUCKETS_S,
            registry=self._registry,
        )
        moved = Counter(
            "warpcall_body_bytes",
            "Bytes of request bodies (in) and response bodies (out)",
            ["direction"],
            registry=self._registry,
        )
        self._received = moved.labels("in")
        self._sent = moved.labels("out")
        self._requests = functools.cache(requests.labels)
        self._stage = functools.cache(stages.labels)
        self._registry.register(_State(state))

    def record_request(self, exchange: Exchange, seconds: float) -> None:
        """Count a request that was answered, and its stages."""
        self._requests(exchange.op, str(exchange.status)).inc()
        if exchange.op:
            self._stage("total").observe(seconds)
        for name, milliseconds in exchange.stages_ms.items():
            self._stage(name).observe(milliseconds * 1e-3)
        self._received.inc(exchange.received)
        self._sent.inc(exchange.sent)

    def text(self) -> bytes:
        """All metrics in the Prometheus text format."""
        return generate_latest(self._registry)


class _State(Collector):
    """Reads the state of lanes, tensors and jobs at each scrape."""

    def __init__(self, state: Callable[[], Iterable[Metric]]) -> None:
        self._state = state

    def collect(self) -> Iterable[Metric]:
        return self._state()
