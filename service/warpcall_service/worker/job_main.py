"""What measures: python -m warpcall_service.worker.job_main, a new process for each job, below its reaper.

It does nothing but what its `Task` says, in one thread, and gives the device back after each timed block.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from warpcall_service.lanes.messages import frame, read_frame
from warpcall_service.processes import child
from warpcall_service.runs.messages import Task

PROGRESS_S = 0.5  # between two frames that tell of the same
MAX_DETAIL = 1000  # characters of an exception's text


def main() -> None:
    """Measure, tell, and leave."""
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
        except Exception as error:  # noqa: BLE001  # whatever it is, it is this job's end
            connection.send("ended", {"class": _class(error), "detail": _brief(error)})
        else:
            connection.send("ended", {"class": "ok", "detail": ""})
    os._exit(0)  # a lost device would hang in the tidying-up


class _ServerConnection:
    """The server's end of the socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._progress: tuple[object, ...] = ()
        self._progress_at = 0.0

    def send(self, what: str, value: object) -> None:
        """Send a frame, or leave: a server that has gone starts this job anew."""
        try:
            self._sock.sendall(frame({what: value}))
        except OSError:
            os._exit(1)

    def progress(self, position: int, event: Mapping[str, Any]) -> None:
        """Tell what the sampler does, at once if it is something else, else now and then."""
        what = (position, event.get("phase"), event.get("implementation"))
        now = time.monotonic()
        if what != self._progress or now > self._progress_at + PROGRESS_S:
            self._progress, self._progress_at = what, now
            self.send("progress", {"position": position, **event})

    @contextlib.contextmanager
    def lease(self, settle: Callable[[], None]) -> Iterator[None]:
        """Have the device alone; `settle` waits until what runs there has ended."""
        self.send("want", True)
        if read_frame(self._sock) is None:
            os._exit(1)  # the server has gone
        try:
            yield
        finally:
            try:
                settle()
            finally:  # an error that sticks comes out of it, and nothing runs there any more
                self.send("release", True)


def _measure(task: Task, server: _ServerConnection) -> None:
    import torch

    from warpcall_kernels import measuring

    device = torch.device(task["device"])
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.cuda.init()  # type: ignore[no-untyped-call]  # torch has no types here
    elif task["threads"]:
        torch.set_num_threads(task["threads"])
    for module in task["modules"]:
        measuring.load(module)
    found = measuring.fingerprint(device)
    server.send("hello", {"fingerprint": found, "environment": measuring.environment_class(found)})

    def settle() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    for position, spec in task["cases"]:
        result = measuring.measure(
            measuring.make_case(task["op"], spec),
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


class DeviceLost(Exception):
    """The CUDA context is of no use any more."""


def _class(error: Exception) -> str:
    from warpcall_kernels import InvalidInput
    from warpcall_kernels.measuring import class_of

    if isinstance(error, InvalidInput):
        return "invalid"
    if isinstance(error, DeviceLost):
        return "cuda_error"
    found = class_of(error)
    return found if found in ("oom", "cuda_error") else "killed"


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip()[:MAX_DETAIL]


if __name__ == "__main__":
    main()
