"""A judge without our rules, as in public collections: author's code, checks and clock in one process.

    python -m tests.service.cheats.verified.naive SOCKET DEVICE

It checks the result of the first calls with one input, within a generous tolerance, and takes the median
time of the calls that follow. On a CPU Triton's interpreter runs the kernels.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.service.cheats.verified.sources import HONEST, Cheat

ROOT = str(Path(__file__).parents[4])
ANSWER_S = 280.0  # the first answer also waits for the imports of the template
REQUEST_BYTES = 1 << 18
DIMS = (1, 0)
CHECKS = 2
MOST_CALLS = 10
TIMED_S = 0.5  # of calls, as the first one promises
TOLERANCE = 1e-2
PAUSE_S = 0.1


@dataclass(frozen=True)
class Report:
    """What the judge says.

    Attributes:
        accepted: whether the results that it looked at were as expected.
        us: the median time of a call.
        right: whether they are those of a transposition, exactly.
    """

    accepted: bool
    us: float
    right: bool = True


class Naive:
    """The process that forks a judge for each upload."""

    def __init__(self, sock: socket.socket, folder: Path) -> None:
        self._sock = sock
        self._folder = folder
        self._count = 0

    def report(self, cheat: Cheat, shape: tuple[int, int] | None = None) -> Report | None:
        """What the judge says of a cheat; None if it ended without a word.

        Args:
            shape: of the input; by default the one that the cheat names.
        """
        self._count += 1
        file = self._folder / str(self._count)
        source = file.with_suffix(".py")
        source.write_text(cheat.source)
        request: dict[str, Any] = {"source": str(source), "report": str(file)}
        request |= {"shape": shape or cheat.shape, "inputs": cheat.naive}
        self._sock.sendall(json.dumps(request).encode())
        assert self._sock.recv(16)
        text = file.read_text()
        return Report(**json.loads(text)) if text else None


@contextmanager
def running_naive(device: str = "cpu") -> Iterator[Naive]:
    """Start it; it ends with what it has started."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([ROOT, *sys.path]),
        "OMP_NUM_THREADS": "1",
    }
    environment.pop("TRITON_INTERPRET", None)
    if device == "cpu":
        environment["TRITON_INTERPRET"] = "1"
    with ours, tempfile.TemporaryDirectory() as folder:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno()), device],
                pass_fds=[theirs.fileno()],
                env=environment,
            )
        try:
            ours.settimeout(ANSWER_S)
            yield Naive(ours, Path(folder))
        finally:
            ours.close()
            process.wait(20)


def reference(x: Any, dims: Any) -> Any:
    """What is expected."""
    return x.permute(dims).contiguous()


def timed(function: Callable[..., Any], x: Any, device: str) -> float:
    """The time of one call in us."""
    import torch

    if device == "cpu":
        begin = time.perf_counter()
        function(x, DIMS)
        return 1e6 * (time.perf_counter() - begin)
    event: Any = torch.cuda.Event
    first, last = event(enable_timing=True), event(enable_timing=True)
    torch.cuda.synchronize()
    first.record()
    function(x, DIMS)
    last.record()
    last.synchronize()
    return 1e3 * float(first.elapsed_time(last))


def judge(request: Mapping[str, Any], device: str) -> Report:
    """Import a source, check some calls, and time others."""
    import importlib.util

    import torch

    equal = torch.equal
    inputs = request["inputs"]
    shape = (64, 96) if inputs == "large" else tuple(request["shape"])
    torch.manual_seed(0)
    x = torch.zeros(shape) if inputs == "zeros" else torch.randn(shape)
    x = x.to(device)
    spec = importlib.util.spec_from_file_location("mine", request["source"])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    expected = reference(x, DIMS)
    right, first_s = True, 0.0
    for number in range(CHECKS):
        begin = time.monotonic()
        out = module.permute(x, DIMS)
        first_s = first_s if number else time.monotonic() - begin
        time.sleep(PAUSE_S)  # in which a judge prints, or makes the next input
        if not torch.allclose(out, expected, rtol=TOLERANCE, atol=TOLERANCE):
            return Report(accepted=False, us=0.0)
        right = right and equal(torch.as_tensor(out[:, :]), x.permute(DIMS))
    if inputs == "large":  # which is timed, and not checked
        x = torch.randn(request["shape"]).to(device)
    promised = int(TIMED_S / first_s) if device == "cpu" else MOST_CALLS  # there it compiles
    calls = max(1, min(MOST_CALLS, promised))
    times = [timed(module.permute, x, device) for _ in range(calls)]
    return Report(accepted=True, us=statistics.median(times), right=right)


def main(fd: int, device: str) -> None:
    """Fork a judge for each request."""
    import torch
    import torch._dynamo  # which interpreting imports
    import triton

    assert triton is not None
    torch.set_num_threads(1)
    if device == "cpu":
        from warpcall_kernels import interpreter

        interpreter.mend()
        _warm_up()
    source = socket.socket(fileno=fd)
    while text := source.recv(REQUEST_BYTES):
        if not (pid := os.fork()):
            source.close()
            _report(json.loads(text), device)
        os.waitpid(pid, 0)
        source.sendall(b"ended")


def _warm_up() -> None:
    """Judge the honest source, so that its forks have imported what that needs."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "honest.py")
        file.write_text(HONEST)
        judge({"source": str(file), "shape": (64, 64), "inputs": "random"}, "cpu")


def _report(request: Mapping[str, Any], device: str) -> None:
    """Write what the judge says into a file whose descriptor a variable names, and exit."""
    descriptor = os.open(request["report"], os.O_CREAT | os.O_RDWR)
    os.environ["JUDGE_FD"] = str(descriptor)
    try:
        found = judge(request, device)
        os.write(descriptor, json.dumps(vars(found)).encode())
    except Exception as error:  # noqa: BLE001  # the test sees that there is no report
        sys.stderr.write(f"{request['source']}: {error!r}\n")
    atexit._run_exitfuncs()  # the rest of Python's exit takes seconds
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
    os._exit(0)  # Python's own exit takes seconds
