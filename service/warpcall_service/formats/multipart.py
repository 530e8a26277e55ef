"""A call as multipart/form-data: `curl -F x=@photo.npy -F dims=2,0,1`.

A part with a file name is a tensor, any other is a parameter. A .npy file is the input that its
part names; so is a .safetensors file of one tensor, while one of several brings their own names.
The files' data go from the parser straight to aligned places in the arena.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath
from typing import Any, Protocol

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, MultipartState, parse_options_header

from warpcall import wire
from warpcall.errors import InvalidInput, UnsupportedMedia
from warpcall_service.formats import npy
from warpcall_service.formats.params import Params, from_json, from_text, merge
from warpcall_service.lanes.plan import InputTensor
from warpcall_service.text import brief

MAX_PARTS = 128
MAX_TEXT_BYTES = 64 << 10  # of one parameter
# The parser looks at these byte by byte, in Python. Boundaries that end no part may be in a file.
MAX_BOUNDARIES = 1024
# Parts that are taken apart without a break, some 0.2 ms each; of a piece with more, this many bytes.
MANY_PARTS = 8
PIECE_BYTES = 2 << 10
MAX_PADDING = 64  # spaces and tabs between a boundary and the end of its line
ALIGNMENT = 64  # the framing of a part is longer than this, so aligned data never outgrow the body


class Form:
    """Takes a form apart as it comes in; afterwards holds its tensors and parameters.

    Args:
        boundary: from the Content-Type.
        memory: where the tensors' bytes go, at least as long as the body.
        op: the catalog's entry, which says of what kind each parameter is.

    Attributes:
        tensors: the inputs, where they lie in `memory`.
        params: the parameters given.
    """

    def __init__(self, boundary: bytes, memory: memoryview, op: Mapping[str, Any]) -> None:
        self.tensors: list[InputTensor] = []
        self.params: Params = {}
        self._memory = memory
        self._used = 0
        self._op = op
        self._parts = 0
        self._part: _Part | None = None
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
        """The next bytes of the body in pieces to `feed`, between which others may have their turn."""
        many = data.count(self._delimiter) > MANY_PARTS
        step = PIECE_BYTES if many else len(data)
        for begin in range(0, len(data), step):
            yield data[begin : begin + step]

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the body.

        Raises:
            InvalidInput: not a form, or a part that cannot be read.
            UnsupportedMedia: a file that is neither .npy nor .safetensors.
        """
        self._check_boundaries(data)
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise InvalidInput(f"the body must be a form: {error}", field="body") from None
        self._check_padding(data)

    def finish(self) -> None:
        """Check that the form came to its end."""
        if not self._ended:
            raise InvalidInput("the form must end with its boundary, it does not", field="body")

    def _check_boundaries(self, data: bytes) -> None:
        """Refuse, before the parser sees them, bytes that it would be slow to take apart."""
        edge = len(self._delimiter) - 1
        split = (self._tail + data[:edge]).count(self._delimiter)  # begun in the piece before
        self._tail = (self._tail + data[-edge:])[-edge:]
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
        """The same for padding that comes in several pieces, of which `data` was the last."""
        if self._parser.state == MultipartState.BOUNDARY_PADDING:
            self._padding += len(data) - len(data.rstrip(b" \t"))
            if self._padding > MAX_PADDING:
                raise _too_much_padding()

    # What the parts call

    def place(self, nbytes: int, field: str) -> int:
        """Where the next `nbytes` bytes of data go."""
        begin = -(-self._used // ALIGNMENT) * ALIGNMENT
        if begin + nbytes > len(self._memory):
            raise InvalidInput(
                f"{field} must fit in the body, got {nbytes} bytes by its header", field=field
            )
        self._used = begin + nbytes
        return begin

    def write(self, at: int, data: memoryview) -> None:
        """Copy data to its place."""
        self._memory[at : at + len(data)] = data

    def open_npy(self, field: str, header: bytes) -> tuple[int, int]:
        """Note the array of a .npy header; returns where its bytes go, and how many they are."""
        array = npy.decode_header(header, field)
        begin = self.place(array.nbytes, field)
        self._add(InputTensor(field, array.dtype, array.shape, begin, array.strides))
        return begin, array.nbytes

    def open_safetensors(self, field: str, header: bytes) -> tuple[int, int]:
        """Note the tensors and parameters of a safetensors header, as `open_npy` does."""
        decoded = wire.decode_header(header[8:])
        begin = self.place(decoded.data_nbytes, field)
        for t in decoded.tensors:
            name = field if len(decoded.tensors) == 1 else t.name
            self._add(InputTensor(name, t.dtype, t.shape, begin + t.begin))
        if wire.PARAMS_KEY in decoded.metadata:
            given = from_json(decoded.metadata[wire.PARAMS_KEY], wire.PARAMS_KEY)
            self.params = merge(self.params, given)
        return begin, decoded.data_nbytes

    def set_param(self, name: str, text: bytes) -> None:
        """Note a parameter."""
        try:
            given = from_text([(name, text.decode())], self._op)
        except UnicodeDecodeError:
            raise InvalidInput(f"{name} must be UTF-8, got {brief(text)}", field=name) from None
        self.params = merge(self.params, given)

    def _add(self, tensor: InputTensor) -> None:
        if any(t.name == tensor.name for t in self.tensors):
            raise InvalidInput(
                f"{tensor.name} must be given once, it came twice", field=tensor.name
            )
        self.tensors.append(tensor)

    # What the parser calls

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
            self._part = _Text(self, field)
            return
        filename = options[b"filename"].decode(errors="replace")
        media = self._headers.get(b"content-type", b"").partition(b";")[0].strip().decode("latin-1")
        suffix = PurePath(filename).suffix.lower()
        if suffix == ".npy" or media == npy.MEDIA_TYPE:
            self._part = _File(self, field, npy.header_nbytes, self.open_npy)
        elif suffix == ".safetensors" or media == wire.MEDIA_TYPE:
            self._part = _File(self, field, _safetensors_header_nbytes, self.open_safetensors)
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
        if self._part is not None:
            self._part.end()
            self._part = None

    def _on_end(self) -> None:
        self._ended = True


def _too_much_padding() -> InvalidInput:
    return InvalidInput(
        f"at most {MAX_PADDING} spaces may follow the boundary of a form", field="body"
    )


class _Part(Protocol):
    def feed(self, data: memoryview) -> None: ...

    def end(self) -> None: ...


class _Text:
    """A part that is a parameter."""

    def __init__(self, form: Form, field: str) -> None:
        self._form = form
        self._field = field
        self._text = bytearray()

    def feed(self, data: memoryview) -> None:
        self._text += data
        if len(self._text) > MAX_TEXT_BYTES:
            raise InvalidInput(
                f"{self._field} must have at most {MAX_TEXT_BYTES} bytes; a tensor must come as a "
                "file, with a file name",
                field=self._field,
            )

    def end(self) -> None:
        self._form.set_param(self._field, bytes(self._text))


class _File:
    """A part that is a header, which says how many bytes of data follow, and those."""

    def __init__(
        self,
        form: Form,
        field: str,
        header_nbytes: Callable[[bytes, str], int | None],
        open_: Callable[[str, bytes], tuple[int, int]],
    ) -> None:
        self._form = form
        self._field = field
        self._header_nbytes = header_nbytes
        self._open = open_
        self._start: bytes | None = b""  # None once the header is read
        self._at = self._left = 0

    def feed(self, data: memoryview) -> None:
        if self._start is not None:
            self._start += data
            nbytes = self._header_nbytes(self._start, self._field)
            if nbytes is None or len(self._start) < nbytes:
                return
            data = memoryview(self._start)[nbytes:]
            self._at, self._left = self._open(self._field, self._start[:nbytes])
            self._start = None
        if len(data) > self._left:
            raise InvalidInput(
                f"{self._field} must end with its data, {len(data) - self._left} bytes or more "
                "follow",
                field=self._field,
            )
        self._form.write(self._at, data)
        self._at += len(data)
        self._left -= len(data)

    def end(self) -> None:
        if self._start is not None or self._left:
            missing = "its header" if self._start is not None else f"{self._left} bytes of data"
            raise InvalidInput(
                f"{self._field} must be a whole file, {missing} did not come", field=self._field
            )


def _safetensors_header_nbytes(start: bytes, field: str) -> int | None:
    return 8 + wire.header_nbytes(start) if len(start) >= 8 else None
