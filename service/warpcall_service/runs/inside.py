"""The first code in the sandbox: sets the limits of its processes, then runs a module of ours.

The limit on the number of processes must be set here: it counts the account's processes of this
user namespace only, and not those of the server.
"""

from __future__ import annotations

import argparse
import resource
import runpy
import sys

MAX_OPEN_FILES = 4096


def main() -> None:
    """Set the limits, which cannot be raised again, and run the module with its own options."""
    parser = argparse.ArgumentParser()
    for name in ("processes", "memory-bytes", "file-bytes"):
        parser.add_argument(f"--{name}", type=int, required=True)
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
        highest = resource.getrlimit(limit)[1]
        resource.setrlimit(
            limit, (value if highest == resource.RLIM_INFINITY else min(value, highest),) * 2
        )
    sys.argv = [args.module, *args.options]
    runpy.run_module(args.module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
