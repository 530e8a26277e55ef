"""Measures uploads for tests, each measurement in a process of its own.

    pytest - template - judge (measures) - starter - upload process

The template imports torch once, and its forks have it. Upload processes are forks of a process that
has measured nothing, so that they hold nothing of the judge. There is no sandbox around them, but
they are stopped, resumed and ended by the code of real jobs.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from tests.service.cheats import rules
from warpcall_bench.runs.peer_child import ANY, PR_SET_CHILD_SUBREAPER, PR_SET_PTRACER

ROOT = str(Path(__file__).parents[3])
ANSWER_S = 120.0
REQUEST_BYTES = 1 << 18
FUNCTION = {"permute": "permute", "masked-softmax": "masked_softmax"}
PERMUTE = {"shape": [1000, 1000], "dtype": "F32", "params": {"dims": [1, 0]}}


@dataclass(frozen=True)
class Request:
    """A measurement.

    Args:
        sources: the uploads by name.
        folder: for their files.
        implementations: names, of which the first is the one that the others are compared with.
        off: names of rules that are switched off.
        rounds: number of rounds.
        call_s: seconds for one call.
        short_us: calls below this time are timed many at once.
    """

    sources: Mapping[str, str]
    folder: str
    implementations: Sequence[str]
    op: str = "permute"
    spec: Mapping[str, Any] = field(default_factory=lambda: PERMUTE)
    off: Sequence[str] = ()
    rounds: int = 10
    call_s: float = 10.0
    short_us: float = 0.0


@dataclass(frozen=True)
class Measured:
    """Results by implementation.

    Attributes:
        beside: samples of shipped implementations in which a process of an upload did not stand
            still.
    """

    rows: Mapping[str, dict[str, Any]]
    beside: int


class Judge:
    """The template, as the tests see it."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def measure(self, request: Request) -> Measured:
        """Measure, and return the results."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                text = json.dumps(dataclasses.asdict(request)).encode()
                socket.send_fds(self._sock, [text], [theirs.fileno()])
            ours.settimeout(ANSWER_S)
            parts = []
            while part := ours.recv(1 << 16):
                parts.append(part)
        found = json.loads(b"".join(parts))
        assert "raised" not in found, found["raised"]
        rows = {one["name"]: one for one in found["case"]["implementations"]}
        return Measured(rows, found["beside"])


@contextmanager
def running_judge() -> Iterator[Judge]:
    """Start the template; it ends with its measurements."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.service.cheats.judge", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": ROOT, "OMP_NUM_THREADS": "1"},
            )
        try:
            yield Judge(ours)
        finally:
            ours.close()
            process.wait(20)


def template(fd: int) -> None:
    """Import what measurements need, and fork a judge for each request."""
    import torch

    import warpcall_kernels
    import warpcall_kernels.measuring

    warpcall_kernels.ops()
    torch.set_num_threads(1)
    source = socket.socket(fileno=fd)
    while True:
        text, fds, _, _ = socket.recv_fds(source, REQUEST_BYTES, 1)
        if not text:
            return
        if not (pid := os.fork()):
            with socket.socket(fileno=fds[0]) as answer:
                answer.sendall(json.dumps(_judge(Request(**json.loads(text)))).encode())
            os._exit(0)
        os.close(fds[0])
        os.waitpid(pid, 0)


def _judge(request: Request) -> dict[str, Any]:
    with running_starter(functools.partial(_be_upload, request)) as starter:
        try:
            beside = _count_samples_beside(starter.pid)
            return {"case": _measured(request, starter), "beside": len(beside)}
        except BaseException:  # noqa: BLE001  # the test shows it
            return {"raised": traceback.format_exc()}


def _count_samples_beside(starter: int) -> list[int]:
    from warpcall_bench.runs import process_tree
    from warpcall_kernels.execution import clock

    found: list[int] = []
    sample_us = clock.CpuClock.sample_us

    def counting(*given: Any) -> float:
        found.extend([*filter(process_tree.runs, process_tree.descendants(starter))][:1])
        return sample_us(*given)

    setattr(clock.CpuClock, "sample_us", counting)  # noqa: B010  # mypy refuses the assignment
    return found


def _measured(request: Request, starter: Starter) -> dict[str, Any]:
    from warpcall_bench.programs import uploaded
    from warpcall_kernels import measuring
    from warpcall_kernels.execution import clock

    clock.MAX_CPU_CACHE = 1 << 20  # the bytes overwritten before each sample depend on it
    clock.CpuClock.short_us = request.short_us  # type: ignore[assignment]
    _switch_off(request.off)
    for name, source in request.sources.items():
        upload = {"name": name, "function": FUNCTION[request.op], "source": source}
        if rules.PROCESS in request.off:
            loaded = uploaded.load(upload, Path(request.folder))  # type: ignore[arg-type]
            assert loaded.function is not None, loaded.error
            measuring.register(_in_this_process(name, request.op, loaded.function))
            continue
        process = measuring.RemoteProcess(starter.start, upload)
        measuring.register(measuring.remote_implementation(name, request.op, process))
    precision = measuring.Precision(
        *("test", 20),
        min_rounds=request.rounds,
        min_seconds=0,
        max_rounds=request.rounds,
        warm_window_s=0.01,
        warm_seconds=0.02,
        extras=False,
    )
    found = measuring.measure(
        measuring.make_case(request.op, request.spec),
        request.implementations,
        "cpu",
        precision,
        lease=lambda: contextlib.nullcontext(0.001),  # one sample in each block
        deadlines=measuring.Deadlines(request.call_s, 2 * request.call_s),
    )
    return found.to_json()


def _in_this_process(name: str, op: str, function: Callable[..., Any]) -> Any:
    from warpcall_kernels import measuring

    def build(_: Any, params: Mapping[str, Any]) -> Callable[..., Any]:
        return lambda **inputs: function(**inputs, **params)

    return measuring.Implementation(name, "for tests", build, (op,))


def _switch_off(names: Sequence[str]) -> None:
    for name in names:
        rules.RULES[name]()


class Starter:
    """Starts and ends upload processes, in the place of a job's reaper."""

    def __init__(self, sock: socket.socket, pid: int) -> None:
        self._sock = sock
        self.pid = pid

    def start(self) -> Any:
        """Start an upload process."""
        from warpcall_bench.runs.peers import Peer

        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._sock, [b"start"], [theirs.fileno()])
        pid = int(self._sock.recv(64))
        started: Any = {"root": pid, "processes": "", "bubblewrap": []}
        peer = Peer(self, pid, ours, started)  # type: ignore[arg-type]
        peer.pid = pid
        peer._pidfd = os.pidfd_open(pid)
        return peer

    def end(self, number: int, *, ended: bool) -> dict[str, Any]:
        """End an upload process and all that it has started."""
        self._sock.send(f"{number} {int(ended)}".encode())
        status = int(self._sock.recv(64))
        return {"status": status if ended else None, "out_of_memory": False, "left": False}


BeUpload = Callable[[int, int], NoReturn]


@contextmanager
def running_starter(be_upload: BeUpload) -> Iterator[Starter]:
    """Start a process that starts upload processes.

    Args:
        be_upload: what such a process does; called with its socket, and how many there have been.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if not (pid := os.fork()):
        ours.close()
        _serve_starts(theirs, be_upload)
    theirs.close()
    with ours:
        yield Starter(ours, pid)
    os.waitpid(pid, 0)


def _serve_starts(sock: socket.socket, be_upload: BeUpload) -> NoReturn:
    from warpcall_bench.runs import process_tree

    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    count = 0
    while True:
        text, fds, _, _ = socket.recv_fds(sock, 64, 1)
        if text == b"start":
            count += 1
            if not (pid := os.fork()):
                # As a reaper starts it. In the group of pytest, one that is stopped could let the kernel
                # send SIGHUP to the whole group, if pytest was started with `setsid`.
                os.setsid()
                sock.close()
                be_upload(fds[0], count)
            os.close(fds[0])
            sock.send(str(pid).encode())
        elif text:
            pid, ended = map(int, text.split())
            if not ended:
                process_tree.send({pid}, signal.SIGKILL)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            process_tree.send(process_tree.descendants(os.getpid()), signal.SIGKILL)
            sock.send(str(status).encode())
        else:
            process_tree.send(process_tree.descendants(os.getpid()), signal.SIGKILL)
            os._exit(0)


def _be_upload(request: Request, fd: int, count: int) -> NoReturn:
    """Be an upload process, as `warpcall_bench.programs.upload_main` is."""
    from warpcall_bench.programs import uploaded
    from warpcall_kernels import measuring
    from warpcall_kernels.execution import clock

    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(PR_SET_PTRACER, ANY, 0, 0, 0)
    clock.MAX_CPU_CACHE = 1 << 20
    _switch_off([name for name in request.off if name != rules.PROCESS])

    def load(upload: Any) -> measuring.Loaded:
        folder = Path(request.folder, f"{count}-{os.getpid()}")
        folder.mkdir()
        return uploaded.load(upload, folder)

    measuring.serve(socket.socket(fileno=fd), load, "cpu")
    os._exit(0)


if __name__ == "__main__":
    template(int(sys.argv[1]))
    os._exit(0)  # Python's own exit takes seconds
