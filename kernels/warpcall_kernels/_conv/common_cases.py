"""What the declarations of conv and conv-backward share: parameters, sizes and the cases of the
sweep.
"""

from __future__ import annotations

import torch

from warpcall_kernels.op.cases import SHORT_DTYPES
from warpcall_kernels.op.declaration import Param, Size

SIZES = (
    Size("heads", "filters, by which the channels divide", 8, minimum=1),
    Size("taps", "of each filter", 7, minimum=1),
)
PARAMS = (
    Param(
        "padding_l", "int", "zeros before each row, 0 to K - 1; K - 1, causal, if absent", minimum=0
    ),
    Param("softmax_weight", "bool", "apply the softmax of each filter", default=False),
)

# Shapes, heads and taps that no kernel was tuned for.
SWEEP_FILTERS = (
    ((16, 256, 4099), 16, 1, torch.bfloat16),
    ((16, 256, 4099), 16, 2, torch.float16),
    ((8, 1024, 2048), 1024, 5, torch.bfloat16),
    ((8, 510, 4093), 17, 9, torch.bfloat16),
    ((8, 1024, 2048), 16, 16, torch.float32),
    ((8, 1024, 2048), 16, 33, torch.bfloat16),
    ((8, 512, 2048), 8, 64, torch.bfloat16),
    ((4, 512, 2048), 8, 129, torch.float32),
    ((4, 512, 4096), 8, 257, torch.bfloat16),
    ((2, 256, 1021), 4, 31, torch.float64),
)


def sweep_name(shape: tuple[int, ...], heads: int, taps: int, dtype: torch.dtype) -> str:
    """The name of a case of `SWEEP_FILTERS`."""
    return f"[{','.join(map(str, shape))}] H{heads} K{taps} {SHORT_DTYPES[dtype]}"
