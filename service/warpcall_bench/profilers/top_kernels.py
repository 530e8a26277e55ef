"""The table of the top kernels of a trace of torch's profiler, which is made beside the trace.

On a GPU these are kernels, copies and fills by their durations; on a CPU, where a trace has no
kernels, operators of torch by the time that they take without those that they call.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from warpcall.artefacts import TopKernel, TopKernels

MOST = 20  # kernels of a table
NAME_CHARS = 200
ON_GPU = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})  # categories of events
ON_CPU = frozenset({"cpu_op"})


def table_of(trace: bytes, implementation: str, *, on_gpu: bool) -> bytes:
    """The table of a trace, as JSON of a `TopKernels`."""
    events = [one for one in json.loads(trace)["traceEvents"] if _is_span(one)]
    spans = _kernels(events) if on_gpu else _operators(events)
    times: dict[str, list[float]] = defaultdict(list)
    for name, took_us in spans:
        times[name].append(took_us)
    total_us = math.fsum(map(math.fsum, times.values()))
    calls = {one["name"] for one in events if one["name"].startswith("call ")}
    rows = [
        TopKernel(
            name=name[:NAME_CHARS],
            launches=len(each),
            total_us=math.fsum(each),
            mean_us=math.fsum(each) / len(each),
            share=min(1.0, math.fsum(each) / total_us) if total_us else 0.0,
        )
        for name, each in times.items()
    ]
    rows.sort(key=lambda row: (-row.total_us, row.name))
    found = TopKernels(
        what="kernels" if on_gpu else "operators",
        calls=sum(one.endswith(f" of {implementation}") for one in calls),
        total_us=total_us,
        kernels=rows[:MOST],
        others=len(rows[MOST:]),
    )
    return json.dumps(asdict(found)).encode()


def _is_span(event: Mapping[str, Any]) -> bool:
    """Whether an event is one that a table may count: with a name, a begin and a duration."""
    numbers = (event.get("ts"), event.get("dur"))
    return (
        event.get("ph") == "X"
        and isinstance(event.get("name"), str)
        and all(isinstance(one, int | float) and math.isfinite(one) for one in numbers)
    )


def _kernels(events: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, float]]:
    return ((one["name"], one["dur"]) for one in events if one.get("cat") in ON_GPU)


def _operators(events: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, float]]:
    """Each operator with its own time: its duration without those of the operators in it."""
    threads: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for one in events:
        if one.get("cat") in ON_CPU:
            threads[str(one.get("pid")), str(one.get("tid"))].append(one)
    for of_thread in threads.values():
        of_thread.sort(key=lambda one: (one["ts"], -one["dur"]))
        open_now: list[tuple[float, int]] = []  # end and index of the operators around
        own = [one["dur"] for one in of_thread]
        for index, one in enumerate(of_thread):
            while open_now and open_now[-1][0] <= one["ts"]:
                open_now.pop()
            if open_now:
                own[open_now[-1][1]] -= one["dur"]
            open_now.append((one["ts"] + one["dur"], index))
        yield from ((one["name"], max(0.0, us)) for one, us in zip(of_thread, own, strict=True))
