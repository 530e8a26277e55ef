"""The program that is profiled: python -m warpcall_bench.programs.profiled FOLDER.

It prepares one implementation in one case as the job's process did, with the same inputs, and calls
it once between the calls that start and stop the profiler. It runs where the job's process runs: code
of users is in the same sandbox. In the folder are its task and the socket of the job's process. It
sends a frame `{"ready": true}` on that socket when it has warmed up, waits for `{"go": true}`, and
sends `{"done": true}` after the call, or at any time `{"error": text}`.

If the task asks for compile reports, it records the launches of its first call, and writes what the
kernels need to a file in the folder. No call is profiled then. Under compute-sanitizer, its first call
is the only one.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from warpcall.compile_reports import CompileReport, KernelReport, KernelText
from warpcall_bench.profilers.messages import REPORT, SOCKET, TASK, ChildTask
from warpcall_bench.programs import compile_only
from warpcall_bench.programs.explain import numbers, versions
from warpcall_service.lanes.messages import frame, read_frame
from warpcall_service.processes.imports import quick_imports
from warpcall_service.text import error_text

if TYPE_CHECKING:
    import torch

    from warpcall_kernels import Op
    from warpcall_kernels.compile.launches import LaunchedKernel

WARM_CALLS = 2  # before the one that is profiled: the first one compiles


def main() -> None:
    """Prepare, wait, and make the one call."""
    folder = Path(sys.argv[1])
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)  # the output of the profiler itself is read for its errors
    os.dup2(nowhere, 2)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(folder / SOCKET))
        try:
            _run(json.loads((folder / TASK).read_text()), folder, sock)
        except BaseException as error:  # noqa: BLE001  # code of users may raise anything
            message = f"it raised {error_text(error)}"
            sock.sendall(frame({"error": message}))
        else:
            sock.sendall(frame({"done": True}))
        # The profiler writes its report when the process ends, so it must end as usual. If it does
        # not, because of a thread of the user's code, it ends when the other side closes the socket.
        threading.Thread(target=_end_with, args=(sock.dup(),), daemon=True).start()


def _end_with(sock: socket.socket) -> None:
    while sock.recv(64):
        pass
    os._exit(1)


def _run(task: ChildTask, folder: Path, sock: socket.socket) -> None:
    if task["reports"]:
        compile_only.prepare(folder)
    with quick_imports():
        import torch

        from warpcall_kernels import measuring
    device = torch.device(task["device"])
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.set_device(device)
    op = _loaded(task, folder)
    case = measuring.make_case(op, task["spec"])
    with measuring.same_arithmetic(), torch.no_grad():
        call = measuring.prepared(case, task["implementation"], device, task["seed"])
        if task["reports"]:
            report = _report(lambda: _complete(call, device), task, case.key, device)
            (folder / REPORT).write_text(report)
        else:
            for _ in range(1 if task.get("once") else WARM_CALLS):
                _complete(call, device)
        sock.sendall(frame({"ready": True}))
        if read_frame(sock) is None:
            os._exit(1)  # the job's process has ended
        if task["reports"] or task.get("once"):
            return
        if cuda:
            torch.cuda.cudart().cudaProfilerStart()  # type: ignore[no-untyped-call]  # no types there
        try:
            _complete(call, device)
        finally:
            if cuda:
                torch.cuda.cudart().cudaProfilerStop()  # type: ignore[no-untyped-call]


def _loaded(task: ChildTask, folder: Path) -> Op | str:
    """Load what the task names as the job's process did, and return the op."""
    from warpcall_bench.programs import operator_code, uploaded

    operator_code.load_for_job(task["modules"])
    uploaded.register(task["uploads"], folder)
    if task["problem"] is None:
        return task["op"]
    return uploaded.load_problem(task["problem"], folder)


def _report(call: Callable[[], None], task: ChildTask, key: str, device: torch.device) -> str:
    """What the kernels of a call need, in the form of `warpcall.compile_reports`, as JSON."""
    from warpcall_kernels.compile.architectures import architecture, architecture_of
    from warpcall_kernels.compile.launches import LaunchRecorder

    target = architecture(architecture_of(device))
    recorder = LaunchRecorder(target)
    with recorder.observing():
        call()
    found = CompileReport(
        op=task["op"],
        implementation=task["implementation"],
        case=key,
        gpu=target.name,
        kernels=[_kernel(one) for one in recorder.kernels()],
        failures=recorder.failures,
        stopped="",
        **versions(target.capability),
    )
    return json.dumps(found.to_dict())


def _kernel(kernel: LaunchedKernel) -> KernelReport:
    texts = {
        name: KernelText(text=one.text, nbytes=one.nbytes, cut=len(one.text.encode()) < one.nbytes)
        for name, one in kernel.texts.items()
    }
    return KernelReport(**numbers(kernel), texts=texts)


def _complete(call: Callable[[], object], device: torch.device) -> None:
    import torch

    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
