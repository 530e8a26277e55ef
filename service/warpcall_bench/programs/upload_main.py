"""An upload process: python -m warpcall_bench.programs.upload_main, started by a job's reaper.

It runs one uploaded implementation, or the functions of a problem, and nothing else of the job. The
job's process measures it over a socket (`warpcall_kernels.measuring`).
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpcall_bench.runs import peer_child
from warpcall_service.processes import temporary
from warpcall_service.processes.imports import quick_imports

if TYPE_CHECKING:
    from warpcall_kernels.measuring import Loaded


def import_ahead() -> None:
    """Import what this program needs, and let Triton do what it does once. Idempotent.

    A process that has no work yet does so, too. It does not use its GPU.
    """
    with quick_imports():
        import torch  # noqa: F401
        import triton  # noqa: F401

        from warpcall_bench.programs import uploaded  # noqa: F401
        from warpcall_kernels import measuring  # noqa: F401

        if any(one.startswith("--device=cuda") for one in sys.argv):
            from warpcall_kernels.compile.first_launch import prepare_first_compilation

            # The first kernel of the upload needs the same, and says what is wrong.
            with contextlib.suppress(Exception):
                prepare_first_compilation()


def main() -> None:
    """Import torch, load what the job's process sends, and serve its calls."""
    args, sock = peer_child.start()
    with sock, temporary.folder() as folder:
        import_ahead()
        import torch

        from warpcall_bench.programs import uploaded
        from warpcall_kernels import measuring

        uploaded.mend_interpreter()
        peer_child.print_by_lines()
        device = torch.device(args.device)
        if device.type == "cuda":
            torch.cuda.set_device(device)
            torch.cuda.init()  # type: ignore[no-untyped-call]  # torch has no types here
        elif args.threads:
            torch.set_num_threads(args.threads)
        measuring.serve(sock, lambda message: _load(message, folder), device)
    os._exit(0)  # Python's normal exit would hang on a lost device


def _load(message: dict[str, Any], folder: Path) -> Loaded:
    """Import the source that the message has: of an `upload` or of a `problem`.

    Of a verified upload it has none: this process gets launch plans, and runs no code of the author.
    """
    from warpcall_bench.programs import uploaded
    from warpcall_kernels import measuring

    if "verified" in message:
        return measuring.Loaded()
    if "problem" not in message:
        return uploaded.load(message["upload"], folder)
    try:
        return measuring.Loaded(op=uploaded.load_problem(message["problem"], folder))
    except Exception as error:  # noqa: BLE001  # the job's process reports any error
        return measuring.Loaded(error=error)


if __name__ == "__main__":
    main()
