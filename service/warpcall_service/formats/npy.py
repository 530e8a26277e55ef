"""The .npy format: a header that describes one array, then its bytes. Pickles are refused.

Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import io
import math
import operator
import re
from dataclasses import dataclass
from itertools import accumulate

from numpy.lib import format as numpy_format

from warpcall import wire
from warpcall.dtypes import ITEMSIZE, numpy_dtypes
from warpcall.errors import InvalidInput, UnsupportedMedia

NUMPY_DTYPES = numpy_dtypes()

MEDIA_TYPE = "application/x-npy"
MAGIC = b"\x93NUMPY"
MAX_HEADER_BYTES = 2 << 10  # 64 dims of 20 digits need 1.5 KiB; most headers have 128 bytes
MAX_TOKENS = 256  # words and signs; 64 dims need 150. Python's parser takes 1 us for each
_TOKEN = re.compile(rb"\w+|[^\w\s]")

# Wire codes by the names that .npy has for dtypes. bfloat16 and float8 have none.
_CODES = {dtype.str: code for code, dtype in NUMPY_DTYPES.items() if dtype.isbuiltin == 1}
_NAMES = {code: name for name, code in _CODES.items()}


@dataclass(frozen=True, slots=True)
class NpyHeader:
    """A decoded .npy header; `dtype` is a wire code."""

    dtype: str
    shape: tuple[int, ...]
    fortran_order: bool

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEMSIZE[self.dtype]

    @property
    def strides(self) -> tuple[int, ...] | None:
        """In elements; None means C order."""
        if not self.fortran_order:
            return None
        return tuple(accumulate(self.shape[:-1], operator.mul, initial=1)) if self.shape else ()


def header_nbytes(start: bytes, field: str) -> int | None:
    """The length of the header, magic included; None if `start` is too short to tell."""
    if start[: len(MAGIC)] != MAGIC[: len(start)]:
        raise InvalidInput(f"{field} must be a .npy file, its first bytes are not", field=field)
    if len(start) < 8:
        return None
    version = start[6], start[7]
    if version not in ((1, 0), (2, 0)):
        raise InvalidInput(
            f"{field} must be .npy version 1.0 or 2.0, got {version[0]}.{version[1]}", field=field
        )
    width = 2 if version == (1, 0) else 4
    if len(start) < 8 + width:
        return None
    nbytes = 8 + width + int.from_bytes(start[8 : 8 + width], "little")
    if nbytes > MAX_HEADER_BYTES:
        raise InvalidInput(
            f"the header of {field} must have at most {MAX_HEADER_BYTES} bytes, got {nbytes}",
            field=field,
        )
    return nbytes


def decode_header(header: bytes, field: str) -> NpyHeader:
    """Check and decode a .npy header.

    Raises:
        InvalidInput: numpy cannot read the header; the array holds Python objects, which .npy
            stores as a pickle; or a dtype or shape that the wire does not have.
    """
    tokens = len(_TOKEN.findall(header))
    if tokens > MAX_TOKENS:
        raise InvalidInput(
            f"the header of {field} must have at most {MAX_TOKENS} words and signs, got {tokens}",
            field=field,
        )
    file = io.BytesIO(header)
    try:
        version = numpy_format.read_magic(file)
        read = (
            numpy_format.read_array_header_1_0
            if version == (1, 0)
            else numpy_format.read_array_header_2_0
        )
        shape, fortran_order, dtype = read(file, max_header_size=MAX_HEADER_BYTES)
    except Exception:  # noqa: BLE001 - numpy raises many types, TokenError too
        raise InvalidInput(
            f"{field} must have a .npy header that numpy reads", field=field
        ) from None
    if dtype.hasobject:
        raise InvalidInput(
            f"{field} must hold numbers, got Python objects: that is a pickle, never read here",
            field=field,
        )
    if dtype.byteorder == ">":
        raise InvalidInput(f"{field} must be little-endian, got {dtype.str}", field=field)
    if dtype.str not in _CODES:
        raise InvalidInput(
            f"{field} must have a dtype of {', '.join(_CODES)}, got {dtype.str}; bfloat16 and "
            "float8 travel as safetensors",
            field=field,
        )
    info = wire.check_tensor(field, dtype.str, list(shape), _CODES)
    return NpyHeader(info.dtype, info.shape, bool(fortran_order))


def encode_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """The header of a C-ordered array.

    Raises:
        UnsupportedMedia: .npy has no name for the dtype.
    """
    if dtype not in _NAMES:
        raise UnsupportedMedia(
            f"{MEDIA_TYPE} cannot say {dtype}; ask for application/vnd.safetensors", field="accept"
        )
    file = io.BytesIO()
    numpy_format.write_array_header_1_0(
        file, {"descr": _NAMES[dtype], "fortran_order": False, "shape": shape}
    )
    return file.getvalue()
