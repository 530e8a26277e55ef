"""Messages between the process that measures and a process that runs uploaded code.

Each is JSON after its length in four bytes, at most MOST_BYTES of it unless it has a launch plan. Whatever the other side sends
is checked before it is used, because uploaded code may write to its socket.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any

from warpcall_kernels.execution.printed import Printed

LENGTH = struct.Struct("<I")
MOST_BYTES = 1 << 20


class Ended(Exception):
    """The other process has ended, or sent what is no message."""


class TooLate(Exception):
    """The other process did not answer in time."""


def send(sock: socket.socket, message: dict[str, Any]) -> None:
    """Send a message.

    Raises:
        Ended: nobody reads any more.
    """
    text = json.dumps(message, separators=(",", ":")).encode()
    try:
        sock.sendall(LENGTH.pack(len(text)) + text)
    except OSError as error:
        raise Ended from error


def receive(
    sock: socket.socket,
    limit_s: float | None = None,
    printed: Printed | None = None,
    most_bytes: int = MOST_BYTES,
) -> dict[str, Any]:
    """Receive a message.

    Args:
        limit_s: seconds in which the whole message must come; None means any time.
        printed: what the other process prints, which is read meanwhile.
        most_bytes: that the message may have.

    Raises:
        Ended: the other side has ended, or sent something else.
        TooLate: it did not come in time.
    """
    ends = None if limit_s is None else time.monotonic() + limit_s
    (nbytes,) = LENGTH.unpack(_read(sock, LENGTH.size, ends, printed))
    if nbytes > most_bytes:
        raise Ended
    try:
        message = json.loads(_read(sock, nbytes, ends, printed))
    except (ValueError, RecursionError) as error:
        raise Ended from error
    if not isinstance(message, dict):
        raise Ended
    return message


def _read(sock: socket.socket, count: int, ends: float | None, printed: Printed | None) -> bytes:
    parts = bytearray()
    try:
        while len(parts) < count:
            left_s = None if ends is None else ends - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise TooLate
            if printed is not None and not printed.wait(sock, left_s):
                continue
            sock.settimeout(left_s)
            part = sock.recv(count - len(parts))
            if not part:
                raise Ended
            parts += part
    except TimeoutError as error:
        raise TooLate from error
    except OSError as error:
        raise Ended from error
    finally:
        sock.settimeout(None)
    return bytes(parts)
