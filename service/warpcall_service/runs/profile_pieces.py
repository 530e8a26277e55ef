"""Joins the pieces of the files of profiles that a job's process sends, within the limits of its task."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from warpcall_service.runs.events import ProfileMade
from warpcall_service.runs.messages import PIECE_BYTES, PROFILE_FILES, Task


class PieceRefused(Exception):
    """A piece that an honest process does not send. The message says why."""


class ProfilePieces:
    """The files of the profiles of one run. Each that the task asks for may come once."""

    def __init__(self, task: Task) -> None:
        wanted = task.get("profile")
        cases = wanted["cases"] if wanted is not None else []
        files = PROFILE_FILES[wanted["profiler"]] if wanted is not None else ()
        self._left = {
            (position, name, file)
            for position, _, names in cases
            for name in names
            for file in files
        }
        self._most = wanted["most_bytes"] if wanted is not None else 0
        self._of: tuple[int, str, str] | None = None  # the file whose next piece must come
        self._content = bytearray()

    def take(self, piece: Mapping[str, Any]) -> ProfileMade | None:
        """Take the next piece; returns the file with its last one.

        Raises:
            PieceRefused: the file was not asked for, is too large, or its pieces have other sizes.
        """
        of = piece["position"], piece["implementation"], piece["file"]
        if of not in self._left or self._of not in (None, of):
            raise PieceRefused("a profile that was not asked, or was sent before")
        try:
            data = base64.b64decode(piece["data"], validate=True)
        except binascii.Error:
            raise PieceRefused("a profile that is not in base64") from None
        if len(data) > PIECE_BYTES or (len(data) < PIECE_BYTES and not piece["last"]):
            raise PieceRefused(f"a piece of a profile of {len(data)} bytes")
        if len(self._content) + len(data) > self._most:
            raise PieceRefused(f"a profile of more than {self._most} bytes")
        self._of = of
        self._content += data
        if not piece["last"]:
            return None
        self._left.remove(of)
        made = ProfileMade(*of, b"" if piece["error"] else bytes(self._content), piece["error"])
        self._of = None
        self._content.clear()
        return made
