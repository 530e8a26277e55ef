"""The response with a file, or a range of it (RFC 9110, sections 13 and 14)."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping

from fastapi import Request, Response
from starlette.types import Receive, Scope, Send

from warpcall_service.http.problems import RangeNotSatisfiable
from warpcall_service.text import brief

PIECE_BYTES = 512 << 10  # read at once
RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")  # one range; several are answered with all bytes
UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
TAG = re.compile(r'(?:W/)?("[^"]*")')


class FileResponse(Response):
    """A file that a browser saves and never shows. The descriptor is closed at the end.

    Args:
        fd: of the file.
        begin, end: the bytes of the file to send.
    """

    def __init__(
        self,
        fd: int,
        begin: int,
        end: int,
        status: int,
        headers: Mapping[str, str],
        media_type: str,
    ) -> None:
        self._fd = fd
        self._begin = begin
        self._end = end
        self.status_code = status
        self.media_type = media_type
        self.background = None
        self.init_headers({**headers, "content-length": str(end - begin)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        try:
            start = {"status": self.status_code, "headers": self.raw_headers}
            await send({"type": "http.response.start", **start})
            at = self._end if scope["method"] == "HEAD" else self._begin
            while at < self._end:
                nbytes = min(PIECE_BYTES, self._end - at)
                piece = await asyncio.to_thread(os.pread, self._fd, nbytes, at)
                if not piece:  # the file is shorter than its row says
                    raise OSError(f"a file ended after {at} bytes, before {self._end}")
                at += len(piece)
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            os.close(self._fd)


def file_response(
    request: Request, fd: int, *, name: str, nbytes: int, sha256: str, media_type: str
) -> Response:
    """The response to a request for a file, by its Range, If-Range and If-None-Match headers.

    Args:
        fd: of the file. The response closes it.
        name: for the file that a browser saves. Characters other than letters, digits, ".", "_"
            and "-" are replaced.
        nbytes: size of the file.
        sha256: of the file, which is its ETag.

    Raises:
        RangeNotSatisfiable: the range begins behind the end of the file.
    """
    tag = f'"{sha256}"'
    headers = {
        "etag": tag,
        "accept-ranges": "bytes",
        "cache-control": "private, no-cache",
        "content-disposition": f'attachment; filename="{UNSAFE.sub("-", name)}"',
        # For a reader who opens the saved file by the server's address all the same.
        "content-security-policy": "default-src 'none'; sandbox",
    }
    if _matches(request.headers.get("if-none-match", ""), tag):
        os.close(fd)
        return Response(status_code=304, headers=headers)
    given = request.headers.get("range", "")
    if_range = request.headers.get("if-range", tag)
    try:
        found = _range(given, nbytes) if if_range == tag else None
    except BaseException:
        os.close(fd)
        raise
    if found is None:
        return FileResponse(fd, 0, nbytes, 200, headers, media_type)
    begin, end = found
    headers["content-range"] = f"bytes {begin}-{end - 1}/{nbytes}"
    return FileResponse(fd, begin, end, 206, headers, media_type)


def _matches(given: str, tag: str) -> bool:
    return given.strip() == "*" or tag in TAG.findall(given)


def _range(given: str, nbytes: int) -> tuple[int, int] | None:
    """The begin and end of one range; None if all bytes are to be sent.

    A server may ignore a range that it does not understand.
    """
    found = RANGE.fullmatch(given.replace(" ", ""))
    if found is None or found[0] == "bytes=-":
        return None
    if not found[1]:  # the last so many bytes
        begin, end = max(0, nbytes - int(found[2])), nbytes
    else:
        begin = int(found[1])
        end = nbytes if not found[2] else min(nbytes, int(found[2]) + 1)
        if found[2] and int(found[2]) < begin:
            return None
    if begin >= end:
        raise RangeNotSatisfiable(brief(given), nbytes)
    return begin, end
