"""How many of the bytes at hand belong to the request that is being read.

httptools cannot be paused: it parses everything it is given. A read of 32 KiB can hold 1,800 small
requests, and parsing them makes an object of some KB for each, before the first one is answered.
So the parser is given one request at a time, and the bytes behind it wait until it is answered.

The parser alone decides what a request is. This class follows what the parser reports, and only
chooses where to cut the bytes. If it cuts too early, the parser is called once more than needed. It
cannot cut too late: a head ends at an empty line, which the parser accepts as CRLF only, and the
length of a body or of a chunk is taken from the same bytes that the parser read it from.
"""

from __future__ import annotations

import re

HEAD_END = b"\r\n\r\n"
MAX_SIZE_LINE = 18  # bytes kept of the line with a chunk's size: 16 digits and CRLF

_SIZE = re.compile(rb"[0-9A-Fa-f]+")


class Framing:
    """Follows one connection's requests, each from the first byte of its head to its last byte.

    Attributes:
        in_head: whether the next byte belongs to a head.
        complete: whether the last request that began was read to its end.
    """

    def __init__(self) -> None:
        self.in_head = True
        self.complete = True
        self._head_tail = b""  # the last bytes of an unfinished head: its end may be split
        self._left: int | None = None  # bytes of the body to come; None if it is chunked
        self._chunk_left = 0  # bytes of the chunk to come, with the CRLF behind it
        self._line = b""  # the first bytes of the line that was cut last
        self._line_open = False  # whether more of it is to come

    def begin(self) -> None:
        """The parser has found the first byte of a request."""
        self.complete = False

    def enter_body(self, headers: list[tuple[bytes, bytes]]) -> None:
        """The parser has found the end of the head; names in `headers` are in lower case."""
        self.in_head = False
        self._head_tail = b""
        self._left = None
        self._chunk_left = 0
        self._line_open = False
        for name, value in headers:
            if name == b"content-length":
                self._left = int(value)

    def enter_chunk(self) -> None:
        """The parser has read the line with the size of a chunk."""
        size = _SIZE.match(self._line)
        nbytes = int(size[0], 16) if size else 0
        self._chunk_left = nbytes and nbytes + 2

    def read(self, nbytes: int) -> None:
        """The parser has read so many bytes of the body itself."""
        if self._left is not None:
            self._left -= nbytes

    def end(self) -> None:
        """The parser has found the end of the request."""
        self.in_head = self.complete = True

    def cut(self, data: bytes, at: int) -> int:
        """The end of what to give the parser of `data`, which it has up to `at`."""
        if self.in_head:
            return self._cut_head(data, at)
        if self._left:
            return min(len(data), at + self._left)
        return self._cut_chunk(data, at)

    def _cut_head(self, data: bytes, at: int) -> int:
        tail, self._head_tail = self._head_tail, b""
        if tail:
            found = (tail + data[at : at + 3]).find(HEAD_END)
            if found >= 0:
                return at + found + len(HEAD_END) - len(tail)
        found = data.find(HEAD_END, at)
        if found >= 0:
            return found + len(HEAD_END)
        self._head_tail = (tail + data[max(at, len(data) - 3) :])[-3:]
        return len(data)

    def _cut_chunk(self, data: bytes, at: int) -> int:
        """A chunk with the CRLF behind it; else one line: of a chunk's size, or a trailer."""
        if self._chunk_left:
            end = min(len(data), at + self._chunk_left)
            self._chunk_left -= end - at
            return end
        if not self._line_open:
            self._line = b""
        newline = data.find(b"\n", at)
        self._line_open = newline < 0
        end = len(data) if self._line_open else newline + 1
        self._line = (self._line + data[at : min(end, at + MAX_SIZE_LINE)])[:MAX_SIZE_LINE]
        return end
