"""Plays a job's process: python -m tests.service.runs.upload_job, started by a real reaper."""

from __future__ import annotations

import ctypes
import json
import socket
import textwrap
import traceback
from typing import Any

from tests.service.runs.upload_parts import UPLOAD
from warpcall_bench.runs.peers import Peer, PeerStarter, Reaper
from warpcall_service.lanes.messages import frame, read_frame
from warpcall_service.processes import child

_libc = ctypes.CDLL(None, use_errno=True)


class _Part(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


def asks(peer: Peer, code: str) -> Any:
    """Send code to an upload process, and return its answer."""
    peer.sock.settimeout(30)
    peer.sock.sendall(frame({"code": code}))
    text = read_frame(peer.sock)
    return None if text is None else json.loads(text)


def reads(pid: int, address: int, size: int) -> str:
    """Read the memory of another process."""
    buffer = ctypes.create_string_buffer(size)
    here = _Part(ctypes.addressof(buffer), size)
    there = _Part(address, size)
    count = _libc.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    if count < 0:
        raise OSError(ctypes.get_errno(), "process_vm_readv")
    return buffer.raw[:count].decode()


def main() -> None:
    args = child.start(server_fd=int, reaper_fd=int)
    with (
        socket.socket(fileno=args.server_fd) as server,
        socket.socket(fileno=args.reaper_fd) as sock,
    ):
        reaper = Reaper(sock)
        space: dict[str, Any] = {
            "reaper": reaper,
            "start": PeerStarter(reaper, UPLOAD),
            "asks": asks,
            "reads": reads,
            "peers": {},
        }
        while (text := read_frame(server)) is not None:
            request = json.loads(text)
            space |= request["values"]
            code = textwrap.indent(request["code"], "    ")
            try:
                exec(f"def attempt():\n{code}", space)  # noqa: S102
                answer = ["done", space["attempt"]()]
            except Exception:  # noqa: BLE001  # the test shows it
                answer = ["raised", traceback.format_exc()]
            server.sendall(frame(answer))


if __name__ == "__main__":
    main()
