"""The recorder of a verified upload: python -m warpcall_bench.programs.record_main, started by a job's reaper.

It is an upload process as `programs.upload_main` is, without a GPU. It runs the author's code, compiles
its kernels, and describes the launches of each case that the job's process names as a launch plan.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpcall_bench.programs import compile_only
from warpcall_bench.runs import peer_child, trees
from warpcall_service.processes import temporary
from warpcall_service.processes.imports import quick_imports

if TYPE_CHECKING:
    from warpcall_kernels.execution.record_server import Recorded


def import_ahead() -> None:
    """Import what this program needs, in a process that has no work yet."""
    compile_only.drop_variables()  # Triton reads some of them when it is imported
    with quick_imports():
        from warpcall_bench.programs import uploaded  # noqa: F401
        from warpcall_kernels.compile.first_launch import skip_hash  # noqa: F401
        from warpcall_kernels.execution.record_server import serve_recorder  # noqa: F401


def main() -> None:
    """Import torch, load what the job's process sends, and record its calls."""
    _, sock = peer_child.start()
    with sock, temporary.folder() as folder:
        compile_only.prepare(folder)
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # without a sandbox it would see the GPUs
        with quick_imports():
            import torch

            from warpcall_kernels.compile.first_launch import skip_hash
            from warpcall_kernels.execution.record_server import serve_recorder

        torch.set_num_threads(1)
        skip_hash()  # its cache is in `folder`
        peer_child.print_by_lines()
        serve_recorder(sock, lambda message: _load(message, folder))
    os._exit(0)  # threads that the source may have started do not matter


def _load(message: dict[str, Any], folder: Path) -> Recorded:
    """Import the source of the `upload` that the message has; one in CUDA C++ is only passed on."""
    from warpcall_bench.programs import uploaded
    from warpcall_kernels import ops
    from warpcall_kernels.execution.record_server import Recorded

    upload = message["upload"]
    language, declaration = upload["language"], upload["launches"]
    if language == "cuda":
        written = trees.write(upload, folder / "upload", "kernel.cu")
        op = ops().get(upload["op"])  # None for one of a problem
        return Recorded(
            language=language,
            source=upload["source"],
            folders=written.folders,
            declaration=declaration,
            optional=[one.name for one in op.inputs if one.optional] if op else [],
        )
    loaded = uploaded.load(upload, folder)
    return Recorded(
        function=loaded.function,
        error=loaded.error,
        module=sys.modules.get(uploaded.MODULE),
        language=language,
        source=upload["source"],
        declaration=declaration,
    )


if __name__ == "__main__":
    main()
