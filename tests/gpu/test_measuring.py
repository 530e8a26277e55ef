"""What the sampler says on a GPU: verdicts, agreement with another clock, and what it refuses.

With its figures, on the machine's own Python:
`PYTHONPATH=client:kernels:service python3 -m pytest tests/gpu/test_measuring.py --device cuda -s`
"""

from __future__ import annotations

import contextlib
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
import triton.testing
from torch import Tensor

from tests.gpu.cached_memory import CACHED_BYTES, given_back
from tests.kernels.measuring import wrong_implementations
from warpcall_kernels import Op, execution, measuring
from warpcall_kernels.execution.check import draw
from warpcall_kernels.execution.clock import clock
from warpcall_kernels.execution.inputs import Sets
from warpcall_kernels.measuring import (
    PRECISIONS,
    CaseResult,
    Implementation,
    JobCase,
    make_case,
    measure,
)
from warpcall_kernels.op.declaration import ParamValue

pytestmark = pytest.mark.filterwarnings("default")  # torch advises while it compiles

ALL = ["warpcall", "torch", "torch.compile", "copy"]
AGREE = 0.03
FROM_US = 50
REPEATS, SAMPLES = 5, 50  # of both clocks, and of ours in each
PERMUTE = {"shape": [8192, 8192], "dtype": "BF16", "params": {"dims": [1, 0]}}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "permute 8192": ("permute", PERMUTE),
    "permute, some 75 us": ("permute", {**PERMUTE, "shape": [8192, 9216]}),
    "permute, some 55 us": ("permute", {**PERMUTE, "shape": [8192, 6400]}),
    "permute, short": ("permute", {**PERMUTE, "shape": [2048, 4096]}),
    "transpose-add": ("transpose-add", {"shape": [24300, 11520], "dtype": "BF16"}),
    "transpose-add, short": ("transpose-add", {"shape": [512, 512], "dtype": "BF16"}),
    "masked-softmax": (
        "masked-softmax",
        {"shape": [32, 16, 512, 512], "dtype": "BF16", "sizes": {"mask": "key"}},
    ),
    "conv": ("conv", {"shape": [4, 1024, 8192], "dtype": "BF16", "sizes": {"heads": 16}}),
    "isin": ("isin", {"shape": [1 << 26], "dtype": "I32", "sizes": {"test_elements": 64}}),
}


def _show(result: CaseResult) -> None:
    lines = [f"\n{result.key}: {result.rounds} rounds, {len(result.masked)} masked"]
    lines.append(
        f"converged {result.converged}, margin {result.margin:.4f}, {result.seconds:.1f} s"
    )
    lines.append(f"{result.tags} A/A {result.a_a}")
    for one in result.implementations:
        lines.append(f"  {one.name:14}{one.status:13}{one.error or ''}")
        if one.median_us is not None:
            lines[-1] += (
                f"{one.median_us:10.2f} us [{one.ci_low_us:.2f}, {one.ci_high_us:.2f}] p5 {one.p5_us:.2f} "
                f"p95 {one.p95_us:.2f} {one.gb_per_s or 0:6.0f} GB/s, share {one.share_of_limit or 0:.3f}, {one.method}, "
                f"n {one.n}, hot {one.hot_us}, host {one.host_us or 0:.1f}, mJ {one.energy_mj}, {one.tags} {one.relative}"
            )
    sys.stdout.write("\n".join(lines) + "\n")


@pytest.fixture(scope="module", params=CASES)
def measured(request: pytest.FixtureRequest, device: str) -> tuple[JobCase, CaseResult]:
    if device != "cuda":  # before conftest.py says so of a test
        pytest.skip("needs --device cuda")
    case = make_case(*CASES[request.param])
    result = measure(case, ALL, "cuda", PRECISIONS["quick"], seed=3)
    _show(result)
    return case, result


def test_all_are_right_and_the_same_code_is_the_same(measured: tuple[JobCase, CaseResult]) -> None:
    result = measured[1]

    assert [
        (measured_one.name, measured_one.status) for measured_one in result.implementations
    ] == [(n, "ok") for n in ALL]
    assert result.a_a is not None
    assert result.a_a.verdict == "same"
    assert result.clock == "cuda events"


def test_times_agree_with_those_of_triton(measured: tuple[JobCase, CaseResult]) -> None:
    """Both clocks time the same call on the same tensors alternately, and the least of each is taken:
    where tensors lie, and what else the machine does, changes a time by more than clocks differ.
    """
    case, result = measured
    ours = result.implementations[0]
    assert ours.median_us is not None
    if ours.median_us < FROM_US or ours.method != "events":
        pytest.skip("do_bench reads the launch of a short call, too")
    device = torch.device("cuda")
    inputs = draw(case.inputs, 3, device)
    watch = clock(device)
    timed = watch.ready(
        lambda inputs: case.op.function(**inputs, **case.params), Sets(lambda: inputs)
    )
    watch.estimate(timed)
    pairs = [
        (
            statistics.median(watch.block([(timed, 0)])[0] for _ in range(SAMPLES)),
            1000
            * triton.testing.do_bench(lambda: timed.call(inputs), rep=100, return_mode="median"),
        )
        for _ in range(REPEATS)
    ]
    ours_us, theirs_us = (min(times) for times in zip(*pairs, strict=True))

    sys.stdout.write(f"\n{case.key}: {ours_us:.2f} us, do_bench {theirs_us:.2f}\n")
    assert ours_us == pytest.approx(theirs_us, rel=AGREE)


def test_what_differs_is_distinguished(measured: tuple[JobCase, CaseResult]) -> None:
    for measured_one in measured[1].implementations[1:]:
        assert measured_one.relative is not None
        if abs(measured_one.relative.ratio - 1) > 0.05:
            expected = "slower" if measured_one.relative.ratio > 1 else "faster"
            assert measured_one.relative.verdict == expected


def test_the_same_code_under_two_names_is_the_same() -> None:
    measuring.load(wrong_implementations.__name__)

    result = measure(make_case("permute", PERMUTE), ["torch", "right"], "cuda", PRECISIONS["quick"])

    _show(result)
    relative = result.implementations[1].relative
    assert relative is not None
    assert relative.verdict == "same"
    assert result.converged


def test_a_standard_measurement_reports_more() -> None:
    held: list[float] = []

    @contextlib.contextmanager
    def lease() -> Iterator[None]:
        begin = time.monotonic()
        yield
        held.append(time.monotonic() - begin)

    result = measure(
        make_case("permute", PERMUTE), ALL, "cuda", PRECISIONS["standard"], lease=lease
    )

    _show(result)
    sys.stdout.write(f"leases {len(held)}, the longest {1000 * max(held):.0f} ms\n")
    sys.stdout.write(json.dumps(measuring.fingerprint("cuda"), indent=1) + "\n")
    ours = result.implementations[0]
    assert ours.hot_us is not None
    assert ours.host_us is not None
    assert ours.peak_bytes is not None
    assert ours.peak_bytes >= result.output_bytes


def _beside(op: Op, params: Mapping[str, ParamValue]) -> Any:
    """Computes on another stream that nobody waits for, so that events on this one see nothing of
    it.
    """
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def compute(**inputs: Tensor) -> Any:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            return op.function(**inputs, **params)

    return compute


def test_work_on_a_stream_that_nobody_waits_for_is_not_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hidden = Implementation("hidden", "on another stream", _beside)
    monkeypatch.setitem(execution.implementations._known, "hidden", hidden)

    result = measure(
        make_case("permute", PERMUTE), ["torch", "hidden"], "cuda", PRECISIONS["quick"]
    )

    _show(result)
    torch_alone, hidden_one = (one.status for one in result.implementations)
    assert torch_alone == "ok"
    # The check reads the output before it is there, or the time is one that no copy has.
    assert hidden_one in {"wrong_result", "invalid"}


def _waiting(op: Op, params: Mapping[str, ParamValue]) -> Any:
    """Reads a value back, which no graph captures."""

    def compute(**inputs: Tensor) -> Any:
        inputs["x"].view(-1)[0].item()
        return op.function(**inputs, **params)

    return compute


@pytest.fixture
def _captures_are_always_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of calls that take long because other processes use the GPU."""
    monkeypatch.setattr(execution.clock.CudaClock, "short_us", math.inf)


@pytest.mark.usefixtures("_captures_are_always_tried")
def test_the_limit_is_there_after_calls_that_could_not_be_captured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for one in (
        Implementation("waiting", "for the device", _waiting),
        Implementation("random", "for which captures are tried, too", _random),
    ):
        monkeypatch.setitem(execution.implementations._known, one.name, one)
    case = make_case("permute", {**PERMUTE, "shape": [512, 512]})

    results = [measure(case, ["waiting", "random"], "cuda", PRECISIONS["quick"]) for _ in range(2)]

    for result in results:
        assert "not captured" in result.implementations[0].tags
        assert result.limit is not None
        assert result.limit.median_us is not None, result.limit.error


def _random(op: Op, params: Mapping[str, ParamValue]) -> Any:
    """Draws random numbers on the device, as a dropout does."""

    def compute(**inputs: Tensor) -> Any:
        torch.rand(8, device=inputs["x"].device)
        return op.function(**inputs, **params)

    return compute


@pytest.mark.usefixtures("_captures_are_always_tried")
def test_random_numbers_can_be_drawn_after_a_call_that_could_not_be_captured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for one in (
        Implementation("waiting", "for the device", _waiting),
        Implementation("random", "as a dropout", _random),
    ):
        monkeypatch.setitem(execution.implementations._known, one.name, one)
    case = make_case("permute", {**PERMUTE, "shape": [512, 512]})

    result = measure(case, ["waiting", "random"], "cuda", PRECISIONS["quick"])

    waiting, random = result.implementations
    assert "not captured" in waiting.tags
    assert (random.status, random.error) == ("ok", None)
    torch.rand(1, device="cuda")


@pytest.mark.usefixtures("_captures_are_always_tried")
def test_memory_is_given_back_after_a_call_that_could_not_be_captured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waiting = Implementation("waiting", "for the device", _waiting)
    monkeypatch.setitem(execution.implementations._known, waiting.name, waiting)
    case = make_case("permute", {**PERMUTE, "shape": [512, 512]})
    result = measure(case, ["waiting"], "cuda", PRECISIONS["quick"])
    assert "not captured" in result.implementations[0].tags

    assert given_back() >= CACHED_BYTES


def test_an_error_that_sticks_ends_the_measurement_and_is_reported() -> None:
    program = """
import json, torch
from warpcall_kernels import execution, measuring
def broken(op, params):
    def call(x):
        torch._assert_async(torch.zeros(1, device=x.device))
        return x.permute(params["dims"]).contiguous()
    return call
measuring.register(measuring.Implementation("broken", "asserts on the device", broken))
case = measuring.make_case("permute", {"shape": [64, 64], "dtype": "F32", "params": {"dims": [1, 0]}})
result = measuring.measure(case, ["torch", "broken", "warpcall"], "cuda", measuring.PRECISIONS["quick"])
print(json.dumps([result.device_lost, [i.status for i in result.implementations]]))
"""

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )

    lines = json.loads(done.stdout.splitlines()[-1]) if done.stdout else done.stderr
    assert lines == [True, ["cuda_error", "cuda_error", "cuda_error"]]
