"""Which calls of masked softmax and its gradient are common, so that their kernels are compiled ahead."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from warpcall_kernels.op.cases import COMMON_SIZES

# One row, few rows, and enough for all multiprocessors.
ROWS = (1, 16, 1024)
COLUMNS = (*COMMON_SIZES, 10, 32, 128, 333, 512, 768, 2048, 8192, 50257)
COMMON_SHAPES = tuple(itertools.product(ROWS, COLUMNS))
DEMO = (30, 82, 82)


def common_calls() -> Iterator[dict[str, Any]]:
    """Of the forward op: a shape, and a mask of its own or of keys, or lengths, or causal."""
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
