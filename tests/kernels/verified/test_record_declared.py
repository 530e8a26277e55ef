"""Launches that a declaration names become a launch plan, without calling the author's function."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.kernels.verified.recording import HEAD, Recording, empty, meta
from warpcall_kernels.execution.process import RemoteFailed
from warpcall_kernels.verified.plan import Buffer, Fill, Launch, Place

pytestmark = pytest.mark.timeout(300)

SOURCE = (
    HEAD
    + """
@triton.autotune([triton.Config({"BLOCK": 32})], key=[])
@triton.heuristics({"EVEN": lambda a: a["columns"] % a["BLOCK"] == 0})
@triton.jit
def parts(x, partial, columns, stride, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + tl.program_id(0) * stride + i, mask=i < columns, other=0)
    tl.store(partial + tl.program_id(0) * tl.num_programs(1) + tl.program_id(1), tl.sum(v))

@triton.jit
def total(partial, out, bias, count, scale, P: tl.constexpr, T: tl.constexpr, EVICT: tl.constexpr = ""):
    i = tl.arange(0, P)
    v = tl.load(partial + tl.program_id(0) * count + i, mask=i < count, other=0)
    v = tl.sum(v.to(T)) * scale
    if bias is not None:
        v += tl.load(bias)
    tl.store(out + tl.program_id(0), v)

def f(x, bias=None, scale=1.0):
    raise AssertionError("it must not be called")
"""
)
DECLARATION: dict[str, Any] = {
    "sizes": {"rows": "x.shape[0]", "columns": "x.shape[1]", "blocks": "cdiv(columns, BLOCK)"},
    "scratch": {"partial": {"dtype": "F32", "shape": ["rows", "blocks"], "fill": 0}},
    "configurations": [{"BLOCK": 64, "num_warps": 2}, {"BLOCK": 128, "num_warps": 4}],
    "launches": [
        {
            "kernel": "parts",
            "grid": ["rows", "blocks"],
            "arguments": {
                "x": "x",
                "partial": "partial",
                "columns": "columns",
                "stride": "x.stride[0]",
                "BLOCK": "BLOCK",
            },
        },
        {
            "kernel": "total",
            "grid": ["rows"],
            "arguments": {
                "partial": "partial",
                "out": "out0",
                "bias": "bias",
                "count": "blocks",
                "scale": "scale",
                "P": "next_power_of_2(blocks)",
                "T": "x.dtype",
            },
            "num_warps": 1,
        },
    ],
}


@pytest.fixture(scope="module")
def recording() -> Iterator[Recording]:
    """One process for all tests."""
    process = Recording()
    yield process
    process.end()


def test_each_configuration_is_a_choice_with_all_launches(recording: Recording) -> None:
    recording.load(SOURCE, "f", declaration=DECLARATION)
    x = torch.empty_strided((5, 300), (320, 1), device="meta")

    plan = recording.plan({"x": x}, [meta(5)], {"scale": 0.5})
    with_bias = recording.plan({"x": x, "bias": empty(1)}, [meta(5)], {"scale": 0.5})

    (step,) = plan.steps
    assert [choice.label for choice in step] == ["BLOCK=64, num_warps=2", "BLOCK=128, num_warps=4"]
    assert plan.buffers[1:] == (Buffer("", 20), Buffer("", 100), Buffer("", 60))
    for choice, blocks, scratch, warps in zip(step, (5, 3), (2, 3), (2, 4), strict=True):
        fill, first, second = choice.actions
        assert fill == Fill(Place(scratch, 0), 5 * blocks, 4, 0)
        assert isinstance(first, Launch)
        assert isinstance(second, Launch)
        assert (first.grid, second.grid) == ((5, blocks, 1), (5, 1, 1))
        assert first.arguments[:4] == (Place(0, 0), Place(scratch, 0), 300, 320)
        assert second.arguments[:4] == (Place(scratch, 0), Place(1, 0), blocks, 0.5)
        threads = [plan.kernels[launch.kernel].threads[0] for launch in (first, second)]
        assert threads == [32 * warps, 32]
    assert plan.outputs == (Place(1, 0),)
    last = with_bias.steps[0][0].actions[-1]
    assert isinstance(last, Launch)
    assert last.arguments[2] == Place(1, 0)


def test_the_decorator_of_the_function_may_declare_launches(recording: Recording) -> None:
    recording.load(f"{SOURCE}\nf.__warpcall_launches__ = {DECLARATION}\n", "f")

    plan = recording.plan({"x": empty(5, 300)}, [meta(5)], {"scale": 0.5})

    assert [len(choice.actions) for choice in plan.steps[0]] == [3, 3]


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        ("kernel", "nosuch", r"launches\[1\].kernel: the source has no triton.jit function nosuch"),
        ("kernel", "f", r"launches\[1\].kernel: the source has no triton.jit function f"),
        ("arguments.no", 1, "total has no parameter no, it has partial, out, bias, count, scale"),
        ("arguments.count", ..., r"launches\[1\].arguments lacks count of total"),
        ("arguments.count", "rows + more", r"launches\[1\].arguments.count: .*more is not known"),
        ("grid", ["rows - 6"], r"launches\[1\].grid\[0\]: .*must be an integer from 0 to"),
        ("block", [32], "num_warps is for kernels in Triton"),
        ("num_warps", 3, "num_warps|power of 2"),
    ],
)
def test_a_declaration_that_does_not_fit_is_refused(
    recording: Recording, path: str, value: Any, text: str
) -> None:
    changed = {**DECLARATION["launches"][1]}
    changed["arguments"] = {**changed["arguments"]}
    name, _, rest = path.partition(".")
    at, key = (changed[name], rest) if rest else (changed, name)
    at[key] = value
    if value is ...:
        del at[key]
    launches = [DECLARATION["launches"][0], changed]
    recording.load(SOURCE, "f", declaration={**DECLARATION, "launches": launches})

    with pytest.raises(RemoteFailed, match=text) as raised:
        recording.plan({"x": empty(5, 300)}, [meta(5)], {"scale": 0.5})

    assert raised.value.status == "error"


def test_a_configuration_that_cannot_be_compiled_is_left_out(recording: Recording) -> None:
    configurations = [{"BLOCK": 3, "num_warps": 2}, {"BLOCK": 64, "num_warps": 2}]
    recording.load(SOURCE, "f", declaration={**DECLARATION, "configurations": configurations})

    plan = recording.plan({"x": empty(5, 300)}, [meta(5)], {"scale": 0.5})

    assert [choice.label for choice in plan.steps[0]] == ["BLOCK=64, num_warps=2"]
    assert plan.buffers == (Buffer("x", 6000), Buffer("", 20), Buffer("", 100))
