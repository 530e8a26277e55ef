"""Cases that nobody else was measured on: odd sizes, so that no kernel is tuned to a list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from warpcall_kernels import Op
from warpcall_kernels.op.cases import SHORT_DTYPES, Case, Sample

BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64


def sweep(op: Op) -> list[Case]:
    """The odd cases of an op, all large; an op without any has none."""
    return _SWEEPS[op.name]() if op.name in _SWEEPS else list(op.sweep)


def _permute() -> list[Case]:
    return [
        Case(
            f"{dims} {list(shape)} {SHORT_DTYPES[dtype]}".replace(" ", "", 2),
            {"x": Sample(shape, dtype)},
            {"dims": dims},
            "large",
        )
        for shape, dims, dtype in (
            ((7919, 7907), (1, 0), FP32),  # primes
            ((5003, 4999), (1, 0), torch.uint8),
            ((3001, 2003), (1, 0), FP64),
            ((1 << 24, 1), (1, 0), FP32),  # inner dims of 1, 2, 3, 5, 16
            ((1 << 23, 2), (1, 0), BF16),
            ((5_000_011, 3), (1, 0), torch.uint8),
            ((3_000_017, 5), (1, 0), FP32),
            ((1 << 21, 16), (1, 0), BF16),
            ((3, 1080, 1920, 8), (3, 0, 1, 2), torch.uint8),
            ((127, 131, 137, 5), (2, 0, 1, 3), FP32),
            ((31, 37, 41, 43, 7), (4, 2, 0, 3, 1), FP16),
            ((16,) * 6, (5, 3, 1, 4, 2, 0), FP16),
            ((8,) * 8, (7, 0, 6, 1, 5, 2, 4, 3), BF16),  # rank 8
            ((12, 6, 10, 8, 9, 7, 11, 5), (0, 2, 1, 4, 3, 6, 5, 7), FP32),
            ((4096, 4096), (1, 0), torch.complex64),
        )
    ]


def _transpose_add() -> list[Case]:
    return [
        Case(
            f"{list(a)} {SHORT_DTYPES[dtype]} + {SHORT_DTYPES[other]}".replace(" ", "", len(a) - 1),
            {"a": Sample(a, dtype), "b": Sample((*a[:-2], a[-1], a[-2]), other)},
            {},
            "large",
        )
        for a, dtype, other in (
            ((7919, 7907), FP32, FP32),
            ((5003, 4999), torch.uint8, torch.uint8),
            ((3001, 2003), FP64, FP64),
            ((1 << 24, 1), FP32, FP32),
            ((1 << 23, 2), BF16, BF16),
            ((3, 5_000_011), BF16, BF16),
            ((16, 1 << 20), FP32, FP32),
            ((1021, 127, 131), FP16, FP16),
            ((4096, 4096), BF16, FP32),
            ((4093, 4099), torch.int32, FP16),
        )
    ]


_FILTERS = (
    ((16, 256, 4099), 16, 1, BF16),
    ((16, 256, 4099), 16, 2, FP16),
    ((8, 1024, 2048), 1024, 5, BF16),
    ((8, 510, 4093), 17, 9, BF16),
    ((8, 1024, 2048), 16, 16, FP32),
    ((8, 1024, 2048), 16, 33, BF16),
    ((8, 512, 2048), 8, 64, BF16),
    ((4, 512, 2048), 8, 129, FP32),
    ((4, 512, 4096), 8, 257, BF16),
    ((2, 256, 1021), 4, 31, FP64),
)


def _filtered(x: tuple[str, ...], **how: Any) -> list[Case]:
    """Cases of `_FILTERS`, with the inputs `x` of the shape of x."""
    return [
        Case(
            f"[{','.join(map(str, shape))}] H{heads} K{taps} {SHORT_DTYPES[dtype]}",
            {name: Sample(shape, dtype, **how) for name in x}
            | {"weight": Sample((heads, taps), dtype)},
            {},
            "large",
        )
        for shape, heads, taps, dtype in _FILTERS
    ]


def _conv() -> list[Case]:
    return _filtered(("x",))


def _conv_backward() -> list[Case]:
    # Integers: sums of millions of terms are then exact in fp32, whatever their order.
    return _filtered(("grad_output", "x"), values="integers", low=-3, high=4)


def _isin() -> list[Case]:
    return [
        Case(
            f"M={m} N={n} {SHORT_DTYPES[dtype]} {kind}",
            {
                "elements": Sample((m,), dtype, "integers" if kind == "dense" else "normal", 0, 4 * n),
                "test_elements": Sample((n,), dtype, "integers" if kind == "dense" else "normal", 0, 4 * n),
            },
            {},
            "large",
        )
        for m, n, dtype, kind in (
            (10_000_019, 0, torch.int32, "sparse"),
            (10_000_019, 1, torch.int64, "sparse"),
            (10_000_019, 33, torch.int32, "sparse"),
            (10_000_019, 4_099, FP32, "sparse"),
            (10_000_019, 70_001, torch.int64, "dense"),
            (10_000_019, 1 << 24, torch.int64, "sparse"),
            (1_000_003, 1 << 24, FP64, "sparse"),
            (10_000_019, 100_003, FP16, "sparse"),
            (10_000_019, 1 << 22, torch.uint8, "sparse"),
            (101, 1 << 22, torch.int32, "dense"),
        )
    ]  # fmt: skip


_SWEEPS: dict[str, Callable[[], list[Case]]] = {
    "permute": _permute,
    "transpose-add": _transpose_add,
    "conv": _conv,
    "conv-backward": _conv_backward,
    "isin": _isin,
}
