"""Sources of problems as users upload them."""

from __future__ import annotations

NAME = "ann/row-norm"

ROW_NORM = '''"""Row norm: each row divided by its Euclidean length.

More text.
"""

import torch
from warpcall_kernels import Param, Problem, Sample, Size


def row_norm(x, eps):
    return x / (x.square().sum(-1, keepdim=True) + eps).sqrt()


def inputs(dtype, rows, columns):
    return {"x": Sample((rows, columns), dtype)}


PROBLEM = Problem(
    reference=row_norm,
    inputs=inputs,
    sizes=(Size("rows", "number of rows", 16, minimum=1), Size("columns", "length of a row", 8)),
    params=(Param("eps", "float", "added below the root", default=1e-6),),
    dtypes=(torch.float32, torch.bfloat16),
)
'''


def with_reference(*lines: str) -> str:
    """The problem with these lines before the last one of its reference, the first at line 11."""
    code = "".join(f"    {line}\n" for line in lines)
    return ROW_NORM.replace("    return x /", f"{code}    return x /")


def with_inputs(*lines: str) -> str:
    """The problem with these lines before the last one of `inputs`, the first at line 15."""
    code = "".join(f"    {line}\n" for line in lines)
    return ROW_NORM.replace('    return {"x"', f'{code}    return {{"x"')
