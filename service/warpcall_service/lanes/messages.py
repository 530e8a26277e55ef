"""What the service and a lane's process say to each other; without torch, for both sides.

Two sockets. On the one for calls (SOCK_SEQPACKET, so a packet is a message) the service sends
`CALL` and a plan's message, and gets `DONE`, followed by a problem in JSON if it failed; answers
come in the order of the calls. What has the id `FREE` is no call: it lists tensors to let go, and
nothing answers it. On the one for plans (a stream, as what a caller wrote may be long) frames of
JSON go both ways: first the lane's hello, then an answer for each question, in order.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from typing import Any, NotRequired, TypedDict

# Call id, where inputs and outputs lie in the arena, and the deadline by CLOCK_MONOTONIC, which is
# the same for all processes of a machine.
CALL = struct.Struct("<QQQd")
# Call id, when the lane began it (the same clock), and ms of h2d, kernel and d2h.
DONE = struct.Struct("<Qdddd")
FREE = 0  # no call has this id
LENGTH = struct.Struct("<I")
PACKET_BYTES = 64 << 10


class Hello(TypedDict):
    """A lane's first frame: what it is, or why it cannot be.

    Attributes:
        device: resolved, such as "cuda:0" for "auto".
        label: for readers, such as "cuda:0 (NVIDIA H200)".
        devices: all that a lane of this kind could run on.
        memory_nbytes: what tensors may take on the device.
        catalog: `Op.describe` of every op, dtypes as wire codes.
        error: set alone, when the lane ends before it began.
    """

    device: NotRequired[str]
    label: NotRequired[str]
    devices: NotRequired[list[str]]
    memory_nbytes: NotRequired[int]
    catalog: NotRequired[list[dict[str, Any]]]
    error: NotRequired[str]


class NoSuchDevice(Exception):
    """The operator asked for a device that this machine lacks."""


def frame(payload: object) -> bytes:
    """`payload` as one frame of the plan socket."""
    text = json.dumps(payload, separators=(",", ":")).encode()
    return LENGTH.pack(len(text)) + text


def read_frame(sock: socket.socket) -> bytes | None:
    """The next frame's JSON, None at the end; for the lane, which may block."""
    head = _read(sock, LENGTH.size)
    return None if head is None else _read(sock, LENGTH.unpack(head)[0])


async def read_frame_async(reader: asyncio.StreamReader) -> bytes:
    """The next frame's JSON.

    Raises:
        IncompleteReadError: the other side closed its socket.
    """
    head = await reader.readexactly(LENGTH.size)
    return await reader.readexactly(LENGTH.unpack(head)[0])


def _read(sock: socket.socket, nbytes: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < nbytes:
        try:
            part = sock.recv(min(nbytes - len(parts), 1 << 20))
        except ConnectionResetError:  # the other side was killed with something unread
            part = b""
        if not part:
            return None
        parts += part
    return bytes(parts)
