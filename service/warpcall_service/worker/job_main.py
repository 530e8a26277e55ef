"""The process of one job: python -m warpcall_service.worker.job_main, started by the job's reaper.

It measures the cases of its `Task` in one thread, and returns the device after each timed block.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import os
import resource
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from warpcall_service.lanes.messages import frame, read_frame
from warpcall_service.processes import child
from warpcall_service.processes.imports import quick_imports
from warpcall_service.runs import temporary
from warpcall_service.runs.messages import PIECE_BYTES, PROFILE_FILES, Task, version_of
from warpcall_service.text import MAX_ERROR_CHARS, error_text

if TYPE_CHECKING:
    import torch

    from warpcall_kernels import Op

PROGRESS_S = 0.5  # between two frames about the same phase


def main() -> None:
    """Receive the task, measure, and send the results."""
    args = child.start(server_fd=int)
    with socket.socket(fileno=args.server_fd) as sock:
        text = read_frame(sock)
        if text is None:
            return
        task: Task = json.loads(text)
        # Not RLIMIT_AS: CUDA reserves more addresses than there is memory.
        resource.setrlimit(resource.RLIMIT_DATA, (task["memory_bytes"],) * 2)
        connection = _ServerConnection(sock)
        try:
            _measure(task, connection)
        except Exception as error:  # noqa: BLE001  # any error ends the job
            connection.send("ended", {"class": _class(error), "detail": error_text(error)})
        else:
            connection.send("ended", {"class": "ok", "detail": ""})
    os._exit(0)  # Python's normal exit would hang on a lost device


class _ServerConnection:
    """The connection to the server."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._progress: tuple[object, ...] = ()
        self._progress_at = 0.0

    def send(self, what: str, value: object) -> None:
        """Send a frame. If the server has ended, exit: the next server starts this job anew."""
        try:
            self._sock.sendall(frame({what: value}))
        except OSError:
            os._exit(1)

    def progress(self, position: int, event: Mapping[str, Any]) -> None:
        """Send what the sampler does: a new phase at once, the same one every PROGRESS_S."""
        what = (position, event.get("phase"), event.get("implementation"))
        now = time.monotonic()
        if what != self._progress or now > self._progress_at + PROGRESS_S:
            self._progress, self._progress_at = what, now
            self.send("progress", {"position": position, **event})

    def send_profile(
        self, position: int, implementation: str, file: str, content: bytes, error: str
    ) -> None:
        """Send a file of a profile in pieces, or why there is none."""
        for begin in range(0, max(1, len(content)), PIECE_BYTES):
            data = base64.b64encode(content[begin : begin + PIECE_BYTES]).decode()
            last = begin + PIECE_BYTES >= len(content)
            piece = {"position": position, "implementation": implementation, "file": file}
            rest = {"data": data, "last": last, "error": error[:MAX_ERROR_CHARS]}
            self.send("profile", {**piece, **rest})

    @contextlib.contextmanager
    def lease(self, settle: Callable[[], None]) -> Iterator[float | None]:
        """Use the device alone; `settle` waits until the device is idle.

        Yields:
            The seconds of timed work that the server allows; None if it sets no limit.
        """
        self.send("want", True)
        text = read_frame(self._sock)
        if text is None:
            os._exit(1)  # the server has ended
        try:
            yield json.loads(text).get("block_s")
        finally:
            try:
                settle()
            finally:  # if `settle` raises, the device is lost and idle
                self.send("release", True)


def _measure(task: Task, server: _ServerConnection) -> None:
    with quick_imports():
        import torch

        from warpcall_kernels import measuring
        from warpcall_kernels.op import launch
        from warpcall_service.worker import operator_code, uploaded

    # See `runs.runner`.
    interprets = bool(task["uploads"] or task["problem"]) and task["device"] == "cpu"
    if interprets:
        launch.interpret_only_others()
    device = torch.device(task["device"])
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.cuda.init()  # type: ignore[no-untyped-call]  # torch has no types here
    elif task["threads"]:
        torch.set_num_threads(task["threads"])
    sources = dict.fromkeys((i.name for i in measuring.shipped()), measuring.kernels_sha256())
    sources |= operator_code.load_for_job(task["modules"])
    for upload in task["uploads"]:
        sources[upload["name"]] = version_of(upload["op"], upload["function"], upload["source"])
    with temporary.folder() as folder:
        uploaded.load(task["uploads"], folder, interpreted=interprets)
        op: Op | str = task["op"]
        if task["problem"] is not None:
            op = uploaded.load_problem(task["problem"], folder, interpreted=interprets)
        _measure_cases(task, op, server, device, sources)


def _measure_cases(
    task: Task,
    op: Op | str,
    server: _ServerConnection,
    device: torch.device,
    sources: Mapping[str, str],
) -> None:
    import torch

    from warpcall_kernels import measuring

    found = measuring.fingerprint(device)
    hello = {
        "fingerprint": found,
        "environment": measuring.environment_class(found),
        "sources": {name: sources[name] for name in task["implementations"] if name in sources},
    }
    server.send("hello", hello)

    def settle() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    timed: dict[int, set[str]] = {}  # by position
    for position, spec in task["cases"]:
        result = measuring.measure(
            measuring.make_case(op, spec),
            task["implementations"],
            device,
            measuring.PRECISIONS[task["precision"]],
            seed=task["seed"] + position,
            lease=lambda: server.lease(settle),
            progress=lambda event, position=position: server.progress(position, event),  # type: ignore[misc]  # a default binds it
        )
        server.send("result", {"position": position, "case": result.to_json()})
        if result.device_lost:
            raise DeviceLost("an error that sticks ended the use of the device")
        timed[position] = {one.name for one in result.implementations if one.status == "ok"}
    if (wanted := task.get("profile")) is not None:
        for position, spec, names in wanted["cases"]:
            for name in names:
                if name in timed.get(position, names):
                    made, error = _profile(task, op, position, spec, name, server, settle)
                    files = PROFILE_FILES[wanted["profiler"]]
                    for file in files if not error else files[-1:]:
                        server.send_profile(position, name, file, made.get(file, b""), error)


def _profile(
    task: Task,
    op: Op | str,
    position: int,
    spec: Any,
    name: str,
    server: _ServerConnection,
    settle: Callable[[], None],
) -> tuple[Mapping[str, bytes], str]:
    """The files of the profile of an implementation in a case, and why there are none.

    All times have been measured before: the profiler would slow down what follows it.
    """
    from warpcall_kernels import measuring
    from warpcall_service.profilers import compiled, ncu
    from warpcall_service.profilers.program import NoProfile

    wanted = task["profile"]
    assert wanted is not None
    lease = functools.partial(server.lease, settle)
    try:
        case = measuring.make_case(op, spec)
        if wanted["profiler"] == "torch":
            most_bytes = wanted["most_bytes"]
            trace = measuring.trace(case, name, task["device"], most_bytes=most_bytes, lease=lease)
            return {"trace.json": trace}, ""
        if wanted["profiler"] == "compile":
            return {"compiled.json": compiled.report_of_job(task, position, name)}, ""
        files = ncu.profile_of_job(task, position, case.key, name, lease)
        return {"ncu-rep": files.report, "ncu.txt": files.text}, ""
    except (measuring.ProfileFailed, NoProfile) as error:
        return {}, str(error)
    except Exception as error:  # noqa: BLE001  # such as too little memory for the inputs
        return {}, error_text(error)


class DeviceLost(Exception):
    """The CUDA context cannot be used any more."""


def _class(error: Exception) -> str:
    from warpcall_kernels import InvalidInput
    from warpcall_kernels.measuring import class_of

    if isinstance(error, InvalidInput):
        return "invalid"
    if isinstance(error, DeviceLost):
        return "cuda_error"
    found = class_of(error)
    return found if found in ("oom", "cuda_error") else "killed"


if __name__ == "__main__":
    main()
