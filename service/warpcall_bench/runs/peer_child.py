"""The upload process's own side: its arguments, and its greeting to the job's process."""

from __future__ import annotations

import argparse
import ctypes
import resource
import socket

from warpcall_service.lanes.messages import frame
from warpcall_service.processes import child

HELLO = frame({"hello": True})  # what it sends first, before code of users runs
PR_SET_CHILD_SUBREAPER = 36
PR_SET_PTRACER = 0x59616D61
ANY = ctypes.c_ulong(-1)


def start() -> tuple[argparse.Namespace, socket.socket]:
    """Set up an upload process, and greet the job's process.

    Returns:
        Its arguments `device` and `threads`, and its socket to the job's process.
    """
    args = child.start(server_fd=int, device=str, threads=int, memory_bytes=int)
    # Not RLIMIT_AS: CUDA reserves more addresses than there is memory.
    resource.setrlimit(resource.RLIMIT_DATA, (args.memory_bytes,) * 2)
    libc = ctypes.CDLL(None)
    # Processes whose parents have ended stay below this one, where the job's process finds them.
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # The job's process reads and writes in this one's memory. It is no ancestor of this one, so
    # that the kernel would refuse it where Yama restricts that.
    libc.prctl(PR_SET_PTRACER, ANY, 0, 0, 0)
    sock = socket.socket(fileno=args.server_fd)
    sock.sendall(HELLO)
    return args, sock
