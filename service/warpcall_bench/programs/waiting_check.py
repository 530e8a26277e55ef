"""A process for one check: python -m warpcall_bench.programs.waiting_check.

It imports what the programs of checks need, says that it is ready, and receives the name of one program
of this folder as a frame. The program then answers one request, as if it had been started itself. The
server may start this process before there is a request, which then need not wait for the imports. Each
process serves one request all the same, so that no code of a user meets that of another one.
"""

from __future__ import annotations

import importlib
import os
import socket

from warpcall_bench.programs import compile_only
from warpcall_bench.programs.imports import import_for_cases
from warpcall_bench.runs.one_shot import READY
from warpcall_service.lanes.messages import read_frame
from warpcall_service.processes import child
from warpcall_service.processes.imports import quick_imports

IMPORTED = (
    "warpcall_bench.programs.problem_source",
    "warpcall_bench.programs.upload_check",
    "warpcall_kernels.compile.launches",
    "warpcall_kernels.execution.record_server",
    "warpcall_kernels.verified.proposal",
)


def main() -> None:
    """Import, wait, and run the program."""
    args = child.start(server_fd=int)
    compile_only.drop_variables()  # Triton reads some of them when it is imported
    with quick_imports():
        import_for_cases()
        for module in IMPORTED:
            importlib.import_module(module)
    sock = socket.socket(fileno=args.server_fd)
    sock.sendall(READY)
    program = read_frame(sock)
    if program is None:
        os._exit(0)  # the server does not need this process any more, or has ended
    sock.detach()  # the program opens it again
    importlib.import_module(program.decode()).main()


if __name__ == "__main__":
    main()
