"""Counts and durations of inference requests, by model."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from warpcall_service.oip.models import VERSION

# Our stages by the names that the protocol has for them.
_STAGES = {
    "queue": "queue",
    "compute_input": "h2d",
    "compute_infer": "kernel",
    "compute_output": "d2h",
}


@dataclass(slots=True)
class _Duration:
    count: int = 0
    ns: int = 0

    def add(self, milliseconds: float) -> None:
        self.count += 1
        self.ns += round(milliseconds * 1e6)


@dataclass(slots=True)
class _ModelStatistics:
    last_ms: int = 0  # end of the last successful inference, in milliseconds since 1970
    durations: defaultdict[str, _Duration] = field(default_factory=lambda: defaultdict(_Duration))


class Statistics:
    """The statistics of all models since the server started."""

    def __init__(self) -> None:
        self._models: defaultdict[str, _ModelStatistics] = defaultdict(_ModelStatistics)

    def record(self, model: str, seconds: float, stages_ms: Mapping[str, float] | None) -> None:
        """Count a request that has ended.

        Args:
            stages_ms: as `Exchange.stages_ms`; None if the request failed, or its client left.
        """
        counts = self._models[model]
        counts.durations["fail" if stages_ms is None else "success"].add(seconds * 1e3)
        if stages_ms is not None:
            counts.last_ms = time.time_ns() // 1_000_000
            for name, stage in _STAGES.items():
                counts.durations[name].add(stages_ms[stage])

    def of(self, model: str) -> dict[str, Any]:
        """The response to GET /v2/models/{model}/stats."""
        counts = self._models[model]
        names = ("success", "fail", *_STAGES, "cache_hit", "cache_miss")
        count = counts.durations["success"].count
        return {
            "name": model,
            "version": VERSION,
            "last_inference": counts.last_ms,
            "inference_count": count,
            "execution_count": count,
            "inference_stats": {
                name: {"count": counts.durations[name].count, "ns": counts.durations[name].ns}
                for name in names
            },
            "batch_stats": [],
        }
