"""The declaration of an op as the API shows it."""

from __future__ import annotations

from typing import Any

from warpcall_kernels import Op, measuring
from warpcall_service.worker.devices import CODES


def describe(op: Op) -> dict[str, Any]:
    """As `Op.describe`, with dtypes by code, such as "BF16".

    Calls cannot have dtypes that the wire does not have, such as complex128, so they are left out.
    Problems are only measured, so they may have them.
    """
    codes = measuring.CODES if op.dtypes else CODES
    described = op.describe()
    for declared, entry in zip(op.inputs, described["inputs"], strict=True):
        entry["dtypes"] = [codes[dtype] for dtype in declared.dtypes if dtype in codes]
    for output, entry in zip(op.outputs, described["outputs"], strict=True):
        entry["dtype"] = output.dtype and codes[output.dtype]
    if op.dtypes:
        described["dtypes"] = [codes[dtype] for dtype in op.dtypes]
    return described
