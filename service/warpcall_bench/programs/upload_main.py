"""An upload process: python -m warpcall_bench.programs.upload_main, started by a job's reaper.

It runs one uploaded implementation, or the functions of a problem, and nothing else of the job. The
job's process measures it over a socket (`warpcall_kernels.measuring`).
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpcall_bench.runs import peer_child
from warpcall_service.processes import temporary
from warpcall_service.processes.imports import quick_imports

if TYPE_CHECKING:
    from warpcall_kernels.measuring import Loaded

IOLBF = 1  # of setvbuf(3): a buffer is written at the end of a line


def main() -> None:
    """Import torch, load what the job's process sends, and serve its calls."""
    args, sock = peer_child.start()
    with sock, temporary.folder() as folder:
        with quick_imports():
            import torch

            from warpcall_bench.programs import uploaded
            from warpcall_kernels import measuring

        uploaded.mend_interpreter()
        _print_by_lines()
        device = torch.device(args.device)
        if device.type == "cuda":
            torch.cuda.set_device(device)
            torch.cuda.init()  # type: ignore[no-untyped-call]  # torch has no types here
        elif args.threads:
            torch.set_num_threads(args.threads)
        measuring.serve(sock, lambda message: _load(message, folder), device)
    os._exit(0)  # Python's normal exit would hang on a lost device


def _print_by_lines() -> None:
    """Let each line that is printed leave the process at once, so that a crash loses none of them.

    Lines of the log are for whoever wrote the code, and not for the log of the server.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    libc = ctypes.CDLL(None)
    libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, IOLBF, ctypes.c_size_t(0))
    logging.basicConfig(format="%(levelname)s: %(name)s: %(message)s", force=True)


def _load(message: dict[str, Any], folder: Path) -> Loaded:
    """Import the source that the message has: of an `upload` or of a `problem`."""
    from warpcall_bench.programs import uploaded
    from warpcall_kernels import measuring

    if "problem" not in message:
        function, error = uploaded.load(message["upload"], folder)
        return measuring.Loaded(function=function, error=error)
    try:
        return measuring.Loaded(op=uploaded.load_problem(message["problem"], folder))
    except Exception as error:  # noqa: BLE001  # the job's process reports any error
        return measuring.Loaded(error=error)


if __name__ == "__main__":
    main()
