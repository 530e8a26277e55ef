"""The wire format: safetensors, written and read without copying a tensor.

A body is eight bytes of header length (little-endian), that many bytes of JSON padded with spaces
to a multiple of eight, then the tensors' bytes, C order, little-endian, without gaps. What is
written here equals, byte for byte, what the safetensors library (0.8) writes, and everything that
the library writes can be read here. One rule is stricter: a tensor must begin at a multiple of its
element's size.
Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from warpcall._text import did_you_mean
from warpcall.dtypes import ITEMSIZE
from warpcall.errors import InvalidInput

MEDIA_TYPE = "application/vnd.safetensors"
PARAMS_KEY = "params"  # the metadata entry that carries an op's parameters, as JSON
PROGRAM_KEY = "program"  # the parameter that is a whole program: its steps and its outputs
STORED_KEY = "stored"  # the metadata entry of an answer that describes stored outputs, as JSON
# The library allows 100 MB. 256 tensors with names of 64 characters need 38 KiB, and a program of
# 60 KiB needs up to 80 KiB as a string in JSON.
MAX_HEADER_BYTES = 128 << 10
MAX_BRACKETS = 4096  # { and [ of a header; 256 tensors have 769, a program of 256 steps some 2,000
MAX_COMMAS = 32_768  # of a header; 256 tensors of 64 dims have 17,407
MAX_DIGITS = 40  # of an integer in a header; 2^64 has 20, and Python is slow at thousands
MAX_DIMS = 64  # torch's own limit
MAX_TENSORS = 256
MAX_NAME_CHARS = 255  # of a tensor
MAX_SHOWN = 60  # characters of a value in a message

# Paths of the API, and the request headers of calls on stored tensors. The first two headers are
# lists of names separated by commas. TENSORS_HEADER `x=photo, mask=m` takes inputs from the stored
# tensors photo and m. STORE_HEADER `out=y` stores an output under the id y, `out` stores it under
# an id that the server chooses, and `*=y` stores every output, as `y.out` and so on.
KERNELS_PATH = "/v1/kernels"
PROGRAMS_PATH = "/v1/programs"
TENSORS_PATH = "/v1/tensors"
JOBS_PATH = "/v1/jobs"
GROUPS_PATH = "/v1/groups"
EVALUATIONS_PATH = "/v1/evaluations"
FILES_PATH = "/v1/files"
SCRATCH_PATH = "/v1/scratch"
IMPLEMENTATIONS_PATH = "/v1/implementations"
PROBLEMS_PATH = "/v1/problems"
COMPILE_REPORTS_PATH = "/v1/compile-reports"
VERIFICATIONS_PATH = "/v1/verifications"
NODES_PATH = "/v1/nodes"
TENSORS_HEADER = "X-Warpcall-Tensors"
STORE_HEADER = "X-Warpcall-Store"
TIMEOUT_HEADER = "X-Warpcall-Timeout"  # seconds that the caller waits
TTL_HEADER = "X-Warpcall-Ttl"  # seconds after its last use until a stored tensor is deleted
DEVICE_HEADER = "X-Warpcall-Device"  # such as cuda:0; in an answer, the device that ran the call
NODE_HEADER = "X-Warpcall-Node"  # of an answer: id of the server, if others can share its database
EVERY = "*"
TENSOR_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")

_SHORT = reprlib.Repr()
_SHORT.maxlevel = 3
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxset = 10
_SHORT.maxdict = 5
_SHORT.maxstring = _SHORT.maxother = MAX_SHOWN
_SHORT.maxlong = 5000  # json reads integers of up to 4300 digits
WIRE_CODES = {code: code for code in ITEMSIZE}
_RANK = {dtype: rank for rank, dtype in enumerate(ITEMSIZE)}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a body. Its bytes are data[begin:end] after the header.

    Attributes:
        strides: in elements, for a tensor that is not in C order (the server reads .npy files in
            Fortran order); together they cover exactly its elements. None means C order.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int = 0
    end: int = 0
    strides: tuple[int, ...] | None = None

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEMSIZE[self.dtype]

    @property
    def addressable(self) -> bool:
        """Whether its strides in bytes fit into 63 bits. They count dims of size 0 as 1."""
        return math.prod(size or 1 for size in self.shape) * ITEMSIZE[self.dtype] < 1 << 63


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a body: its tensors in the order of their bytes, and its metadata."""

    tensors: tuple[TensorInfo, ...]
    metadata: Mapping[str, str]

    @property
    def data_nbytes(self) -> int:
        return self.tensors[-1].end if self.tensors else 0


def lay_out(tensors: Iterable[TensorInfo]) -> tuple[TensorInfo, ...]:
    """Order tensors as the library does (widest dtype, then name), and set begin and end."""
    placed = []
    begin = 0
    for t in sorted(tensors, key=_place):
        placed.append(TensorInfo(t.name, t.dtype, t.shape, begin, begin + t.nbytes))
        begin += t.nbytes
    return tuple(placed)


def encode_header(
    tensors: Sequence[TensorInfo], metadata: Mapping[str, str] | None = None
) -> bytes:
    """The bytes before the data, with the length prefix. `tensors` come from `lay_out`."""
    entries: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    for t in tensors:
        entries[t.name] = {
            "dtype": t.dtype,
            "shape": list(t.shape),
            "data_offsets": [t.begin, t.end],
        }
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def header_nbytes(prefix: bytes) -> int:
    """The length in bytes of the header's JSON, from the first eight bytes of a body.

    Raises:
        InvalidInput: fewer than eight bytes came, or the length is not allowed.
    """
    nbytes = int.from_bytes(prefix[:8], "little")
    if len(prefix) < 8:
        raise _bad(f"the body must begin with 8 bytes of header length, got {len(prefix)}")
    if not 2 <= nbytes <= MAX_HEADER_BYTES:
        raise _bad(f"the header length must be between 2 and {MAX_HEADER_BYTES}, got {nbytes}")
    return nbytes


def check_header(text: bytes) -> None:
    """Raise InvalidInput if the JSON of a header is too long, or would be slow to parse."""
    for what, limit, count in (
        ("bytes", MAX_HEADER_BYTES, len(text)),
        ("brackets", MAX_BRACKETS, text.count(b"{") + text.count(b"[")),
        ("commas", MAX_COMMAS, text.count(b",")),
    ):
        if count > limit:
            raise _bad(
                "the header, which has the names and shapes of the tensors and the parameters, "
                f"must have at most {limit} {what}, got {count}"
            )


def decode_header(text: bytes) -> Header:
    """Read and check the JSON of a header (without the length prefix).

    Raises:
        InvalidInput: it is not a header whose tensors fill the data without a gap or an overlap.
    """
    check_header(text)
    try:
        entries = json.loads(text.decode(), object_pairs_hook=_no_duplicates, parse_int=_integer)
    except InvalidInput:
        raise
    except (ValueError, RecursionError) as error:
        raise _bad(f"the header must be JSON, got {brief(text)} ({json_fault(error)})") from None
    if not isinstance(entries, dict):
        raise _bad(f"the header must be a JSON object, got {brief(entries)}")
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise _bad(f"__metadata__ must map names to strings, got {brief(metadata)}")
    if len(entries) > MAX_TENSORS:
        raise _bad(f"a body holds at most {MAX_TENSORS} tensors, got {len(entries)}")
    tensors = sorted(
        (_tensor(name, entry) for name, entry in entries.items()), key=lambda t: (t.begin, t.end)
    )
    expected = 0
    for t in tensors:
        if t.begin != expected:
            fault = "overlaps the tensor before it" if t.begin < expected else "leaves a gap"
            raise _bad(f"{t.name} must begin at byte {expected}, got {t.begin}: it {fault}", t.name)
        expected = t.end
        if t.begin % ITEMSIZE[t.dtype]:
            size = ITEMSIZE[t.dtype]
            raise _bad(
                f"{t.name} must begin at a multiple of {size} bytes, the size of {t.dtype}, "
                f"got {t.begin}",
                t.name,
            )
    return Header(tuple(tensors), metadata)


def encode_names(ids: Mapping[str, str]) -> str:
    """Names and ids as the value of a header. The server chooses an id where it is empty."""
    return ", ".join(f"{name}={id_}" if id_ else name for name, id_ in ids.items())


def decode_names(text: str, header: str) -> dict[str, str]:
    """Read the value of a header that `encode_names` wrote.

    Raises:
        InvalidInput: a name is given twice, there are too many, or an id is not valid.
    """
    ids: dict[str, str] = {}
    if text.count(",") >= MAX_TENSORS:
        raise _bad(f"{header} must name at most {MAX_TENSORS} tensors, got more", header)
    for item in text.split(",") if text.strip() else ():
        name, equals, id_ = (part.strip() for part in item.partition("="))
        if not name or name in ids:
            raise _bad(f"{header} must give each name once, got {brief(text)}", header)
        if equals:
            check_tensor_id(id_, header)
        ids[name] = id_
    return ids


def check_tensor_id(id_: str, field: str) -> None:
    """Raise InvalidInput unless `id_` is a valid id of a stored tensor."""
    if not TENSOR_ID.fullmatch(id_):
        raise _bad(
            "the id of a tensor must be 1 to 64 of A-Z a-z 0-9 . _ -, the first of them a letter "
            f"or digit, got {brief(id_)}",
            field,
        )


def check_name(name: str) -> None:
    """Raise InvalidInput if the name of a tensor is too long."""
    if len(name) > MAX_NAME_CHARS:
        raise _bad(
            f"the name of a tensor must have at most {MAX_NAME_CHARS} characters, got {len(name)}"
        )


def check_tensor(
    name: str,
    dtype: object,
    shape: object,
    codes: Mapping[str, str] = WIRE_CODES,
    what: str = "dtype",
) -> TensorInfo:
    """The tensor that a body describes by values of JSON.

    Args:
        codes: the dtypes allowed, as wire codes by the names that the format has for them.
        what: what the format calls a dtype, for messages.

    Raises:
        InvalidInput: no such dtype; a shape that is not a list of at most MAX_DIMS integers from 0;
            or so many bytes that an offset or a stride does not fit into 63 bits.
    """
    code = codes.get(dtype) if isinstance(dtype, str) else None
    if code is None:
        raise _bad(f"{name} must have a {what} of {', '.join(codes)}, got {brief(dtype)}", name)
    if not _naturals(shape) or len(shape) > MAX_DIMS:
        raise _bad(
            f"the shape of {name} must be at most {MAX_DIMS} integers from 0, got {brief(shape)}",
            name,
        )
    info = TensorInfo(name, code, tuple(shape))
    if not info.addressable:
        raise _bad(
            f"{name} must have less than 2^63 bytes, zeros in its shape left out, "
            f"got shape {brief(shape)}",
            name,
        )
    return info


def op_name(given: str) -> str:
    """The name of an op as servers have it: "masked-softmax" for "masked_softmax".

    Names of problems, such as "ann/row_norm", may have both characters and are not changed.
    """
    return given if "/" in given else given.replace("_", "-")


def no_such_op(given: str, known: Iterable[str]) -> str:
    """The message that there is no op of this name, with the name that may have been meant."""
    names = list(known)
    meant = did_you_mean(given, names)
    return f"there is no op {brief(given)}, there are {', '.join(names)}{meant}"


def brief(value: object) -> str:
    """A value for a message: short, and written in a time that does not grow with the value."""
    start = value[: MAX_SHOWN + 1] if isinstance(value, str | bytes) else None
    text = _SHORT.repr(value) if start is None else repr(start)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def json_fault(error: Exception) -> str:
    """Why `json.loads` refused a text, for a message."""
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)[:120]


def _place(t: TensorInfo) -> tuple[int, bytes]:
    # JSON can hold names that UTF-8 cannot (lone surrogates). They are refused later, when names
    # are compared with the op's inputs.
    return _RANK[t.dtype], t.name.encode(errors="surrogatepass")


def _tensor(name: str, entry: object) -> TensorInfo:
    check_name(name)
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise _bad(f"{name} must have dtype, shape and data_offsets, got {brief(entry)}", name)
    shape, offsets = entry["shape"], entry["data_offsets"]
    described = check_tensor(name, entry["dtype"], shape)
    if not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _bad(f"data_offsets of {name} must be [begin, end], got {brief(offsets)}", name)
    begin, end = offsets
    info = TensorInfo(name, described.dtype, described.shape, begin, end)
    if info.nbytes != info.end - info.begin:
        raise _bad(
            f"{name} of shape {shape} and dtype {info.dtype} has {info.nbytes} bytes, "
            f"but its data_offsets {offsets} span {info.end - info.begin}",
            name,
        )
    return info


def _naturals(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(v) is int and v >= 0 for v in value)


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise _bad(f"an integer must have at most {MAX_DIGITS} digits, got {len(digits)}")
    return int(digits)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise _bad("the header must not name anything twice")
    return entries


def _bad(message: str, field: str = "body") -> InvalidInput:
    return InvalidInput(message, field=field)
