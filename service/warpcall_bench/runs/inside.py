"""The first code in the sandbox: limits and account of its processes, then a module of ours.

The limit on the number of processes must be set here: it counts the account's processes of this
user namespace only, and not those of the server.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import resource
import runpy
import sys

from warpcall_bench.runs import account, descriptors

MAX_OPEN_FILES = 4096


def main() -> None:
    """Set the limits and the account, which nothing can undo, and run the module with its options."""
    parser = argparse.ArgumentParser()
    for name in ("processes", "memory-bytes", "file-bytes"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--gpu", action="store_true")  # its memory is shared with the server
    parser.add_argument("--wait-fd", type=int)  # where it waits for the descriptors of the module
    parser.add_argument("module")
    parser.add_argument("options", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    for limit, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, MAX_OPEN_FILES),
        (resource.RLIMIT_FSIZE, args.file_bytes),
        (resource.RLIMIT_DATA, args.memory_bytes),  # not RLIMIT_AS: CUDA reserves many addresses
        (resource.RLIMIT_NPROC, args.processes),
    ):
        account.lower(limit, value)
    options = args.options
    if args.wait_fd is not None:  # with the server's account, but without code of users so far
        options += descriptors.received(args.wait_fd, args.module)
    if args.gpu:
        _open_gpu()
    account.leave()
    sys.argv = [args.module, *options]
    if args.wait_fd is not None:
        sys.modules[args.module].main()
        return
    runpy.run_module(args.module, run_name="__main__", alter_sys=True)


def _open_gpu() -> None:
    """Make this process's context on its GPU, if that works.

    NVIDIA's driver opens memory that a process shares (CUDA IPC) only for processes of the account
    that has made the context (`osValidateClientTokens` of its open kernel modules), so it must be
    made with the server's. No code of users has run yet.
    """
    # Not before a process has waited: its context would hold some 500 MB of the GPU meanwhile.
    with contextlib.suppress(OSError, AttributeError):  # torch says what is wrong with the driver
        cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
        if cuda.cuInit(0) == 0:
            cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)


if __name__ == "__main__":
    main()
