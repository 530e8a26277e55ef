"""Makes the profiles of a job; as a program, one of code of users.

The program is python -m warpcall_bench.programs.profile_main. It is an upload process as
`programs.upload_main` is, started by a job's reaper. It gets one
`ApartRequest` as a frame. It sends `{"want": true}` when it needs the device, and waits for `{"go": true}` then;
`{"release": true}` when it no longer does; for each file of the profile `{"file": name, "nbytes":
...}` with the content behind the frame; and at the end `{"done": true}` or `{"error": text}`.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from warpcall_bench.profilers.messages import ApartRequest, Made
from warpcall_bench.runs import peer_child
from warpcall_bench.runs.messages import SANITIZERS
from warpcall_service.lanes.messages import frame, read_frame
from warpcall_service.processes import temporary
from warpcall_service.processes.imports import quick_imports
from warpcall_service.text import error_text

if TYPE_CHECKING:
    from warpcall_bench.runs.messages import Task
    from warpcall_kernels.measuring import JobCase, Lease


def main() -> None:
    """Make the profile, and send it."""
    args, sock = peer_child.start()
    with sock:
        text = read_frame(sock)
        if text is not None:
            request: ApartRequest = json.loads(text)
            request["task"]["device"] = args.device
            _answer(request, sock, args.threads)
    os._exit(0)  # Python's normal exit would hang on a lost device


def make(task: Task, position: int, case: JobCase, name: str, lease: Lease) -> Made:
    """Profile an implementation in one case of a job; `lease` is entered for the profiled call."""
    return make_lazily(task, position, case.key, name, lambda: case, lease)


def make_lazily(
    task: Task, position: int, key: str, name: str, case: Callable[[], JobCase], lease: Lease
) -> Made:
    """As `make`, for a process that makes the case only if its profiler needs it.

    Args:
        key: of the case.
    """
    from warpcall_bench.profilers import compiled, ncu, sanitizer, top_kernels
    from warpcall_bench.profilers.program import NoProfile
    from warpcall_kernels import measuring

    wanted = task["profile"]
    assert wanted is not None
    try:
        if wanted["profiler"] == "torch":
            most_bytes = wanted["most_bytes"]
            device = task["device"]
            trace = measuring.trace(case(), name, device, most_bytes=most_bytes, lease=lease)
            table = top_kernels.table_of(trace, name, on_gpu=device.startswith("cuda"))
            return Made({"kernels.json": table, "trace.json": trace}, "")
        if wanted["profiler"] == "compile":
            return Made({"compiled.json": compiled.report_of_job(task, position, name)}, "")
        if (tool := wanted["profiler"]) in SANITIZERS:
            text = sanitizer.check_of_job(tool, task, position, key, name, lease)
            return Made({f"{tool}.txt": text}, "")
        files = ncu.profile_of_job(task, position, key, name, lease)
        return Made({"ncu-rep": files.report, "ncu.txt": files.text}, "")
    except (measuring.ProfileFailed, NoProfile) as error:
        return Made({}, str(error))
    except Exception as error:  # noqa: BLE001  # such as too little memory for the inputs
        return Made({}, error_text(error))


def _answer(request: ApartRequest, sock: socket.socket, threads: int) -> None:
    task, name = request["task"], request["implementation"]
    wanted = task["profile"]
    assert wanted is not None
    with quick_imports():
        from warpcall_kernels import measuring  # noqa: F401  # it imports torch
    if wanted["profiler"] == "torch" and task["device"] == "cpu" and threads:
        import torch

        torch.set_num_threads(threads)
    with temporary.folder() as folder:
        made = make_lazily(
            task,
            request["position"],
            request["key"],
            name,
            lambda: _case(request, folder),
            lambda: _lease(sock),
        )
    for file, content in made.files.items():
        sock.sendall(frame({"file": file, "nbytes": len(content)}))
        sock.sendall(content)
    sock.sendall(frame({"error": made.error} if made.error else {"done": True}))


def _case(request: ApartRequest, folder: Path) -> JobCase:
    """Load what the job's process has the peers load, in this process."""
    from warpcall_bench.programs import operator_code, uploaded
    from warpcall_kernels import measuring

    task = request["task"]
    uploaded.mend_interpreter()
    operator_code.load_for_job(task["modules"])
    uploaded.register(task["uploads"], folder)
    op = task["op"] if task["problem"] is None else uploaded.load_problem(task["problem"], folder)
    wanted = task["profile"]
    assert wanted is not None
    specs = {position: spec for position, spec, _ in wanted["cases"]}
    return measuring.make_case(op, specs[request["position"]])


@contextlib.contextmanager
def _lease(sock: socket.socket) -> Iterator[float | None]:
    """Use the device alone, as the job's process grants it."""
    sock.sendall(frame({"want": True}))
    if read_frame(sock) is None:
        os._exit(1)  # the job's process has ended
    try:
        yield None
    finally:
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        sock.sendall(frame({"release": True}))


if __name__ == "__main__":
    main()
