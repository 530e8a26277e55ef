"""What a job has measured as files of tools that track benchmarks over commits.

They have the times that are a basis for a verdict: no wrong result, and no interpreted kernel. The
copy, which is the limit of the others, is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from warpcall.jobs.outcomes import LIMIT
from warpcall.jobs.results import Measurement, Results, can_conclude

NS_PER_US = 1000  # Bencher's measure "latency" is in nanoseconds


def bencher(found: Results) -> str:
    """Bencher Metric Format: by benchmark the latency with its interval, for the adapter "json".

    Source: https://bencher.dev/docs/reference/bencher-metric-format
    """
    return _text({_name(row): {"latency": _metric(row)} for row, _ in _timed(found)})


def github_action_benchmark(found: Results) -> str:
    """The list that github-action-benchmark takes for the tool "customSmallerIsBetter".

    Source: https://github.com/benchmark-action/github-action-benchmark
    """
    return _text([_entry(row, median) for row, median in _timed(found)])


def _timed(found: Results) -> Iterator[tuple[Measurement, float]]:
    """The rows whose times say something of a kernel, with their medians in microseconds."""
    for row in found.measurements:
        if row.implementation == LIMIT or not can_conclude(row.status, row.tags):
            continue
        if row.median_us is not None:
            yield row, row.median_us


def _name(row: Measurement) -> str:
    return f"{row.case} / {row.implementation}"


def _metric(row: Measurement) -> dict[str, float]:
    times = {"value": row.median_us, "lower_value": row.ci_low_us, "upper_value": row.ci_high_us}
    return {name: us * NS_PER_US for name, us in times.items() if us is not None}


def _entry(row: Measurement, median: float) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": _name(row), "unit": "us", "value": median}
    if row.ci_low_us is not None and row.ci_high_us is not None:
        entry["range"] = f"± {max(median - row.ci_low_us, row.ci_high_us - median):.3g}"
    extra = [] if row.gb_per_s is None else [f"{row.gb_per_s:.0f} GB/s"]
    if row.share_of_limit is not None:
        extra.append(f"{100 * row.share_of_limit:.0f} % of a copy's speed")
    if extra:
        entry["extra"] = ", ".join(extra)
    return entry


def _text(document: Any) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"
