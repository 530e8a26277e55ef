"""The dtypes of tensors: their codes on the wire, and their names elsewhere."""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np


class DType(NamedTuple):
    """A dtype that a tensor may have.

    Attributes:
        code: its name on the wire, as in safetensors.
        numpy: torch has the same name for it.
        oip: its name in the Open Inference Protocol; empty if it has none there.
    """

    code: str
    numpy: np.dtype[Any]
    oip: str = ""


# In the order in which the safetensors library lays tensors out.
DTYPES = (
    DType("U64", np.dtype(np.uint64), "UINT64"),
    DType("I64", np.dtype(np.int64), "INT64"),
    DType("F64", np.dtype(np.float64), "FP64"),
    DType("C64", np.dtype(np.complex64)),
    DType("F32", np.dtype(np.float32), "FP32"),
    DType("U32", np.dtype(np.uint32), "UINT32"),
    DType("I32", np.dtype(np.int32), "INT32"),
    DType("BF16", np.dtype(ml_dtypes.bfloat16), "BF16"),
    DType("F16", np.dtype(np.float16), "FP16"),
    DType("U16", np.dtype(np.uint16), "UINT16"),
    DType("I16", np.dtype(np.int16), "INT16"),
    DType("F8_E5M2FNUZ", np.dtype(ml_dtypes.float8_e5m2fnuz)),
    DType("F8_E4M3FNUZ", np.dtype(ml_dtypes.float8_e4m3fnuz)),
    DType("F8_E8M0", np.dtype(ml_dtypes.float8_e8m0fnu)),
    DType("F8_E4M3", np.dtype(ml_dtypes.float8_e4m3fn)),
    DType("F8_E5M2", np.dtype(ml_dtypes.float8_e5m2)),
    DType("I8", np.dtype(np.int8), "INT8"),
    DType("U8", np.dtype(np.uint8), "UINT8"),
    DType("BOOL", np.dtype(np.bool_), "BOOL"),
)
ITEMSIZE = {dtype.code: dtype.numpy.itemsize for dtype in DTYPES}  # bytes of an element
NUMPY_DTYPES = {dtype.code: dtype.numpy for dtype in DTYPES}
CODES = {dtype.numpy: dtype.code for dtype in DTYPES}
OIP_DATATYPES = {dtype.code: dtype.oip for dtype in DTYPES if dtype.oip}
