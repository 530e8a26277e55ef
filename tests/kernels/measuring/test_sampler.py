"""Measuring a case: what is right gets times that add up, what is wrong gets none."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import triton

from tests.kernels.measuring.brief import BRIEF, SPEC
from warpcall_kernels import InvalidInput, execution, measuring, ops
from warpcall_kernels.measuring import (
    PRECISIONS,
    CaseResult,
    Implementation,
    class_of,
    count,
    expand,
    implementations,
    make_case,
    measure,
)
from warpcall_kernels.measuring._candidates import too_fast

WRONG = "tests.kernels.measuring.wrong_implementations"
SHORT_SPECS: dict[str, dict[str, Any]] = {
    "permute": SPEC,
    "transpose-add": {"shape": [3, 8, 16], "dtype": "bf16"},
    "masked-softmax": {"shape": [2, 4, 8], "dtype": "fp16", "sizes": {"mask": "key", "lengths": "rows"}},
    "conv": {"shape": [2, 16, 32], "dtype": "F64", "sizes": {"heads": 4, "taps": 3, "bias": "yes"}},
    "conv-backward": {"shape": [2, 16, 32], "dtype": "F32", "sizes": {"taps": 3}},
    "isin": {"shape": [100], "dtype": "I32", "sizes": {"test_elements": 9, "values": "integers"}},
}  # fmt: skip


@pytest.fixture(scope="module")
def result(device: str) -> CaseResult:
    """Torch against itself, under another name."""
    measuring.load(WRONG)
    return measure(make_case("permute", SPEC), ["torch", "right"], device, BRIEF, seed=7)


def test_times_add_up(result: CaseResult) -> None:
    torch, right = result.implementations

    for measured_one in (torch, right):
        assert measured_one.status == "ok"
        assert measured_one.error is None
        times = (
            measured_one.min_us,
            measured_one.p5_us,
            measured_one.p25_us,
            measured_one.median_us,
            measured_one.p75_us,
            measured_one.p95_us,
        )
        assert all(us is not None for us in times)
        assert list(times) == sorted(times, key=lambda us: us or 0)
        low_us, median_us, high_us = (
            measured_one.ci_low_us,
            measured_one.median_us,
            measured_one.ci_high_us,
        )
        assert low_us is not None
        assert median_us is not None
        assert high_us is not None
        assert low_us <= median_us <= high_us
        assert measured_one.n == len(measured_one.samples_us) == result.rounds == 12
        assert measured_one.gb_per_s == pytest.approx(result.bytes_moved / median_us / 1000)
    assert result.bytes_moved == 2 * 64 * 96 * 4
    assert torch.relative is None
    assert right.relative
    assert right.relative.n == 12
    assert right.relative.ratio == pytest.approx(1, rel=0.9)
    assert result.a_a
    assert result.a_a.n == 2  # of three twins: as many with one set of inputs as with the other
    assert result.limit
    assert result.limit.share_of_limit == 1
    assert result.limit.name == "copy"
    assert (result.clock, result.column) == (
        "perf_counter" if result.device == "cpu" else "cuda events",
        "device_cold",
    )


def test_a_result_crosses_json(result: CaseResult) -> None:
    text = json.dumps(result.to_json(), allow_nan=False)

    assert CaseResult.from_json(json.loads(text)) == result


@pytest.fixture(scope="module")
def judged(device: str) -> CaseResult:
    """Torch, and beside it all that is wrong."""
    measuring.load(WRONG)
    names = [i.name for i in importlib.import_module(WRONG).IMPLEMENTATIONS if i.name != "right"]
    return measure(make_case("permute", SPEC), ["torch", *names], device, BRIEF)


@pytest.mark.parametrize(
    ("name", "status", "says"),
    [
        ("one element off", "wrong_result", "out differs from the reference in 1 of 6144 elements, first at 6143"),
        ("writes nothing", "wrong_result", "out differs from the reference"),
        ("writes to its input", "wrong_result", "the call wrote to x, or next to it"),
        ("writes next to its input", "wrong_result", "the call wrote to x, or next to it"),
        ("remembers", "wrong_result", "it shares some with the result of an earlier call"),
        ("of another dtype", "wrong_result", "out must be float32 of shape (96, 64)"),
        ("of another shape", "wrong_result", "got float32 of shape (64, 96)"),
        ("one output too many", "wrong_result", "there must be 1 outputs, got 2"),
        ("no tensor", "wrong_result", "out must be a torch.Tensor, got int"),
        ("raises", "error", "ValueError: no such path"),
        ("takes too much", "oom", "Error: "),
        ("does not compile", "compile_error", "Unsupported: a graph break"),
        ("never built", "error", "RuntimeError: not for these parameters"),
    ],
)  # fmt: skip
def test_a_wrong_implementation_gets_no_time(
    name: str, status: str, says: str, judged: CaseResult
) -> None:
    (measured_one,) = (
        measured_one for measured_one in judged.implementations if measured_one.name == name
    )

    assert measured_one.status == status
    assert says in str(measured_one.error)
    assert "\n" not in str(measured_one.error)
    assert (
        measured_one.median_us,
        measured_one.n,
        measured_one.samples_us,
        measured_one.relative,
    ) == (None, 0, (), None)


def test_what_is_wrong_takes_nothing_from_what_is_right(judged: CaseResult) -> None:
    right, *wrong = judged.implementations

    assert right.status == "ok"
    assert right.n == 12
    assert len(wrong) == 13
    assert not judged.device_lost


def test_without_a_right_one_there_is_still_a_limit(device: str) -> None:
    measuring.load(WRONG)

    result = measure(make_case("permute", SPEC), ["raises", "copy"], device, BRIEF)

    assert [measured_one.status for measured_one in result.implementations] == [
        "error",
        "ok",
    ]
    assert result.limit == result.implementations[1]
    assert result.limit.median_us
    assert result.limit.relative is None


def test_every_timed_call_is_under_the_lease_and_no_other_is(device: str) -> None:
    """As many as there are samples, and those that get it ready and warm."""
    held: list[bool] = []
    calls: list[bool] = []

    @contextlib.contextmanager
    def lease() -> Iterator[None]:
        held.append(True)
        yield
        held.pop()

    def note(x: Any) -> Any:
        calls.append(bool(held))
        return x.permute(1, 0).contiguous()

    one = Implementation("watched", "tells when it runs", lambda op, params: note)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(execution.implementations._known, one.name, one)
        patch.setattr(measuring._measure, "REPORT_EVERY_S", 0.0)
        patch.setattr(measuring._measure, "ROUNDS_AT_ONCE", 4)  # a GPU would do all 12
        events: list[dict[str, Any]] = []
        side = 600 if device == "cpu" else 8192  # not short: a graph would call nobody
        result = measure(
            make_case("permute", {**SPEC, "shape": [side, side]}),
            ["watched"],
            device,
            dataclasses.replace(BRIEF, extras=True),
            lease=lease,
            progress=events.append,
        )

    assert (calls[:2], calls[-1]) == ([False, False], True)  # the first two are the checks
    assert sum(calls) >= result.rounds + result.rounds // 4
    phases = " ".join(dict.fromkeys(event["phase"] for event in events))
    assert phases == "preparing correctness warmup rounds extras"
    sent = json.loads(json.dumps(events))
    found = [[*event["medians_us"]] for event in sent if event["phase"] == "rounds"]
    assert found[0] == [] != found[-1] == ["watched", "copy"]


@pytest.mark.parametrize("callback", ["lease", "progress"])
def test_what_a_callback_raises_is_the_callers(callback: str, device: str) -> None:
    def gone(*event: Any) -> Any:
        raise ConnectionError("the server is gone")

    callbacks: dict[str, Any] = {callback: gone}
    with pytest.raises(ConnectionError, match="the server is gone"):
        measure(make_case("permute", SPEC), ["torch"], device, BRIEF, **callbacks)


@pytest.mark.parametrize("op", ops())
def test_an_op_derives_its_inputs_from_a_short_spec(op: str, device: str) -> None:
    case = make_case(op, SHORT_SPECS.get(op, {"shape": [4, 8], "dtype": "F32"}))

    again = make_case(op, case.spec)
    result = measure(case, ["torch"], device, BRIEF)

    assert json.loads(json.dumps(case.spec)) == case.spec
    assert (again, again.key) == (case, case.key)
    assert case.key.startswith(f"{op} ")
    assert case.device_bytes > sum(m.nbytes for m in (*case.metas.values(), *case.outputs.values()))
    assert [measured_one.status for measured_one in result.implementations] == ["ok"], (
        result.implementations
    )


def test_a_case_may_lie_in_memory_as_one_likes(device: str) -> None:
    spec = {
        "inputs": {"x": {"shape": [30, 8], "dtype": "BF16", "layout": "strided"}},
        "params": {"dims": [-1, 0]},
    }

    case = make_case("permute", spec)

    assert case.key == "permute x=BF16[30,8]:strided dims=-1,0"
    measured_one = measure(case, ["torch"], device, BRIEF).implementations[0]
    assert measured_one.status == "ok", measured_one.error


@pytest.mark.parametrize(
    ("op", "spec", "argument", "says"),
    [
        ("permit", SPEC, "op", "op must be one of conv, conv-backward, "),
        ("permute", [], "case", "case must be an object, got []"),
        ("permute", {**SPEC, "shapes": []}, "shapes", "case has no 'shapes', it takes shape, dtype"),
        ("permute", {**SPEC, "shape": [64, -1]}, "shape", "shape must be a list of at most 64 integers"),
        ("permute", {**SPEC, "shape": [True, 1]}, "shape", "got [True, 1]"),
        ("permute", {**SPEC, "shape": [1] * 65}, "shape", "shape must be a list of at most 64"),
        ("permute", {**SPEC, "shape": None}, "shape", "got None"),
        ("permute", {**SPEC, "dtype": "F31"}, "dtype", "dtype must be one of float64, float32"),
        ("permute", {**SPEC, "params": {}}, "dims", "permute needs the parameter dims"),
        ("permute", {**SPEC, "params": {"dims": [0, 0]}}, "dims", "dims must"),
        ("permute", {**SPEC, "sizes": {"taps": 3}}, "sizes.taps", "permute has no size 'taps', it has none"),
        ("permute", {**SPEC, "shape": [0, 4]}, "shape", "gives nothing: there is no time to measure"),
        ("conv", {"shape": [2, 8, 8], "dtype": "F32", "sizes": {"taps": 0}}, "sizes.taps", "between 1 and"),
        ("conv", {"shape": [2, 8, 8], "dtype": "F32", "sizes": {"bias": 1}}, "sizes.bias", "one of no, yes, got 1"),
        ("conv", {"shape": [2, 8], "dtype": "F32"}, "x", "x must have 3 dims"),
        ("masked-softmax", {"shape": [], "dtype": "F32", "sizes": {"mask": "key"}}, "x", "at least 1 dim"),
        ("transpose-add", {"shape": [4], "dtype": "F32"}, "a", "a must have 2 to 64 dims"),
        ("isin", {"shape": [4], "dtype": "C64"}, "elements", "elements must be one of"),
        ("permute", {"inputs": {"y": {"shape": [4], "dtype": "F32"}}, "params": {"dims": [0]}}, "y", "no input 'y'"),
        ("permute", {"inputs": {"x": {"shape": [4]}}, "params": {"dims": [0]}}, "inputs.x.dtype", "got None"),
        ("permute", {"inputs": {"x": {"shape": [4], "dtype": "F32", "layout": "transposed"}}, "params": {"dims": [0]}},
         "inputs.x.layout", "transposed needs 2 dims"),
        ("permute", {"inputs": {"x": {"shape": [4], "dtype": "F32", "values": "odd"}}, "params": {"dims": [0]}},
         "inputs.x.values", "one of normal, special"),
        ("permute", {"inputs": {"x": {"shape": [4], "dtype": "F32", "low": 5, "high": 5}}, "params": {"dims": [0]}},
         "inputs.x.low", "low below high"),
    ],
)  # fmt: skip
def test_a_bad_spec_is_refused_by_name(op: str, spec: Any, argument: str, says: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        make_case(op, spec)

    assert caught.value.argument == argument
    assert says in str(caught.value)


def test_a_sweep_is_every_combination() -> None:
    sweep = {
        "shapes": [[2, 16, 8], [4, 16, 8]],
        "dtypes": ["BF16", "F32"],
        "params": {"softmax_weight": True},
        "sizes": {"taps": [3, 5, 7]},
    }

    specs = list(expand("conv", sweep))

    assert len(specs) == count("conv", sweep) == 12
    assert specs[0] == {
        "shape": [2, 16, 8],
        "dtype": "BF16",
        "params": {"softmax_weight": True},
        "sizes": {"taps": 3},
    }
    assert len({make_case("conv", spec).key for spec in specs}) == 12


def test_a_huge_sweep_is_counted_without_making_it() -> None:
    sweep = {
        "shapes": [[1, 1]] * 1000,
        "dtypes": ["F32"] * 1000,
        "params": {"dims": [[1, 0]] * 1000},
    }

    assert count("permute", sweep) == 10**9
    assert next(expand("permute", sweep))["shape"] == [1, 1]


@pytest.mark.parametrize(
    ("sweep", "argument"),
    [
        ({"dtypes": ["F32"]}, "shapes"),
        ({"shapes": [], "dtypes": ["F32"]}, "shapes"),
        ({"shapes": [[1]], "dtypes": "F32"}, "dtypes"),
        ({"shapes": [[1]], "dtypes": ["F32"], "params": {"dim": [0]}}, "params.dim"),
        ({"shapes": [[1]], "dtypes": ["F32"], "params": {"dims": []}}, "params.dims"),
        ({"shapes": [[1]], "dtypes": ["F32"], "sizes": {"taps": [3]}}, "sizes.taps"),
        ({"shapes": [[1]], "dtypes": ["F32"], "size": {}}, "size"),
    ],
)
def test_a_bad_sweep_is_refused_by_name(sweep: Any, argument: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        expand("permute", sweep)

    assert caught.value.argument == argument


@pytest.mark.parametrize("names", [[], ["torch", "torch"], ["torch", "numpy"]])
def test_implementations_are_known_and_differ(names: list[str], device: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        measure(make_case("permute", SPEC), names, device, BRIEF)

    assert caught.value.argument == "implementations"


@pytest.mark.parametrize("device", ["gpu", "meta", "cuda:99"])
def test_a_device_that_is_not_there_is_refused(device: str) -> None:
    with pytest.raises(InvalidInput, match="device must be cpu"):
        measure(make_case("permute", SPEC), ["torch"], device, BRIEF)


def test_more_can_be_registered_for_some_ops() -> None:
    measuring.load(WRONG)
    measuring.load(WRONG)  # once more changes nothing

    assert implementations("permute")[:3] == ("warpcall", "torch", "torch.compile")
    assert implementations("permute")[-1] == "copy"
    assert "right" in implementations("permute")
    assert "right" not in implementations("conv")
    with pytest.raises(InvalidInput, match="there is an implementation torch already"):
        measuring.register(Implementation("torch", "", lambda op, params: lambda: None))


def test_presets_ask_for_more_and_more() -> None:
    seconds = [PRECISIONS[name].seconds for name in ("quick", "standard", "publish")]

    assert seconds == [2, 10, 60]
    assert all(p.half_width == 0.005 for p in PRECISIONS.values())
    fewest = {name: (p.min_rounds, p.min_seconds) for name, p in PRECISIONS.items()}
    assert fewest.pop("quick") == (60, 0), "its 500 rounds of short calls would not fill 0.5 s"
    assert {*fewest.values()} == {(30, 0.5)}


def test_what_is_faster_than_the_memory_is_impossible() -> None:
    assert too_fast(4_800_000_000, 1000.0, 4800.0) is None
    assert "5000 GB/s is more than the memory's 4800" in str(too_fast(5_000_000_000, 1e3, 4800.0))
    assert too_fast(5_000_000_000, 1.0, None) is None


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "cuda_error"),
        (RuntimeError("Triton Error [CUDA]: an illegal memory access"), "cuda_error"),
        (RuntimeError("CUDA error: out of memory"), "oom"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] can't allocate memory"), "oom"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB"), "oom"),
        (MemoryError(), "oom"),
        (triton.runtime.errors.OutOfResources(300_000, 232_448, "shared memory"), "compile_error"),
        (ValueError("it is wrong"), "error"),
    ],
)
def test_failures_are_distinguished(error: Exception, found: str) -> None:
    assert class_of(error) == found


def test_a_failure_of_torch_compile_is_one_of_a_compiler() -> None:
    # Not a parameter above: each process that collects the tests would import torch's compiler.
    assert class_of(torch._dynamo.exc.TorchDynamoException("no such thing")) == "compile_error"
