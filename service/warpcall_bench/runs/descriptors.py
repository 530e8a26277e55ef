"""Lets a process import what a module of ours needs, and then wait for the module's descriptors.

In the sandbox `runs.inside` does it, before it changes its account. Without a sandbox this is a program:
python -m warpcall_bench.runs.descriptors --wait-fd=N MODULE OPTIONS.
"""

from __future__ import annotations

import argparse
import importlib
import os
import socket
import sys

OUTPUT = (1, 2)  # descriptors to which it prints


def received(wait_fd: int, module: str) -> list[str]:
    """Import a module, let it import what it needs, and wait.

    The module has functions `import_ahead` and `main`. What it gets are a socket, and the descriptor to
    which the process prints from then on.

    Returns:
        Options for the module. If nobody needs it any more, this process ends instead.
    """
    importlib.import_module(module).import_ahead()
    with socket.socket(fileno=wait_fd) as sock:
        _, fds, _, _ = socket.recv_fds(sock, 1, 2)
    if len(fds) != 2:  # the other side has closed the socket, or has ended
        os._exit(0)
    server_fd, output_fd = fds
    for fd in OUTPUT:
        os.dup2(output_fd, fd)
    os.close(output_fd)
    return [f"--server-fd={server_fd}"]


def main() -> None:
    """Wait, and run the module with its options."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--wait-fd", type=int, required=True)
    parser.add_argument("module")
    parser.add_argument("options", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    sys.argv = [args.module, *args.options, *received(args.wait_fd, args.module)]
    sys.modules[args.module].main()


if __name__ == "__main__":
    main()
