"""Cases and tuned constants that masked softmax and its gradient share."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch

from warpcall_kernels.op.cases import COMMON_SIZES, SHORT_DTYPES
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
