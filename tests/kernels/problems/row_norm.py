"""A problem for tests: each row of a matrix divided by its length."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from warpcall_kernels import Param, Problem, Sample, Size


def row_norm(x: Tensor, eps: float) -> Tensor:
    """Divide each row by its length."""
    return x / (x.square().sum(-1, keepdim=True) + eps).sqrt()


def rows(dtype: torch.dtype, rows: int, columns: int) -> dict[str, Sample]:
    return {"x": Sample((rows, columns), dtype)}


SIZES = (Size("rows", "number of rows", 8, minimum=1), Size("columns", "length of a row", 6))
EPS = Param("eps", "float", "added below the root", default=1e-6)
ROW_NORM: dict[str, Any] = {
    "reference": row_norm,
    "inputs": rows,
    "sizes": SIZES,
    "params": (EPS,),
    "dtypes": (torch.float32, torch.bfloat16),
}


def problem(**changes: Any) -> Problem:
    return Problem(**{**ROW_NORM, **changes})
