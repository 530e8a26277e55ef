"""The table of top kernels of a trace: of a GPU by duration, of a CPU by each operator's own time."""

from __future__ import annotations

import json
from typing import Any

from warpcall_bench.profilers.top_kernels import MOST, NAME_CHARS, table_of


def span(name: str, cat: str, ts: float, dur: float, tid: object = 7) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": cat, "pid": 1, "tid": tid, "ts": ts, "dur": dur}


def table(*events: dict[str, Any], on_gpu: bool = True) -> dict[str, Any]:
    trace = json.dumps({"traceEvents": events}).encode()
    found: dict[str, Any] = json.loads(table_of(trace, "ann/mine", on_gpu=on_gpu))
    return found


CALLS = [
    span(f"call {number} of ann/mine", cat, 100.0 * number, 90.0)
    for number in range(3)
    for cat in ("user_annotation", "gpu_user_annotation")
]


def test_kernels_are_summed_by_name_the_one_with_the_most_time_first() -> None:
    found = table(
        *CALLS,
        span("_softmax", "kernel", 10.0, 30.0),
        span("fill", "gpu_memset", 40.0, 20.0),
        span("_softmax", "kernel", 110.0, 50.0),
        span("aten::softmax", "cpu_op", 0.0, 1000.0),
        span("cudaLaunchKernel", "cuda_runtime", 0.0, 1000.0),
        {"ph": "M", "name": "process_name", "pid": 1, "args": {}},
    )

    assert (found["what"], found["calls"], found["total_us"]) == ("kernels", 3, 100.0)
    assert found["kernels"] == [
        {"name": "_softmax", "launches": 2, "total_us": 80.0, "mean_us": 40.0, "share": 0.8},
        {"name": "fill", "launches": 1, "total_us": 20.0, "mean_us": 20.0, "share": 0.2},
    ]
    assert found["others"] == 0


def test_an_operator_has_its_time_without_those_that_it_calls() -> None:
    found = table(
        span("aten::contiguous", "cpu_op", 0.0, 100.0),
        span("aten::clone", "cpu_op", 10.0, 80.0),
        span("aten::empty", "cpu_op", 20.0, 5.0),
        span("aten::copy_", "cpu_op", 30.0, 50.0),
        span("aten::empty", "cpu_op", 200.0, 15.0),
        span("aten::copy_", "cpu_op", 30.0, 60.0, tid="other"),
        on_gpu=False,
    )

    assert found["what"] == "operators"
    assert {one["name"]: one["total_us"] for one in found["kernels"]} == {
        "aten::contiguous": 20.0, "aten::clone": 25.0, "aten::empty": 20.0, "aten::copy_": 110.0,
    }  # fmt: skip
    assert found["total_us"] == 175.0
    assert found["kernels"][0]["name"] == "aten::copy_"


def test_a_table_is_bounded() -> None:
    found = table(*(span(f"{n}" * 300, "kernel", n, 1.0 + n) for n in range(MOST + 5)))

    assert (len(found["kernels"]), found["others"]) == (MOST, 5)
    assert {len(one["name"]) for one in found["kernels"]} == {NAME_CHARS}
    assert len(json.dumps(found)) < 16 << 10


def test_a_trace_without_kernels_and_with_odd_events_has_an_empty_table() -> None:
    odd = [{"ph": "X", "name": 1, "cat": "kernel", "ts": 0, "dur": 1}]
    odd += [{"ph": "X", "name": "k", "cat": "kernel", "ts": 0, "dur": float("inf")}]
    odd += [{"ph": "X", "name": "k", "cat": "kernel", "ts": "0", "dur": 1}]

    found = table(*odd)

    assert (found["kernels"], found["total_us"], found["others"], found["calls"]) == ([], 0.0, 0, 0)
