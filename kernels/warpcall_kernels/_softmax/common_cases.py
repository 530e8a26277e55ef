"""Cases and tuned constants that masked softmax and its gradient share."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from warpcall_kernels.op.cases import COMMON_SIZES, SHORT_DTYPES, Sample, SampleLayout, Values
from warpcall_kernels.op.declaration import TunedConstants

# Sizes of common calls. Rows: one, few, and enough for all multiprocessors.
ROWS = (1, 16, 1024)
COLUMNS = (*COMMON_SIZES, 10, 32, 128, 333, 512, 768, 2048, 8192, 50257)
COMMON_SHAPES = tuple(itertools.product(ROWS, COLUMNS))
DEMO = (30, 82, 82)

# Positions and dtype of the rows in the cases of `sweep`, which have `SWEEP_ELEMENTS` in all.
SWEEP_ROWS = (
    (1, torch.float32),
    (3, torch.float16),
    (17, torch.bfloat16),
    (100, torch.float32),
    (1000, torch.float16),
    (4099, torch.bfloat16),
    (10_007, torch.float32),
    (50_021, torch.bfloat16),
    (100_003, torch.float32),
)
SWEEP_ELEMENTS = 1 << 25

TILE_CONSTANTS = TunedConstants(
    "_softmax.constants",
    ("TILE_BYTES", "MAX_WARPS"),
    [(nbytes, warps) for nbytes in (1024, 2048, 4096) for warps in (8, 16)],
    ("[32, 16, 512, 512] bf16", "[8, 16, 2048, 2048] bf16 key", "[128, 8, 64, 64] fp16"),
)


def sweep_shapes() -> Iterator[tuple[tuple[int, int], torch.dtype, str]]:
    """Shapes and dtypes of the sweep, each with the beginning of its case's name."""
    for columns, dtype in SWEEP_ROWS:
        rows = SWEEP_ELEMENTS // columns
        yield (rows, columns), dtype, f"[{rows},{columns}] {SHORT_DTYPES[dtype]}"


def common_calls() -> Iterator[dict[str, Any]]:
    """Yield the common calls of the forward op, as arguments of its `_case`."""
    yield {"shape": DEMO, "lengths": (30, 1), "params": {"scale": 0.25}}
    for rows, columns in COMMON_SHAPES:
        yield {"shape": (rows, columns), "mask": (rows, columns)}
        yield {"shape": (rows, columns), "lengths": (rows,)}
        for also in (
            {},
            {"mask": (2, rows, columns)},
            {"mask": (2, 1, columns)},
            {"lengths": (2, rows)},
            {"params": {"causal": True}},
        ):
            yield {"shape": (2, rows, columns), **also}


@dataclass(frozen=True)
class Biased:
    """A case with a bias that both the op and its gradient have."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    bias: Sample | None
    params: Mapping[str, Any] = field(default_factory=dict)
    slopes: bool = False
    how: Mapping[str, Any] = field(default_factory=dict)


BIAS_CHOICES = ("none", "key", "head", "full")
F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64


def bias_shape(shape: tuple[int, ...], which: str) -> tuple[int, ...]:
    """The shape of a bias of scores of this shape, for one of BIAS_CHOICES."""
    if which == "full" or len(shape) < 2:
        return shape
    return shape[1:] if which == "head" else (shape[0], *(1,) * len(shape[1:-1]), shape[-1])


def _biased(
    name: str,
    shape: tuple[int, ...],
    bias: tuple[int, ...],
    dtype: torch.dtype = F32,
    other: torch.dtype | None = None,
    params: dict[str, Any] | None = None,
    *,
    layout: SampleLayout = "contiguous",
    bias_layout: SampleLayout = "contiguous",
    values: Values = "normal",
) -> Biased:
    sample = Sample(bias, other or dtype, values, layout=bias_layout)
    return Biased(name, shape, dtype, sample, params or {}, how={"layout": layout})


BIASED = (
    _biased("bias of keys", (2, 3, 5, 40), (2, 1, 1, 40), params={"scale": 0.125}),
    _biased("bias of heads, queries and keys", (3, 2, 6, 24), (1, 2, 6, 24), F16),
    _biased("bias of windows, odd", (9, 2, 7, 7), (2, 7, 7), F16),
    _biased("full bias, fp32", (2, 3, 4, 33), (2, 3, 4, 33), BF16, F32),
    _biased("full bias", (5, 65), (5, 65), F16),
    _biased("bias of one number", (4, 9), (), F32),
    _biased("bias of rows", (3, 5, 17), (3, 5, 1), F64),
    _biased("bias of batches and queries", (2, 3, 4, 16), (2, 1, 4, 16), BF16),
    _biased("bias of keys of all rows", (6, 50, 31), (31,), F32, BF16),
    _biased("bias of three dims of five", (2, 3, 2, 3, 10), (2, 1, 2, 1, 10), F32),
    _biased("bias, no rows", (0, 5), (1, 5)),
    _biased("bias, no positions", (3, 0), (3, 0)),
    _biased("bias, one position", (4, 1), (4, 1), F16),
    _biased("bias, NaN and inf", (12, 30), (12, 30), values="special"),
    _biased("bias of keys, NaN and inf", (3, 4, 21), (3, 1, 21), F16, values="special"),
    _biased("bias, x transposed", (3, 8, 16), (3, 1, 16), layout="transposed"),
    _biased("bias transposed", (3, 8, 16), (8, 16), F64, bias_layout="transposed"),
    _biased("bias strided", (4, 6, 20), (6, 20), F16, F32, bias_layout="strided"),
    _biased("bias offset", (4, 6, 24), (6, 24), BF16, bias_layout="offset"),
    _biased("bias expanded", (4, 3, 12), (4, 3, 12), F32, F16, bias_layout="expanded"),
    _biased("bias of 1000 positions", (2, 3, 1000), (3, 1000), BF16, params={"scale": -2.0}),
    _biased("bias of 20001 positions", (2, 20001), (20001,), F16),
    _biased("bias of 32760 positions", (2, 32760), (1, 32760), BF16, F32),
    _biased("bias of 9000 positions, fp64", (2, 9000), (2, 9000), F64, F32),
)
SLOPED = (
    Biased("slopes, causal", (2, 3, 6, 6), F32, None, {"causal": True}, True),
    Biased("slopes", (2, 4, 5, 40), BF16, None, {"scale": 0.5}, True),
    Biased("slopes and bias", (3, 2, 9, 33), F16, Sample((9, 33), F32), {"causal": True}, True),
    Biased("slopes of one query", (1, 3, 1, 20000), F16, None, {}, True),
    Biased("slopes of long rows", (2, 1, 32760), F32, None, {"causal": True}, True),
    Biased("slopes, fewer keys", (2, 2, 12, 5), F64, None, {"causal": True}, True),
)

# Scores of models, and what is added to them.
BIASED_LARGE = (
    _biased("BERT bias [32, 12, 512, 512] bf16", (32, 12, 512, 512), (32, 1, 1, 512), BF16),
    _biased("T5 bias [32, 16, 512, 512] fp16", (32, 16, 512, 512), (1, 16, 512, 512), F16),
    _biased("T5 bias [32, 16, 512, 512] fp32", (32, 16, 512, 512), (1, 16, 512, 512)),
    _biased("Swin bias [2048, 6, 49, 49] fp16", (2048, 6, 49, 49), (6, 49, 49), F16),
    _biased("Swin bias [1024, 8, 64, 64] bf16", (1024, 8, 64, 64), (8, 64, 64), BF16),
    _biased("BEiT bias [64, 12, 197, 197] fp16", (64, 12, 197, 197), (12, 197, 197), F16),
    _biased("pairs bias [512, 8, 256, 256] bf16", (512, 8, 256, 256), (8, 256, 256), BF16),
    _biased("BLOOM bias [8, 32, 1024, 1024] bf16", (8, 32, 1024, 1024), (32, 1, 1024), BF16),
    _biased("decode bias [32, 32, 1, 4096] bf16", (32, 32, 1, 4096), (32, 1, 1, 4096), BF16),
    _biased("float mask as bias [8, 16, 2048, 2048] bf16", (8, 16, 2048, 2048), (8, 1, 2048, 2048), BF16),
    _biased("full bias [8, 16, 1024, 1024] bf16", (8, 16, 1024, 1024), (8, 16, 1024, 1024), BF16),
    _biased("full fp32 bias [8, 16, 1024, 1024] bf16", (8, 16, 1024, 1024), (8, 16, 1024, 1024), BF16, F32),
    _biased("full bias [8, 16, 1024, 1024] fp32", (8, 16, 1024, 1024), (8, 16, 1024, 1024)),
    _biased("keys bias [2048, 16384] bf16", (2048, 16384), (16384,), BF16),
    _biased("full bias [2048, 32768] bf16", (2048, 32768), (2048, 32768), BF16),
    _biased("full bias [512, 65536] bf16", (512, 65536), (512, 65536), BF16),
)  # fmt: skip
SLOPED_LARGE = (
    Biased("ALiBi slopes [8, 32, 1024, 1024] bf16", (8, 32, 1024, 1024), BF16, None, {"causal": True}, True),
    Biased("ALiBi slopes [32, 32, 1, 4096] bf16", (32, 32, 1, 4096), BF16, None, {}, True),
)  # fmt: skip
