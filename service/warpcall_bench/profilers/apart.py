"""Has the profile of code of users made in an upload process, within limits of time and size."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from typing import Any

from warpcall_bench.profilers.messages import ApartRequest, Made
from warpcall_bench.profilers.program import Lease
from warpcall_bench.runs.messages import PROFILE_FILES, Task
from warpcall_bench.runs.peers import Peer, PeerStarter
from warpcall_service.lanes.messages import LENGTH, frame
from warpcall_service.text import MAX_ERROR_CHARS

MAX_FRAME_BYTES = 16 << 10
LATER = 1.5  # its own limits end a profile first; this factor is for a process that ignores them


class _Failed(Exception):
    """There is no profile. The message says why, for readers."""


def make(start: PeerStarter, task: Task, position: int, key: str, name: str, lease: Lease) -> Made:
    """Profile an implementation in one case of a job. Its processes have ended afterwards.

    Args:
        key: of the case.
        lease: entered while the process uses the device.
    """
    try:
        peer = start()
    except (RuntimeError, OSError) as error:
        return Made({}, str(error))
    uploads = [one for one in task["uploads"] if one["name"] == name]
    request: ApartRequest = {
        "task": {**task, "uploads": uploads},
        "position": position,
        "key": key,
        "implementation": name,
    }
    try:
        return _Following(peer, task, lease).made(request)
    except _Failed as failed:
        return Made({}, str(failed))
    finally:
        peer.end()


class _Following:
    """Follows the messages of one process, each of which may be anything."""

    def __init__(self, peer: Peer, task: Task, lease: Lease) -> None:
        wanted = task["profile"]
        assert wanted is not None
        self._peer = peer
        self._lease = lease
        self._names = PROFILE_FILES[wanted["profiler"]]
        self._most_bytes = wanted["most_bytes"]
        self._limit_s, self._call_s = wanted["limit_s"], wanted["call_s"]
        self._until = time.monotonic() + LATER * self._limit_s

    def made(self, request: ApartRequest) -> Made:
        """The profile that the process makes for a request.

        Raises:
            _Failed: it ended, was too late, or sent something else.
        """
        self._peer.sock.settimeout(LATER * self._limit_s)
        try:
            self._peer.sock.sendall(frame(request))
        except OSError:
            raise self._ended() from None
        files: dict[str, bytes] = {}
        late = f"its profile was not made within {self._limit_s:g} s"
        while True:
            match self._read(self._until, late):
                case {"want": True}:
                    self._lend()
                case {"file": str(file), "nbytes": int(nbytes)} if file in self._names:
                    if not 0 <= nbytes <= self._most_bytes:
                        raise _Failed(
                            f"a file of it has {nbytes} bytes, at most {self._most_bytes} are kept"
                        )
                    files[file] = self._read_bytes(nbytes, self._until, late)
                case {"error": str(error)}:
                    return Made({}, error[:MAX_ERROR_CHARS] or "it failed")
                case {"done": True} if {*files} == {*self._names}:
                    return Made(files, "")
                case _:
                    raise _Failed("its process sent what is no profile")

    def _lend(self) -> None:
        """Let the process use the device; if it keeps it for too long, end it before others do."""
        begin = time.monotonic()
        with self._lease():
            now = time.monotonic()
            self._until += now - begin
            try:
                with contextlib.suppress(OSError):  # reading says how it ended
                    self._peer.sock.sendall(frame({"go": True}))
                until = min(self._until, now + self._call_s)
                late = f"its call was not profiled within {self._call_s:g} s"
                if self._read(until, late) != {"release": True}:
                    raise _Failed("its process sent what is no profile")
            except _Failed:
                self._peer.end()
                raise

    def _read(self, until: float, late: str) -> Any:
        (nbytes,) = LENGTH.unpack(self._read_bytes(LENGTH.size, until, late))
        if nbytes > MAX_FRAME_BYTES:
            raise _Failed("its process sent what is no profile")
        try:
            return json.loads(self._read_bytes(nbytes, until, late))
        except (ValueError, RecursionError):
            raise _Failed("its process sent what is no profile") from None

    def _read_bytes(self, nbytes: int, until: float, late: str) -> bytes:
        sock: socket.socket = self._peer.sock
        parts = bytearray()
        while len(parts) < nbytes:
            sock.settimeout(max(0.001, until - time.monotonic()))
            try:
                part = sock.recv(min(nbytes - len(parts), 1 << 20))
            except TimeoutError:
                raise _Failed(late) from None
            except OSError:
                part = b""
            if not part:
                raise self._ended()
            parts += part
        return bytes(parts)

    def _ended(self) -> _Failed:
        how = self._peer.end()
        return _Failed(f"its process ended early: {how}" if how else "its process ended early")
