"""A call as multipart/form-data: `curl -F x=@photo.npy -F dims=2,0,1`.

A part with a file name holds tensors, any other part is a parameter. The name of the part is the
name of the input for a .npy file, and for a .safetensors file of one tensor. The tensors of a
larger .safetensors file have their own names. The parser's data are copied to aligned places in the
arena.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath
from typing import Any

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, MultipartState, parse_options_header

from warpcall import wire
from warpcall.errors import InvalidInput, UnsupportedMedia
from warpcall.wire import TensorInfo
from warpcall_service.formats import npy
from warpcall_service.formats.params import Params, from_json, from_text, merge
from warpcall_service.lanes.free_ranges import round_up
from warpcall_service.lanes.plan import ALIGNMENT
from warpcall_service.text import brief

MAX_PARTS = 128
MAX_TEXT_BYTES = 64 << 10  # of one parameter
# The parser handles the bytes around each boundary one by one, in Python. A file may contain bytes
# that look like a boundary, so that there may be more of them than parts.
MAX_BOUNDARIES = 1024
# A part takes the parser about 0.2 ms. Data with more boundaries than this are fed in small pieces,
# so that the event loop serves other requests in between.
MANY_PARTS = 8
PIECE_BYTES = 2 << 10
MAX_PADDING = 64  # spaces and tabs between a boundary and the end of its line


class FormParser:
    """Parses a form while it is received; at its end it has the tensors and parameters.

    Args:
        boundary: from the Content-Type.
        memory: receives the tensors' bytes; at least as long as the body.
        op: the catalog's entry, which declares the kind of each parameter.

    Attributes:
        tensors: the inputs, with their offsets in `memory`.
        params: the parameters of the form.
    """

    def __init__(self, boundary: bytes, memory: memoryview, op: Mapping[str, Any]) -> None:
        self.tensors: list[TensorInfo] = []
        self.params: Params = {}
        self._memory = memory
        self._used = 0
        self._op = op
        self._parts = 0
        self._part: _File | _Param | None = None
        self._headers: dict[bytes, bytes] = {}
        self._name = self._value = b""
        self._ended = False
        self._boundaries = self._padding = 0
        self._tail = b""  # the last bytes of the piece before
        self._delimiter = b"\r\n--" + boundary
        self._padded = re.compile(re.escape(self._delimiter) + rb"[ \t]{%d}" % (MAX_PADDING + 1))
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._on_part_begin,
                "on_header_field": self._on_header_field,
                "on_header_value": self._on_header_value,
                "on_header_end": self._on_header_end,
                "on_headers_finished": self._on_headers_finished,
                "on_part_data": self._on_part_data,
                "on_part_end": self._on_part_end,
                "on_end": self._on_end,
            },
        )

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Split the next bytes into pieces for `feed`; other requests can run between them."""
        many = data.count(self._delimiter) > MANY_PARTS
        step = PIECE_BYTES if many else len(data)
        for begin in range(0, len(data), step):
            yield data[begin : begin + step]

    def feed(self, data: bytes) -> None:
        """Parse the next bytes of the body.

        Raises:
            InvalidInput: the body is not a form, or a part cannot be read.
            UnsupportedMedia: a file is neither .npy nor .safetensors.
        """
        self._check_boundaries(data)
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise InvalidInput(f"the body must be a form: {error}", field="body") from None
        self._check_padding(data)

    def finish(self) -> None:
        """Raise InvalidInput if the form has not ended."""
        if not self._ended:
            raise InvalidInput("the form must end with its boundary, it does not", field="body")

    def _check_boundaries(self, data: bytes) -> None:
        """Refuse bytes that the parser would be slow to parse."""
        overlap = len(self._delimiter) - 1
        split = (self._tail + data[:overlap]).count(
            self._delimiter
        )  # that begin in the piece before
        self._tail = (self._tail + data[-overlap:])[-overlap:]
        found = data.count(self._delimiter) + split
        if found:
            self._boundaries += found
            if self._boundaries > MAX_BOUNDARIES:
                raise InvalidInput(
                    f"a form must hold its boundary at most {MAX_BOUNDARIES} times", field="body"
                )
            if self._padded.search(data):
                raise _too_much_padding()

    def _check_padding(self, data: bytes) -> None:
        """Refuse long padding that arrives in several pieces, of which `data` was the last."""
        if self._parser.state == MultipartState.BOUNDARY_PADDING:
            self._padding += len(data) - len(data.rstrip(b" \t"))
            if self._padding > MAX_PADDING:
                raise _too_much_padding()

    # Called by the parser

    def _on_part_begin(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise InvalidInput(f"a form must have at most {MAX_PARTS} parts", field="body")
        self._headers = {}

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header_end(self) -> None:
        self._headers[self._name.lower()] = self._value
        self._name = self._value = b""

    def _on_headers_finished(self) -> None:
        kind, options = parse_options_header(self._headers.get(b"content-disposition"))
        field = options.get(b"name", b"").decode(errors="replace")
        if kind != b"form-data" or not field:
            raise InvalidInput(
                'every part must have the header Content-Disposition: form-data; name="..."',
                field="body",
            )
        if b"filename" not in options:
            self._part = _Param(field)
            return
        filename = options[b"filename"].decode(errors="replace")
        media = self._headers.get(b"content-type", b"").partition(b";")[0].strip().decode("latin-1")
        suffix = PurePath(filename).suffix.lower()
        if suffix == ".npy" or media == npy.MEDIA_TYPE:
            self._part = _File(field, npy.header_nbytes, self._add_npy)
        elif suffix == ".safetensors" or media == wire.MEDIA_TYPE:
            self._part = _File(field, _safetensors_header_nbytes, self._add_safetensors)
        else:
            raise UnsupportedMedia(
                f"{field} must be a .npy or a .safetensors file, got {brief(filename)} of type "
                f"{brief(media)}; pickles, .pt and .npz files are never read",
                field=field,
            )

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._part is not None:
            self._part.feed(memoryview(data)[start:end])

    def _on_part_end(self) -> None:
        part, self._part = self._part, None
        if isinstance(part, _File):
            part.check_whole()
        elif part is not None:
            self._add_param(part.field, bytes(part.text))

    def _on_end(self) -> None:
        self._ended = True

    # Called for a part

    def _add_npy(self, field: str, header: bytes) -> memoryview:
        """Add the tensor of a .npy header; returns the memory for its bytes."""
        array = npy.decode_header(header, field)
        begin, memory = self._reserve(array.nbytes, field)
        self._add(
            TensorInfo(field, array.dtype, array.shape, begin, begin + array.nbytes, array.strides)
        )
        return memory

    def _add_safetensors(self, field: str, header: bytes) -> memoryview:
        """Add the contents of a safetensors header; returns the memory for the data."""
        decoded = wire.decode_header(header[8:])
        begin, memory = self._reserve(decoded.data_nbytes, field)
        for t in decoded.tensors:
            name = field if len(decoded.tensors) == 1 else t.name
            self._add(TensorInfo(name, t.dtype, t.shape, begin + t.begin, begin + t.end))
        if wire.PARAMS_KEY in decoded.metadata:
            given = from_json(decoded.metadata[wire.PARAMS_KEY], wire.PARAMS_KEY)
            self.params = merge(self.params, given)
        return memory

    def _add_param(self, name: str, text: bytes) -> None:
        try:
            given = from_text([(name, text.decode())], self._op)
        except UnicodeDecodeError:
            raise InvalidInput(f"{name} must be UTF-8, got {brief(text)}", field=name) from None
        self.params = merge(self.params, given)

    def _add(self, tensor: TensorInfo) -> None:
        if any(t.name == tensor.name for t in self.tensors):
            raise InvalidInput(
                f"{tensor.name} must be given once, it came twice", field=tensor.name
            )
        self.tensors.append(tensor)

    def _reserve(self, nbytes: int, field: str) -> tuple[int, memoryview]:
        """The offset of the next `nbytes` bytes of `memory`, and these bytes."""
        # The boundary and headers of a part are longer than ALIGNMENT, so that this always fits.
        begin = round_up(self._used, ALIGNMENT)
        if begin + nbytes > len(self._memory):
            raise InvalidInput(
                f"{field} must fit in the body, got {nbytes} bytes by its header", field=field
            )
        self._used = begin + nbytes
        return begin, self._memory[begin : begin + nbytes]


def _too_much_padding() -> InvalidInput:
    return InvalidInput(
        f"at most {MAX_PADDING} spaces may follow the boundary of a form", field="body"
    )


class _Param:
    """A part that is a parameter."""

    def __init__(self, field: str) -> None:
        self.field = field
        self.text = bytearray()

    def feed(self, data: memoryview) -> None:
        self.text += data
        if len(self.text) > MAX_TEXT_BYTES:
            raise InvalidInput(
                f"{self.field} must have at most {MAX_TEXT_BYTES} bytes; a tensor must come as a "
                "file, with a file name",
                field=self.field,
            )


class _File:
    """A part that is a file: a header, which declares the length of the data, and the data.

    Args:
        header_nbytes: the length of the header; None if its first bytes do not tell yet.
        add: adds the tensors of a header to the form; returns the memory for the data.
    """

    def __init__(
        self,
        field: str,
        header_nbytes: Callable[[bytes, str], int | None],
        add: Callable[[str, bytes], memoryview],
    ) -> None:
        self._field = field
        self._header_nbytes = header_nbytes
        self._add = add
        self._header = b""
        self._free: memoryview | None = None  # memory for the rest of the data, after the header

    def feed(self, data: memoryview) -> None:
        if self._free is None:
            self._header += data
            nbytes = self._header_nbytes(self._header, self._field)
            if nbytes is None or len(self._header) < nbytes:
                return
            self._free = self._add(self._field, self._header[:nbytes])
            data = memoryview(self._header)[nbytes:]
        if len(data) > len(self._free):
            raise InvalidInput(
                f"{self._field} must end with its data, {len(data) - len(self._free)} bytes or "
                "more follow",
                field=self._field,
            )
        self._free[: len(data)] = data
        self._free = self._free[len(data) :]

    def check_whole(self) -> None:
        """Raise InvalidInput if some of the file is missing."""
        if self._free is None or self._free:
            missing = "its header" if self._free is None else f"{len(self._free)} bytes of data"
            raise InvalidInput(
                f"{self._field} must be a whole file, {missing} did not come", field=self._field
            )


def _safetensors_header_nbytes(start: bytes, field: str) -> int | None:
    return 8 + wire.header_nbytes(start) if len(start) >= 8 else None
