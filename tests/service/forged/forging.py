"""Implementations that send forged frames to the server, for its `job_modules`.

They run in the job's process and write to its socket to the server, as code could that has taken
that process over. Then the process ends.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from warpcall_kernels import Op
from warpcall_kernels.measuring import Implementation
from warpcall_service.lanes.messages import LENGTH, frame

NUL = chr(0)
FLOOD_S = 3.0
FOR_EVER_S = 3600.0


def ended(detail: str) -> bytes:
    return frame({"ended": {"class": "killed", "detail": detail}})


def raw(text: str) -> bytes:
    return LENGTH.pack(len(text)) + text.encode()


def server() -> socket.socket:
    """The socket to the server, which the process was started with."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--server-fd", type=int)
    return socket.socket(fileno=parser.parse_known_args()[0].server_fd)


def sends(*frames: bytes) -> Callable[[Op, Mapping[str, Any]], Callable[..., Any]]:
    """Builds implementations that send these frames when they are called first."""

    def build(op: Op, params: Mapping[str, Any]) -> Callable[..., Any]:
        def function(**inputs: Any) -> Any:
            server().sendall(b"".join(frames))
            os._exit(0)

        return function

    return build


def flood(op: Op, params: Mapping[str, Any]) -> Callable[..., Any]:
    """Requests and returns the device as fast as the server reads, for FLOOD_S."""

    def function(**inputs: Any) -> Any:
        many = (frame({"want": True}) + frame({"release": True})) * 1000
        sock, ends = server(), time.monotonic() + FLOOD_S
        sock.settimeout(0.2)
        while time.monotonic() < ends:
            with contextlib.suppress(TimeoutError):
                sock.send(many)
                continue
            with contextlib.suppress(BlockingIOError):  # the answers, which nobody else reads
                sock.recv(1 << 20, socket.MSG_DONTWAIT)
        os._exit(0)

    return function


def stay(op: Op, params: Mapping[str, Any]) -> Callable[..., Any]:
    """Says that it has ended, and does not end."""

    def function(**inputs: Any) -> Any:
        server().sendall(ended("all is done"))
        time.sleep(FOR_EVER_S)

    return function


def stall(op: Op, params: Mapping[str, Any]) -> Callable[..., Any]:
    """Reports the same phase again and again, and measures nothing."""

    def function(**inputs: Any) -> Any:
        sock = server()
        while True:
            sock.sendall(frame({"progress": {"position": 0, "phase": "preparing"}}))
            time.sleep(0.2)

    return function


FORGED: dict[str, Sequence[bytes]] = {
    "nul": [ended(f"a{NUL}b\x1b[31m\u202e")],
    "nul-as-a-name": [frame({f"a{NUL}b": True})],
    "lone-surrogate": [raw('{"ended": {"class": "killed", "detail": "\\ud800"}}')],
}

IMPLEMENTATIONS = tuple(
    Implementation(name, Path(__file__).name, build, ("permute",))
    for name, build in [
        *((name, sends(*frames)) for name, frames in FORGED.items()),
        *((build.__name__, build) for build in (flood, stay, stall)),
    ]
)
