"""How many of the bytes at hand belong to the request that is being read.

httptools cannot be paused: it parses everything it is given. A read of 32 KiB can hold 1,800 small
requests, and parsing them makes an object of some KB for each, before the first one is answered.
So the parser is given one request at a time, and the bytes behind it wait until it is answered.

The parser alone decides what a request is, and refuses what is none. This class follows what the
parser reports, and only chooses where to cut the bytes. It cannot cut too late: a head ends at an
empty line, which the parser accepts as CRLF only, and lengths are read from the same bytes by the
same rules.
"""

from __future__ import annotations

import re

HEAD_END = b"\r\n\r\n"
EMPTY_LINES = b"\r\n"
MAX_LINE = 32  # bytes kept of an unfinished line with a chunk's size, which has 16 digits at most

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
        self._line = b""  # the beginning of an unfinished line with a chunk's size
        self._in_trailers = False

    def begin(self) -> None:
        """The parser has found the first byte of a request."""
        self.complete = False

    def enter_body(self, headers: list[tuple[bytes, bytes]]) -> None:
        """The parser has found the end of the head; names in `headers` are in lower case."""
        self.in_head = False
        self._head_tail = b""
        self._left = None
        self._chunk_left = 0
        self._line = b""
        self._in_trailers = False
        for name, value in headers:
            if name == b"content-length":
                self._left = int(value)

    def read(self, nbytes: int) -> None:
        """The parser has read so many bytes of the body itself."""
        if self._left is not None:
            self._left -= nbytes

    def end(self) -> None:
        """The parser has found the end of the request."""
        self.in_head = self.complete = True

    def cut(self, data: bytes, at: int) -> int:
        """The end of what to give the parser of `data`, which it has up to `at`."""
        if self.in_head or self._in_trailers:
            return self._cut_head(data, at)
        if self._left:
            return min(len(data), at + self._left)
        return self._cut_chunks(data, at)

    def _cut_head(self, data: bytes, at: int) -> int:
        """The end of a head, or of the trailers: an empty line."""
        tail, self._head_tail = self._head_tail, b""
        if self.complete and data[at] in EMPTY_LINES:  # which may stand before a head
            at = len(data) - len(data[at:].lstrip(EMPTY_LINES))
            if at == len(data):
                return at
        if tail:
            found = (tail + data[at : at + 3]).find(HEAD_END)
            if found >= 0:
                return at + found + len(HEAD_END) - len(tail)
        found = data.find(HEAD_END, at)
        if found >= 0:
            return found + len(HEAD_END)
        self._head_tail = (tail + data[max(at, len(data) - 3) :])[-3:]
        return len(data)

    def _cut_chunks(self, data: bytes, at: int) -> int:
        """The end of the chunks, or of the line that says that there are no more."""
        at += self._chunk_left
        while at < len(data):
            newline = data.find(b"\n", at)
            if newline < 0:
                self._line = (self._line + data[at : at + MAX_LINE])[:MAX_LINE]
                break
            if self._line:
                size = _SIZE.match(self._line + data[at : min(newline, at + MAX_LINE)])
                self._line = b""
            else:
                size = _SIZE.match(data, at)
            at = newline + 1
            nbytes = int(size[0], 16) if size else 0
            if not nbytes:  # the last chunk, or what the parser refuses
                self._in_trailers, self._head_tail, self._chunk_left = True, b"\r\n", 0
                return at
            at += nbytes + 2
        self._chunk_left = max(0, at - len(data))
        return len(data)
