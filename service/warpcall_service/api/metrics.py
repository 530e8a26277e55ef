"""The metrics of GET /metrics: requests, latency by stage, bytes moved, state of lanes and jobs."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from warpcall_service import logs
from warpcall_service.http.access_log import Answered
from warpcall_service.lanes.device_reading import SLOWED
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
    """Counts requests, and collects the state of the server. Each application has one.

    Only the event loop counts, so that the counts are plain numbers. The locks and label lookups of
    prometheus_client's own counters took 15 us of a call.
    """

    def __init__(self, state: Callable[[], Iterable[Metric]]) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._requests: defaultdict[tuple[str, int], int] = defaultdict(int)
        self._stages: defaultdict[str, _Times] = defaultdict(_Times)
        self._received = 0
        self._sent = 0
        self._registry.register(_State(self._counts))
        self._registry.register(_State(state))

    def record_request(self, request: Answered, seconds: float) -> None:
        """Count a request that was answered, and its stages."""
        op = request.op
        self._requests[op, request.status] += 1
        stages = self._stages
        if op:
            stages["total"].add(seconds)
        for name, milliseconds in request.stages_ms.items():
            stages[name].add(milliseconds * 1e-3)
        self._received += request.received
        self._sent += request.sent

    def _counts(self) -> Iterable[Metric]:
        requests = CounterMetricFamily(
            "warpcall_requests",
            "Requests answered, by op (empty for requests that are not calls) and status",
            labels=["op", "status"],
        )
        for (op, status), count in self._requests.items():
            requests.add_metric([op, str(status)], count)
        stages = HistogramMetricFamily(
            "warpcall_stage_seconds",
            "Seconds of calls by stage: upload, queue, h2d, kernel, d2h, total",
            labels=["stage"],
        )
        for stage, times in self._stages.items():
            stages.add_metric([stage], times.buckets(), times.sum_s)
        moved = CounterMetricFamily(
            "warpcall_body_bytes",
            "Bytes of request bodies (in) and response bodies (out)",
            labels=["direction"],
        )
        moved.add_metric(["in"], self._received)
        moved.add_metric(["out"], self._sent)
        return requests, stages, moved

    def text(self) -> bytes:
        """All metrics in the Prometheus text format."""
        return generate_latest(self._registry)


class _Times:
    """A histogram of seconds, with the buckets _BUCKETS_S and one for what is longer."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(_BUCKETS_S) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        """Count one time."""
        self.counts[bisect_left(_BUCKETS_S, seconds)] += 1
        self.sum_s += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Each bucket's upper bound as text, and how many times were not above it."""
        bounds = (*map(float, _BUCKETS_S), math.inf)
        return list(zip(map(floatToGoString, bounds), accumulate(self.counts), strict=True))


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
        "warming": "1 while the lane compiles or loads the kernels of common calls, else 0",
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


def device_metrics(engine: LocalEngine) -> Iterable[Metric]:
    """The last reading of every lane's device, as Prometheus metrics.

    What is not known is absent: the sensors of a CPU, those that a GPU lacks, and all of a device
    that was not read for a minute, such as a GPU without NVML.
    """
    families = {
        name: GaugeMetricFamily(f"warpcall_device_{name}", text, labels=["lane"])
        for name, text in {
            "load_ratio": "Share of the time in which a GPU ran a kernel, or of a machine's cores that worked",
            "memory_used_bytes": "Bytes of the GPU's memory that are in use, or of the machine's",
            "memory_bytes": "Bytes of the GPU's memory, or of the machine's",
            "temperature_celsius": "Temperature of the GPU",
            "power_watts": "Power that the GPU takes",
            "sm_clock_hertz": "Clock of the GPU's multiprocessors",
            "power_capped": "1 if the GPU ran at its power limit in the last minute, else 0",
        }.items()
    }
    throttled = GaugeMetricFamily(
        "warpcall_device_throttled",
        "1 if the GPU ran slower than it could in the last minute, by the last reason, else 0",
        labels=["lane", "reason"],
    )
    for lane in engine.all_lanes:
        reading = lane.activity.last_reading()
        if reading is None:
            continue
        is_gpu = lane.hello["fingerprint"].get("kind") == "cuda"
        clock = reading.sm_clock_mhz
        values = {
            "load_ratio": reading.load,
            "memory_used_bytes": reading.memory_bytes,
            "memory_bytes": reading.memory_total_bytes,
            "temperature_celsius": reading.temperature_c,
            "power_watts": reading.power_w,
            "sm_clock_hertz": None if clock is None else clock * 1e6,
            "power_capped": float(reading.power_capped) if is_gpu else None,
        }
        for name, value in values.items():
            if value is not None:
                families[name].add_metric([lane.name], value)
        for reason in SLOWED.values() if is_gpu else ():
            throttled.add_metric([lane.name, reason], float(reading.throttled == reason))
    return [*families.values(), throttled]


def log_metric() -> Metric:
    """How many lines of the log could not be written."""
    family = CounterMetricFamily(
        "warpcall_log_lines_dropped",
        "Lines of the log that were dropped because it was not read, or its disk was full",
    )
    family.add_metric([], logs.dropped())
    return family
