"""Messages between the server and a worker process; both sides import this, so it has no torch.

There are two sockets. On the socket for calls (SOCK_SEQPACKET, so that a packet stays whole) a packet
from the server has one or more calls, each `CALL` and the plan's message. A packet from the worker
has one or more replies, each `DONE` and a problem as JSON if the call failed; replies come in the
order of the calls. A call with the id `FREE` is none: it lists tensors to free, and has no reply. On the socket for plans (a stream, because
callers' text may be long) both sides send frames of JSON: the worker first its `Hello`, and then a
reply to each request, in order. From before its hello on, a worker that compiles kernels ahead also
says how many are done: `{"warming": ["compiling", 312, 1588]}`, and at the end `["", 0, 0]`.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from typing import Any, NotRequired, TypedDict

# Call id, the offsets of inputs and outputs in the arena, the deadline by CLOCK_MONOTONIC, which is
# the same for all processes of a machine, and the bytes of the message that follows.
CALL = struct.Struct("<QQQdI")
# Call id, the time at which the worker began it (same clock), ms of h2d, kernel, d2h and compilation,
# and the bytes of the problem that follows.
DONE = struct.Struct("<QdddddI")
Done = tuple[int, float, float, float, float, float, int]  # what DONE holds
FREE = 0  # no call has this id
LENGTH = struct.Struct("<I")
PACKET_BYTES = 64 << 10


class Hello(TypedDict):
    """A worker's first frame: its device, or why it cannot start.

    Attributes:
        device: the device's name, such as "cuda:0" for "auto".
        label: a name for people, such as "cuda:0 (NVIDIA H200)".
        devices: all devices of this kind on the machine.
        memory_nbytes: the most bytes that tensors may use on the device.
        fingerprint, environment: facts about the device, the machine and its software, and their
            class, as results of jobs have them.
        minor: number of the GPU in the name of its device file; None if it is unknown or a CPU.
        catalog: `Op.describe` of every op, with dtypes as wire codes.
        error: why the worker cannot start; no other field is set then.
    """

    device: NotRequired[str]
    label: NotRequired[str]
    devices: NotRequired[list[str]]
    memory_nbytes: NotRequired[int]
    fingerprint: NotRequired[dict[str, Any]]
    environment: NotRequired[str]
    minor: NotRequired[int | None]
    catalog: NotRequired[list[dict[str, Any]]]
    error: NotRequired[str]


class NoSuchDevice(Exception):
    """The operator asked for a device that this machine lacks."""


def frame(payload: object) -> bytes:
    """Encode `payload` as one frame."""
    text = json.dumps(payload, separators=(",", ":")).encode()
    return LENGTH.pack(len(text)) + text


def read_frame(sock: socket.socket) -> bytes | None:
    """Read the JSON of the next frame, None at the end; blocks."""
    head = _read(sock, LENGTH.size)
    return None if head is None else _read(sock, LENGTH.unpack(head)[0])


async def read_frame_async(reader: asyncio.StreamReader) -> bytes:
    """Read the JSON of the next frame.

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
        except ConnectionResetError:  # the other side ended without reading everything
            part = b""
        if not part:
            return None
        parts += part
    return bytes(parts)
