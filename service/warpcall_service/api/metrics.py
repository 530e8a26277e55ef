"""The metrics of GET /metrics: requests, latency by stage, bytes moved, state of lanes and jobs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from warpcall_service import logs
from warpcall_service.http.exchange import Exchange
from warpcall_service.lanes.engine import LocalEngine

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
    """Counts requests, and collects the state of the server. Each application has one."""

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


def lane_metrics(engine: LocalEngine) -> Iterable[Metric]:
    """The current state of every lane, as Prometheus metrics."""
    gauges = {
        "ready": "1 if the lane can take calls now, else 0",
        "queued": "Calls that wait in the lane's queue",
        "in_flight": "Calls that were sent to the lane's worker and are not answered yet",
        "plan_requests": "Plans and checks of jobs that the lane's worker has not answered yet",
        "arena_used": "Bytes of the lane's arena that are allocated to calls",
        "arena_free": "Bytes of the lane's arena that are free",
        "arena_waiting": "Requests that wait for memory in the lane's arena",
    }
    families = {
        name: GaugeMetricFamily(f"warpcall_lane_{name}", text, labels=["lane"])
        for name, text in gauges.items()
    }
    restarts = CounterMetricFamily(
        "warpcall_lane_restarts",
        "Worker processes that died or were killed, and were replaced, by lane",
        labels=["lane"],
    )
    for lane in engine.status():
        restarts.add_metric([lane.name], lane.restarts)
        for name, family in families.items():
            value = lane.state == "ready" if name == "ready" else getattr(lane, name)
            family.add_metric([lane.name], float(value))
    return [*families.values(), restarts]


def log_metric() -> Metric:
    """How many lines of the log could not be written."""
    family = CounterMetricFamily(
        "warpcall_log_lines_dropped",
        "Lines of the log that were dropped because it was not read, or its disk was full",
    )
    family.add_metric([], logs.dropped())
    return family
