"""Bodies of requests and answers: tensors are sent from where they lie, and received as views."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from warpcall import wire
from warpcall._arrays import ArrayT, Bytes, Flat, Kind, flatten
from warpcall.errors import InvalidInput
from warpcall.sockets import SLICE_BYTES

JOIN_BYTES = 64 << 10  # up to this size one copy costs less than a second write
CACHED_HEADERS = 256  # of each direction; with the next two numbers some 2 MB of memory at most
CACHED_CHARS = 1024  # of parameters, or of an answer's header
CACHED_TENSORS = 8


class Body:
    """A body to send: a header and views of the caller's arrays. It can be sent several times.

    Attributes:
        nbytes: its length.
        joined: all of it, if it is small; else None.
        asks_first: whether the server should accept the head before a large array is copied.
    """

    __slots__ = ("_header", "_tensors", "asks_first", "joined", "nbytes")

    def __init__(self, header: bytes, tensors: Sequence[Flat]) -> None:
        self.nbytes = len(header) + sum([t.info.nbytes for t in tensors])
        self._header = header
        self._tensors = [t for t in tensors if t.info.nbytes]
        small = self.nbytes <= JOIN_BYTES
        self.joined = b"".join([header, *[t.data.data for t in self._tensors]]) if small else None
        self.asks_first = not small and any(t.is_copied for t in self._tensors)

    def slices(self, nbytes: int = SLICE_BYTES) -> Iterator[memoryview]:
        """The bytes of the body in order, in slices of at most `nbytes`."""
        for part in self._parts():
            for begin in range(0, part.nbytes, nbytes):
                yield part[begin : begin + nbytes]

    def _parts(self) -> Iterator[memoryview]:
        if self.joined is not None:
            yield memoryview(self.joined)
            return
        yield memoryview(self._header)
        for tensor in self._tensors:
            yield tensor.data.data


def encode(inputs: Mapping[str, object], params: Mapping[str, object]) -> Body:
    """The body of a call: its tensors, and its parameters as JSON in the metadata.

    Raises:
        InvalidInput: an input is not an array or has a dtype that the wire does not have, a
            parameter has no form in JSON, or the header exceeds its limits.
    """
    flats = {name: flatten(name, value) for name, value in inputs.items()}
    if len(flats) > wire.MAX_TENSORS or "__metadata__" in flats:
        raise InvalidInput(
            f"a call takes at most {wire.MAX_TENSORS} tensors, and none named __metadata__, "
            f"got {len(flats)}",
            field="inputs",
        )
    text = _params_json(params) if params else ""
    infos = tuple(flat.info for flat in flats.values())
    if len(text) <= CACHED_CHARS and len(infos) <= CACHED_TENSORS:
        header, names = _cached_header(infos, text)
    else:
        header, names = _header(infos, text)
    return Body(header, [flats[name] for name in names])


def _header(infos: tuple[wire.TensorInfo, ...], params: str) -> tuple[bytes, list[str]]:
    """The header of a body, and the names of its tensors in the order of their bytes."""
    placed = wire.lay_out(infos)
    try:
        "".join(info.name for info in placed).encode()
    except UnicodeEncodeError:  # a lone surrogate: Python makes it of an argument that is not UTF-8
        names = wire.brief([info.name for info in infos])
        raise InvalidInput(
            f"the names of tensors must be Unicode text, got {names}", field="inputs"
        ) from None
    header = wire.encode_header(placed, {wire.PARAMS_KEY: params} if params else None)
    wire.check_header(header[8:])
    return header, [info.name for info in placed]


# Calls with the same shapes and parameters follow each other: a header is made and read once.
_cached_header = functools.lru_cache(CACHED_HEADERS)(_header)
_cached_decoding = functools.lru_cache(CACHED_HEADERS)(wire.decode_header)


def json_body(value: object) -> Body:
    """A body of JSON.

    Raises:
        InvalidInput: the value has no form in JSON.
    """
    try:
        return Body(_BODY_JSON.encode(value).encode(), [])
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"the body must be JSON: {error}", field="body") from None


def decode(body: Bytes, kind: Kind[ArrayT]) -> dict[str, ArrayT]:
    """The tensors of a body by name, as views of it.

    Raises:
        InvalidInput: it is not a body of this format.
    """
    return decode_all(body, kind)[0]


def decode_all(body: Bytes, kind: Kind[ArrayT]) -> tuple[dict[str, ArrayT], Mapping[str, str]]:
    """The tensors of a body as `decode` returns them, and its metadata."""
    nbytes = wire.header_nbytes(body[:8].tobytes())
    if body.size < 8 + nbytes:
        raise InvalidInput(
            f"the body must hold {nbytes} bytes of header, got {body.size - 8}", field="body"
        )
    text = body[8 : 8 + nbytes].tobytes()
    decode_header = _cached_decoding if nbytes <= CACHED_CHARS else wire.decode_header
    header = decode_header(text)
    data = body[8 + nbytes :]
    if data.size != header.data_nbytes:
        raise InvalidInput(
            f"the body must hold {header.data_nbytes} bytes of tensors, got {data.size}",
            field="body",
        )
    tensors = {t.name: kind.build(data[t.begin : t.end], t) for t in header.tensors}
    return tensors, header.metadata


def _params_json(params: Mapping[str, object]) -> str:
    try:
        return _PARAM_JSON.encode(params)
    except (TypeError, ValueError, RecursionError):
        pass  # one of them has no form in JSON: which one?
    parts = []
    for name, value in params.items():
        try:
            parts.append(f"{json.dumps(name)}:{_PARAM_JSON.encode(value)}")
        except (TypeError, ValueError, RecursionError):
            raise InvalidInput(
                f"{name} must be made of booleans, finite numbers and lists of them, "
                f"got {wire.brief(value)}",
                field=name,
            ) from None
    return f"{{{','.join(parts)}}}"


def _plain(value: Any) -> Any:
    """A numpy scalar, an array, a range or another sequence as a value that JSON has."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return list(value)
    raise TypeError


_PARAM_JSON = json.JSONEncoder(allow_nan=False, default=_plain, separators=(",", ":"))
# Text is sent in UTF-8. Written as escapes, it could be three times as long, and a source that the
# server takes would come in a body that it refuses.
_BODY_JSON = json.JSONEncoder(
    allow_nan=False, ensure_ascii=False, default=_plain, separators=(",", ":")
)
