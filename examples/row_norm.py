"""Row norm: each row divided by its Euclidean length."""

import torch
from torch import Tensor

from warpcall_kernels import Param, Problem, Sample, Size


def row_norm(x: Tensor, eps: float) -> Tensor:
    """The reference, in plain torch: it says which results are right."""
    return x / (x.square().sum(-1, keepdim=True) + eps).sqrt()


def inputs(dtype: torch.dtype, rows: int, columns: int) -> dict[str, Sample]:
    """The tensors to draw, by the names that the reference takes."""
    return {"x": Sample((rows, columns), dtype)}


PROBLEM = Problem(
    reference=row_norm,
    inputs=inputs,
    sizes=(
        Size("rows", "number of rows", 4096, minimum=1),
        Size("columns", "length of a row", 1024, minimum=1),
    ),
    params=(Param("eps", "float", "added below the root", default=1e-6),),
    dtypes=(torch.float32, torch.bfloat16),
    tolerance={torch.float32: 1e-5, torch.bfloat16: 1e-2},
)
