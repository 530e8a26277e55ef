"""How sockets are set up for large bodies, and how many bytes each send is given.

A TCP send should be given whole segments. A slice of any other size ends with a short segment,
which makes the system's sending slower. On loopback, with segments of 65,483 bytes, sending 64 MB
took 10 ms in slices of 16 segments, 18 ms in slices of 256 KiB and 14 ms in slices of 1 MiB. Larger
slices do not fit into the cache.

On Unix sockets the size of a slice makes no difference, but the send buffer does. Its default is
208 KiB. With a larger one, 1 MB there and back took 0.20 ms instead of 0.48 ms.
"""

from __future__ import annotations

import contextlib
import socket

SLICE_BYTES = 1 << 20
# The system asks a peer that is silent for 5 s whether it is there, every 3 s, and breaks the
# connection after three questions, or if bytes are not acknowledged for 14 s. The peer's system
# answers by itself, however busy its programs are. macOS and Windows lack some of the options.
_LOSS = (
    ("TCP_KEEPIDLE", 5),
    ("TCP_KEEPINTVL", 3),
    ("TCP_KEEPCNT", 3),
    ("TCP_USER_TIMEOUT", 14_000),
)
LOSS_OPTIONS = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in _LOSS
        if hasattr(socket, name)
    ),
]


def prepare(sock: socket.socket) -> None:
    """Disable the delay of small writes on TCP, and enlarge the buffer of a Unix socket."""
    with contextlib.suppress(OSError):  # the peer has closed the connection
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        else:
            # The system may allow less.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SLICE_BYTES)


def notice_loss(sock: socket.socket) -> None:
    """Have the system break a TCP connection whose peer, or the way to it, has vanished."""
    with contextlib.suppress(OSError):  # the peer has closed the connection
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            for option in LOSS_OPTIONS:
                sock.setsockopt(*option)


def is_loss(error: OSError) -> bool:
    """Whether the system has broken a connection so. A deadline's TimeoutError has no number."""
    return isinstance(error, TimeoutError) and error.errno is not None


def slice_nbytes(sock: socket.socket, at_most: int = SLICE_BYTES) -> int:
    """How many bytes to give one send on this socket: whole TCP segments, at most `at_most`."""
    try:
        segment = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
    except OSError:  # a Unix socket, a closed connection, or a system without this option
        return at_most
    return at_most - at_most % segment if 0 < segment <= at_most else at_most
