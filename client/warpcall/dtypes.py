"""The dtypes of tensors: their codes on the wire, and their names elsewhere."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # the wire format and the errors are read without numpy
    import numpy as np


class DType(NamedTuple):
    """A dtype that a tensor may have.

    Attributes:
        code: its name on the wire, as in safetensors.
        itemsize: bytes of an element.
        name: its name in numpy, ml_dtypes and torch.
        oip: its name in the Open Inference Protocol; empty if it has none there.
    """

    code: str
    itemsize: int
    name: str
    oip: str = ""


# In the order in which the safetensors library lays tensors out.
DTYPES = (
    DType("U64", 8, "uint64", "UINT64"),
    DType("I64", 8, "int64", "INT64"),
    DType("F64", 8, "float64", "FP64"),
    DType("C64", 8, "complex64"),
    DType("F32", 4, "float32", "FP32"),
    DType("U32", 4, "uint32", "UINT32"),
    DType("I32", 4, "int32", "INT32"),
    DType("BF16", 2, "bfloat16", "BF16"),
    DType("F16", 2, "float16", "FP16"),
    DType("U16", 2, "uint16", "UINT16"),
    DType("I16", 2, "int16", "INT16"),
    DType("F8_E5M2FNUZ", 1, "float8_e5m2fnuz"),
    DType("F8_E4M3FNUZ", 1, "float8_e4m3fnuz"),
    DType("F8_E8M0", 1, "float8_e8m0fnu"),
    DType("F8_E4M3", 1, "float8_e4m3fn"),
    DType("F8_E5M2", 1, "float8_e5m2"),
    DType("I8", 1, "int8", "INT8"),
    DType("U8", 1, "uint8", "UINT8"),
    DType("BOOL", 1, "bool", "BOOL"),
)
ITEMSIZE = {dtype.code: dtype.itemsize for dtype in DTYPES}
OIP_DATATYPES = {dtype.code: dtype.oip for dtype in DTYPES if dtype.oip}


def dtype_name(code: str) -> str:
    """The name of a dtype in numpy and torch, for its code on the wire: float32 for F32.

    A code that is not known, of a newer server, is returned as it is.
    """
    return next((dtype.name for dtype in DTYPES if dtype.code == code), code)


@functools.cache
def numpy_dtypes() -> dict[str, np.dtype[Any]]:
    """The numpy dtypes by code. The first call imports numpy and ml_dtypes."""
    import ml_dtypes
    import numpy as np

    return {dtype.code: np.dtype(getattr(ml_dtypes, dtype.name, dtype.name)) for dtype in DTYPES}


@functools.cache
def _spellings() -> dict[str, str]:
    short = {"F": "fp", "I": "int", "U": "uint", "BF": "bf"}
    spelled: dict[str, str] = {}
    for code, _, name, oip in DTYPES:
        kind = code.rstrip("0123456789")
        names = [code, name, oip, short[kind] + code[len(kind) :] if kind in short else code]
        spelled |= {one.lower(): code for one in names if one}
    return spelled


def dtype_code(value: object) -> object:
    """The code of a dtype: of torch, of numpy, or a text such as bf16, bfloat16 or BF16.

    A value that is none of these is returned as it is: a newer server may have it.
    """
    name = value if isinstance(value, str) else getattr(value, "name", None)
    name = name if isinstance(name, str) else getattr(value, "__name__", None) or str(value)
    return _spellings().get(str(name).removeprefix("torch.").lower(), value)
