"""Declarations that are proposed hold for all recorded cases, and say what they do not cover."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from tests.kernels.verified.recording import HEAD, ROOT, SOURCES, empty
from warpcall_kernels.execution.inputs import layout_of
from warpcall_kernels.execution.spec import CODES

pytestmark = pytest.mark.timeout(300)
F16 = torch.float16
MATMUL = (SOURCES / "matmul.py").read_text()
Case = tuple[Mapping[str, torch.Tensor], Mapping[str, torch.Tensor], Mapping[str, Any]]

TWO_LAUNCHES = (
    HEAD
    + """
@triton.jit
def parts(x, sums, columns, stride, flag, BLOCK: tl.constexpr, T: tl.constexpr = tl.float32):
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + tl.program_id(0) * stride + i, mask=i < columns, other=0).to(T)
    tl.atomic_add(sums + tl.program_id(0), tl.sum(v))

@triton.jit
def scaled(sums, bias, out, scale, bits, ODD: tl.constexpr):
    v = tl.load(sums + tl.program_id(0)) * scale + bits
    if bias is not None:
        v += tl.load(bias)
    tl.store(out + tl.program_id(0), v)

def f(x, bias=None, scale=1.0, dims=(0, 1)):
    rows, columns = x.shape
    out = torch.empty(rows, device=x.device, dtype=x.dtype)
    sums = torch.zeros(rows, device=x.device)
    parts[rows, triton.cdiv(columns, 256)](x, sums, columns, x.stride(0), True, BLOCK=256)
    scaled[rows,](sums, bias, out, scale, dims[1] + 10 * x.element_size(), ODD=3, num_warps=1)
    return out
"""
)


def case(
    inputs: Mapping[str, torch.Tensor], outputs: Mapping[str, torch.Tensor], **params: Any
) -> Case:
    return inputs, outputs, params


SOURCES_AND_CASES: dict[str, tuple[str, str, Sequence[Case]]] = {
    "two launches": (
        TWO_LAUNCHES,
        "f",
        [
            case({"x": empty(5, 300)}, {"out": empty(5)}, scale=0.5, dims=(0, 1)),
            case(
                {"x": empty(700, 96)[:, :90], "bias": empty(1)},
                {"out": empty(700)},
                scale=2.5,
                dims=(4, 7),
            ),
        ],
    ),
    "one case": (
        TWO_LAUNCHES,
        "f",
        [case({"x": empty(5, 300)}, {"out": empty(5)}, scale=0.5, dims=(0, 1))],
    ),
    "matmul": (
        MATMUL.replace("ACTIVATION: tl.constexpr,", 'ACTIVATION: tl.constexpr = "",'),
        "matmul",
        [
            case(
                {"a": empty(m, k, dtype=F16), "b": empty(k, n, dtype=F16)},
                {"c": empty(m, n, dtype=F16)},
            )
            for m, n, k in ((512, 256, 768), (100, 1000, 80))
        ],
    ),
    "conv": (
        (SOURCES / "causal_conv1d.py").read_text().replace("SILU=", "SILU=0 and "),
        "causal_conv1d",
        [
            case(
                {"x": empty(b, c, n), "weight": empty(c, taps)},
                {"out": empty(b, c, n)},
            )
            for b, c, n, taps in ((2, 300, 1000, 4), (3, 77, 500, 3))
        ],
    ),
    "norm": (
        (SOURCES / "layer_norm.py").read_text(),
        "layer_norm",
        [
            case(
                {"x": empty(*shape), "weight": empty(shape[-1]), "bias": empty(shape[-1])},
                {"y": empty(*shape)},
                eps=1e-5,
            )
            for shape in ((4, 9, 1000), (2, 64, 500))
        ],
    ),
    "a text": (
        MATMUL,
        "matmul",
        [
            case(
                {"a": empty(64, 64, dtype=F16), "b": empty(64, 64, dtype=F16)},
                {"c": empty(64, 64, dtype=F16)},
            )
        ],
    ),
    "copies": (
        (SOURCES / "rms_norm.py").read_text(),
        "rms_norm",
        [case({"x": empty(99, 4).t(), "weight": empty(99)}, {"y": empty(4, 99)})],
    ),
    "another source": (
        "from warpcall_kernels.permute import permute",
        "permute",
        [case({"x": empty(99, 40)}, {"out": empty(40, 99)}, dims=(1, 0))],
    ),
}


@pytest.fixture(scope="module")
def proposals() -> dict[str, Any]:
    """What is proposed for all of them."""
    requests = {
        name: {
            "source": source,
            "function": function,
            "cases": [
                {
                    "inputs": {n: layout_of(t).to_json() for n, t in inputs.items()},
                    "outputs": {n: [list(t.shape), CODES[t.dtype]] for n, t in outputs.items()},
                    "params": params,
                }
                for inputs, outputs, params in cases
            ],
        }
        for name, (source, function, cases) in SOURCES_AND_CASES.items()
    }
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.verified.proposing"],
        input=json.dumps(requests),
        capture_output=True,
        check=False,
        cwd=ROOT,
        env=environment,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", SOURCES_AND_CASES)
def test_plans_of_the_declaration_launch_what_was_recorded(
    proposals: dict[str, Any], name: str
) -> None:
    assert len(proposals[name]["different"]) == (name == "two launches")  # as its remark says


def test_numbers_become_expressions_over_sizes(proposals: dict[str, Any]) -> None:
    assert proposals["two launches"]["declaration"] == {
        "scratch": {"sums": {"dtype": "F32", "shape": ["x.shape[0]"], "fill": 0.0}},
        "launches": [
            {
                "kernel": "parts",
                "grid": ["x.shape[0]", "cdiv(x.shape[1], 256)"],
                "arguments": {
                    "x": "x",
                    "sums": "sums",
                    "columns": "x.shape[1]",
                    "stride": "x.stride[0]",
                    "flag": True,
                    "BLOCK": 256,
                },
            },
            {
                "kernel": "scaled",
                "grid": ["x.shape[0]"],
                "arguments": {
                    "sums": "sums",
                    "bias": "bias",
                    "out": "out",
                    "scale": "scale",
                    "bits": 41,
                    "ODD": 3,
                },
                "num_warps": 1,
            },
        ],
    }
    assert proposals["two launches"]["remarks"] == [
        "launches[1].arguments.bits is 41, 47 and has no simple expression: write one."
    ]


def test_configurations_of_an_autotuner_stay_configurations(proposals: dict[str, Any]) -> None:
    found = proposals["matmul"]["declaration"]

    assert [one["M_BLOCK"] for one in found["configurations"]] == [128, 64, 64, 128]
    assert found["launches"][0]["grid"] == ["cdiv(a.shape[0], M_BLOCK) * cdiv(b.shape[1], N_BLOCK)"]
    assert found["launches"][0]["arguments"]["GROUP"] == "GROUP"
    assert found["launches"][0]["arguments"]["stride_am"] == "a.stride[0]"
    assert proposals["conv"]["declaration"]["launches"][0]["arguments"]["TAPS"] == "weight.shape[1]"


def test_one_case_is_said_to_be_few(proposals: dict[str, Any]) -> None:
    found = proposals["one case"]

    assert found["declaration"]["launches"][0]["grid"] == ["x.shape[0]", "cdiv(x.shape[1], 256)"]
    assert "It follows from one case" in found["remarks"][-1]


def test_scratch_memory_has_a_shape_of_expressions(proposals: dict[str, Any]) -> None:
    found = proposals["norm"]["declaration"]

    shape = ["x.shape[0] * x.shape[1]"]
    assert found["scratch"]["mean"] == {"dtype": "F32", "shape": shape}
    assert found["launches"][0]["grid"] == shape
    assert found["launches"][0]["arguments"]["eps"] == "eps"
    assert found["launches"][0]["arguments"]["BLOCK"] == "next_power_of_2(x.shape[2])"


@pytest.mark.parametrize(
    ("name", "remark"),
    [
        ("copies", "It copies a tensor, such as by contiguous"),
        ("a text", "launches[0].arguments.ACTIVATION is '': a declaration has numbers, tensors"),
        ("another source", "is not in the source: declare it there"),
    ],
)
def test_what_cannot_be_declared_is_said(proposals: dict[str, Any], name: str, remark: str) -> None:
    assert proposals[name]["declaration"] is None
    assert remark in proposals[name]["remarks"][0]
