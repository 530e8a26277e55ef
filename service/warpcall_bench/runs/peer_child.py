"""The upload process's own side: its arguments, and its greeting to the job's process."""

from __future__ import annotations

import argparse
import ctypes
import logging
import resource
import socket
import sys

from warpcall_service.lanes.messages import frame
from warpcall_service.processes import child

HELLO = frame({"hello": True})  # what it sends first, before code of users runs
PR_SET_CHILD_SUBREAPER = 36
PR_SET_PTRACER = 0x59616D61
ANY = ctypes.c_ulong(-1)
IOLBF = 1  # of setvbuf(3): a buffer is written at the end of a line


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


def print_by_lines() -> None:
    """Let each line that is printed leave the process at once, so that a crash loses none of them.

    Lines of the log are for whoever wrote the code, and not for the log of the server.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    libc = ctypes.CDLL(None)
    libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, IOLBF, ctypes.c_size_t(0))
    logging.basicConfig(format="%(levelname)s: %(name)s: %(message)s", force=True)
