"""The declaration of an op as the API shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from warpcall_kernels import Op
from warpcall_service.worker.devices import CODES


def describe(op: Op, codes: Mapping[torch.dtype, str] = CODES) -> dict[str, Any]:
    """As `Op.describe`, with dtypes by code, such as "BF16".

    Args:
        codes: by default those of the wire. Dtypes without a code are left out: calls cannot have
            them, such as complex128.
    """
    described = op.describe()
    for declared, entry in zip(op.inputs, described["inputs"], strict=True):
        entry["dtypes"] = [codes[dtype] for dtype in declared.dtypes if dtype in codes]
    for output, entry in zip(op.outputs, described["outputs"], strict=True):
        entry["dtype"] = output.dtype and codes[output.dtype]
    if op.dtypes:
        described["dtypes"] = [codes[dtype] for dtype in op.dtypes if dtype in codes]
    return described
