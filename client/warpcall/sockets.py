"""Sockets that large bodies go through: how they are set up, how much they are given at once.

On TCP, whole segments: the short segment that any other size ends with makes the system's sending
dearer. On loopback, whose segments have 65,483 bytes, 64 MB in slices of 16 segments took their
sender 10 ms, in slices of 256 KiB 18, of 512 KiB 10 or 18, of 1 MiB 14; larger ones leave the
cache. On Unix sockets all of these took the same time, but the room for what the other side has not
yet read matters, 208 KiB unless it is asked for more: with 2 MiB, 1 MB there and back took 0.20 ms
instead of 0.48, and 64 MB 18 instead of 23.
"""

from __future__ import annotations

import contextlib
import socket

SLICE_BYTES = 1 << 20


def prepare(sock: socket.socket) -> None:
    """Set up a connection: nothing waits for more to come, and a Unix socket has room."""
    with contextlib.suppress(OSError):  # the other side has left
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SLICE_BYTES)  # or what is allowed


def slice_nbytes(sock: socket.socket, at_most: int = SLICE_BYTES) -> int:
    """The bytes to give a connected socket at once, of which it may take fewer."""
    try:
        segment = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
    except OSError:  # it is a Unix socket, the other side has left, or the system does not tell
        return at_most
    return at_most - at_most % segment if 0 < segment <= at_most else at_most
