"""The process of one job: python -m warpcall_bench.programs.job_main, started by the job's reaper.

It measures the cases of its task in one thread, and returns the device after each timed block. Before
anything is timed, threads check several uploads side by side. Code of users never runs in it: each
upload, and the problem, has an upload process (`runs.peers`).
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import json
import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from warpcall_bench.profilers import apart
from warpcall_bench.profilers.messages import Made
from warpcall_bench.programs import profile_main
from warpcall_bench.programs.imports import import_for_cases
from warpcall_bench.programs.upload_starter import UploadStarter
from warpcall_bench.runs.messages import (
    MOST_PRINTED_OF_JOB,
    PIECE_BYTES,
    PROFILE_FILES,
    PROFILE_MODULE,
    JobTask,
    is_left_out,
    odd_at_once,
    problem_version,
    profiles_of,
    version_of_upload,
)
from warpcall_bench.runs.peers import UPLOAD_MODULE, PeerStarter, Reaper
from warpcall_bench.runs.trees import SourceTree, mentions
from warpcall_service.lanes.messages import frame, read_frame
from warpcall_service.processes import child
from warpcall_service.processes.imports import quick_imports
from warpcall_service.text import MAX_ERROR_CHARS, error_text

if TYPE_CHECKING:
    import torch

    from warpcall_kernels.measuring import Deadlines, JobCase, Lease, RemoteProblem, RemoteProcess

NOT_KEPT = "(not kept: what is kept of a job has reached 4 MiB)"
PROGRESS_S = 0.5  # between two frames about the same phase


def main() -> None:
    """Receive the task, measure, and send the results."""
    args = child.start(server_fd=int, reaper_fd=int)
    with (
        socket.socket(fileno=args.server_fd) as sock,
        socket.socket(fileno=args.reaper_fd) as to_reaper,
    ):
        # Before the task comes: the server may start this process before there is one. The upload
        # processes that the reaper starts at the same time import torch meanwhile.
        with quick_imports():
            import_for_cases()
        text = read_frame(sock)
        if text is None:
            return
        task: JobTask = json.loads(text)
        _read_contents(task, sock)
        # Not RLIMIT_AS: CUDA reserves more addresses than there is memory.
        resource.setrlimit(resource.RLIMIT_DATA, (task["memory_bytes"],) * 2)
        reaper = Reaper(to_reaper)
        connection = _ServerConnection(sock, reaper)
        try:
            _measure(task, connection, reaper)
        except Exception as error:  # noqa: BLE001  # any error ends the job
            connection.send("ended", {"class": _class(error), "detail": error_text(error)})
        else:
            connection.send("ended", {"class": "ok", "detail": ""})
    os._exit(0)  # Python's normal exit would hang on a lost device


def _read_contents(task: JobTask, sock: socket.socket) -> None:
    """Read the files of uploads that follow the task, and give each upload its own ones."""
    contents: dict[str, str] = {}
    for sha256 in task["behind"]:
        content = read_frame(sock)
        if content is None or hashlib.sha256(content).hexdigest() != sha256:
            os._exit(1)  # the server has ended
        contents[sha256] = base64.b64encode(content).decode()
    for upload in task["uploads"]:
        if files := upload.get("files"):
            upload["contents"] = {sha256: contents[sha256] for sha256 in files.values()}


class _ServerConnection:
    """The connection to the server."""

    def __init__(self, sock: socket.socket, reaper: Reaper) -> None:
        self._sock = sock
        self._sending = threading.Lock()
        self._reaper = reaper
        self._progress: tuple[object, ...] = ()
        self._progress_at = 0.0
        self._printed = 0  # bytes that were sent

    def send(self, what: str, value: object) -> None:
        """Send a frame. If the server has ended, exit: the next server starts this job anew."""
        try:
            with self._sending:
                self._sock.sendall(frame({what: value}))
        except OSError:
            os._exit(1)

    def _answer(self) -> dict[str, Any]:
        text = read_frame(self._sock)
        if text is None:
            os._exit(1)  # the server has ended
        answer: dict[str, Any] = json.loads(text)
        return answer

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

    def send_printed(self, position: int, implementation: str, text: str) -> None:
        """Send what an upload printed in a case; a note in its place if the job has sent too much."""
        data = text.encode()
        if self._printed + len(data) > MOST_PRINTED_OF_JOB:
            data = NOT_KEPT.encode()
        self._printed += len(data)
        what = {"position": position, "implementation": implementation}
        self.send("printed", {**what, "data": base64.b64encode(data).decode()})

    @contextlib.contextmanager
    def lease(self, settle: Callable[[], None]) -> Iterator[float | None]:
        """Use the device alone; `settle` waits until the device is idle.

        Yields:
            The seconds of timed work that the server allows; None if it sets no limit.
        """
        self.send("want", True)
        answer = self._answer()
        if not answer["go"]:  # another job runs now, and is timed
            with self._reaper.standing_still():
                while not answer["go"]:
                    answer = self._answer()
        try:
            yield answer.get("block_s")
        finally:
            try:
                settle()
            finally:  # if `settle` raises, the device is lost and idle
                self.send("release", True)


def _measure(task: JobTask, server: _ServerConnection, reaper: Reaper) -> None:
    uploads = {one["name"]: UploadStarter(reaper, one, task) for one in task["uploads"]}
    of_problem = PeerStarter(reaper, UPLOAD_MODULE)
    odd = [
        UploadStarter(reaper, one, task)
        for one in task["uploads"]
        if one["name"] in task.get("odd", ()) and uploads[one["name"]].calls_here
    ]
    # The reaper has started these already. The others start while the one before them is used.
    if task["problem"]:
        of_problem.start_ahead()
    # In a race each starts when it enters, and the next one then.
    ahead = [*uploads.values()][: 1 if task.get("race") else None]
    for starter in (*odd[: odd_at_once()], *ahead):  # in the order in which they are used
        starter.start_ahead()
    import torch

    from warpcall_bench.programs import operator_code
    from warpcall_kernels import measuring

    device = torch.device(task["device"])
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.cuda.init()  # type: ignore[no-untyped-call]  # torch has no types here
    elif task["threads"]:
        torch.set_num_threads(task["threads"])
    problem = task["problem"]
    # On a problem, the shipped implementations time its reference.
    shipped = problem_version(problem["source"]) if problem else measuring.kernels_sha256()
    sources = dict.fromkeys((i.name for i in measuring.shipped()), shipped)
    sources |= operator_code.load_for_job(task["modules"])
    remotes: dict[str, measuring.RemoteProcess] = {}
    for upload in task["uploads"]:
        name = upload["name"]
        sources[name] = version_of_upload(upload)
        remotes[name] = uploads[name].process()
        tags = () if upload.get("verified") else _tags(task, upload)
        measuring.register(measuring.remote_implementation(name, upload["op"], remotes[name], tags))
    if problem is None:
        make_case = functools.partial(measuring.make_case, task["op"], timed=_is_timed(task))
    else:
        remote = measuring.remote_problem(of_problem, {"problem": problem}, task["op"])
        make_case = functools.partial(_case_of_problem, remote, task)
    _say_hello(task, server, device, sources)
    _check_odd_cases(task, odd, remotes, server, device)
    _measure_cases(task, make_case, server, device)
    if profiles_of(task):
        _make_profiles(task, make_case, server, reaper, device)


def _tags(task: JobTask, tree: SourceTree) -> tuple[str, ...]:
    """Remarks on results of an upload: without a GPU Triton interprets its kernels.

    A source can avoid the word. docs/security.md says so, and what that is worth.
    """
    return ("interpreted",) if task["device"] == "cpu" and mentions(tree, "triton") else ()


def _say_hello(
    task: JobTask, server: _ServerConnection, device: torch.device, sources: Mapping[str, str]
) -> None:
    from warpcall_kernels import measuring

    found = measuring.fingerprint(device)
    hello = {
        "fingerprint": found,
        "environment": measuring.environment_class(found),
        "sources": {name: sources[name] for name in task["implementations"] if name in sources},
    }
    server.send("hello", hello)


def _check_odd_cases(
    task: JobTask,
    starters: Sequence[UploadStarter],
    remotes: Mapping[str, RemoteProcess],
    server: _ServerConnection,
    device: torch.device,
) -> None:
    """Check uploads in the odd cases of their op, before anything is timed.

    Each runs in a further process of its own, several side by side: most of the time they compile on
    a CPU. In the process that is timed, an autotuner could otherwise have chosen its configuration for
    the sizes of odd cases.

    Args:
        starters: of the processes for it, one for each upload.
        remotes: the processes that are timed. They are not started if the import was too late.
    """
    from warpcall_kernels import measuring, ops

    if not task["cases"] or not starters:
        return
    at_once = min(len(starters), odd_at_once())

    def check(number: int) -> None:
        for following in starters[number + at_once : number + at_once + 1]:
            following.start_ahead()
        starter = starters[number]
        name, process = starter.name, starter.process()
        event = {"phase": "correctness", **({"implementation": name} if at_once == 1 else {})}
        found = measuring.check_odd_cases(
            ops()[task["op"]],
            name,
            process,
            device,
            _deadlines(task),
            progress=lambda: server.progress(task["cases"][0][0], event),
            at_once=at_once,
        )
        remotes[name].begin_like(process)
        if found is not None:
            server.send("odd", {"implementation": name, "found": found.to_json()})

    with measuring.same_arithmetic(), ThreadPoolExecutor(at_once) as threads:
        for checked in [threads.submit(check, number) for number in range(len(starters))]:
            checked.result()


def _measure_cases(
    task: JobTask,
    make_case: Callable[[Any], JobCase],
    server: _ServerConnection,
    device: torch.device,
) -> None:
    from warpcall_kernels import measuring

    for position, spec in task["cases"]:
        measure = measuring.race if task.get("race") else measuring.measure
        result = measure(
            make_case(spec),
            task["implementations"],
            device,
            measuring.PRECISIONS[task["precision"]],
            seed=task["seed"] + position,
            lease=_lease(server, device),
            progress=lambda event, position=position: server.progress(position, event),  # type: ignore[misc]  # a default binds it
            printed=functools.partial(server.send_printed, position),
            deadlines=_deadlines(task),
        )
        server.send("result", {"position": position, "case": result.to_json()})
        if result.device_lost:
            raise DeviceLost("an error that sticks ended the use of the device")
        for one in result.implementations:
            _leave_out_profiles(task, position, one.name, one.status)


def _lease(server: _ServerConnection, device: torch.device) -> Lease:
    import torch

    def settle() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return lambda: server.lease(settle)


def _leave_out_profiles(task: JobTask, position: int, name: str, status: str) -> None:
    """Leave out what cannot be profiled: no profile needs no time, a sanitizer needs a kernel."""
    for wanted in profiles_of(task):
        if is_left_out(wanted["profiler"], status):
            for number, _, names in wanted["cases"]:
                if number == position and name in names:
                    names.remove(name)


def _make_profiles(
    task: JobTask,
    make_case: Callable[[Any], JobCase],
    server: _ServerConnection,
    reaper: Reaper,
    device: torch.device,
) -> None:
    """Make the profiles of the task; those that run code of users, each in a process of its own.

    All times have been measured before: a profiler would slow down what follows it.
    """
    lease = _lease(server, device)
    cases: dict[int, JobCase | Exception] = {}
    wanted_cases = [one for wanted in profiles_of(task) for one in wanted["cases"]]
    for position, spec, names in wanted_cases:
        if names and position not in cases:
            try:
                cases[position] = make_case(spec)
            except Exception as error:  # noqa: BLE001  # a problem may raise anything
                cases[position] = error
    reaper.end_all()  # no upload takes time or memory from what is profiled
    start = PeerStarter(reaper, PROFILE_MODULE, prints=False)
    uploads = {one["name"] for one in task["uploads"]}
    for wanted in profiles_of(task):
        this: JobTask = {**task, "profile": wanted, "sanitize": []}
        for position, _, names in wanted["cases"]:
            for name in names:
                case = cases[position]
                if isinstance(case, Exception):
                    made = Made({}, error_text(case))
                elif task["problem"] is not None or name in uploads:
                    made = apart.make(start, this, position, case.key, name, lease)
                else:
                    made = profile_main.make(this, position, case, name, lease)
                files = PROFILE_FILES[wanted["profiler"]]
                for file in files if not made.error else files[-1:]:
                    content = made.files.get(file, b"")
                    server.send_profile(position, name, file, content, made.error)


def _case_of_problem(remote: RemoteProblem, task: JobTask, spec: Any) -> JobCase:
    assert task["problem"] is not None
    case = remote.case(spec, timed=_is_timed(task), deadlines=_deadlines(task))
    return replace(
        case, op=replace(case.op, tags=_tags(task, {"source": task["problem"]["source"]}))
    )


def _is_timed(task: JobTask) -> bool:
    """Whether the job times its cases. Otherwise it may have cases without outputs, too."""
    from warpcall_kernels import measuring

    return measuring.PRECISIONS[task["precision"]].timed


def _deadlines(task: JobTask) -> Deadlines:
    from warpcall_kernels import measuring

    return measuring.Deadlines(task["call_s"], task["compile_s"])


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
