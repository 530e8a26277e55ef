"""The names of dtypes in the Open Inference Protocol."""

from __future__ import annotations

# By the wire's names; complex numbers and 8-bit floats have none there.
DATATYPES: dict[str, str] = {
    "BOOL": "BOOL",
    "U8": "UINT8",
    "U16": "UINT16",
    "U32": "UINT32",
    "U64": "UINT64",
    "I8": "INT8",
    "I16": "INT16",
    "I32": "INT32",
    "I64": "INT64",
    "F16": "FP16",
    "F32": "FP32",
    "F64": "FP64",
    "BF16": "BF16",
}
WIRE = {datatype: code for code, datatype in DATATYPES.items()}
