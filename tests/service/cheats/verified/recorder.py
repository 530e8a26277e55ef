"""Records and checks verified uploads for tests, each in processes of its own, without a GPU.

    pytest - template - judge (asks, checks the plan, inspects it) - starter - recorder

As in `tests.service.cheats.judge`, the template has imported torch and Triton, and all others are its
forks. The judge does what a job's process does, by the same code.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import gc
import importlib
import json
import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from tests.service.cheats.verified.sources import Cheat
from warpcall_bench.programs import compile_only
from warpcall_bench.runs.peer_child import ANY, PR_SET_CHILD_SUBREAPER, PR_SET_PTRACER

ROOT = str(Path(__file__).parents[4])
ANSWER_S = 280.0  # the first answer also waits for the imports of the template
REQUEST_BYTES = 1 << 18
GPU = "sm_90"
# What judges and recorders import, before they are forked.
IMPORTED = (
    "torch._dynamo",  # by recording and interpreting
    "triton.experimental.gluon.nvidia.hopper",  # by the first launch of a kernel, in 0.15 s
    "tests.service.cheats.judge",
    "warpcall_bench.programs.record_main",
    "warpcall_bench.programs.uploaded",
    "warpcall_kernels.execution.record_server",
    "warpcall_kernels.measuring",
)


@dataclass(frozen=True)
class Request:
    """Some cases of one upload.

    Args:
        upload: as a job's process gets it.
        shapes: of the input, for each case.
        off: names of rules that are switched off.
        folder: for files of the source.
        compile_s: seconds for the import and for each plan.
    """

    upload: Mapping[str, Any]
    shapes: Sequence[Sequence[int]]
    folder: str
    off: Sequence[str] = ()
    compile_s: float = 30.0
    dtype: str = "F32"


@dataclass(frozen=True)
class Answer:
    """What a job on a machine without a GPU says of one case.

    Attributes:
        status: "unchecked" if nothing was refused.
        plan: the launch plan as JSON, if it was read.
    """

    status: str
    error: str
    plan: Any


class Recorders:
    """The template, as the tests see it."""

    def __init__(self, sock: socket.socket, folder: Path) -> None:
        self._sock = sock
        self._folder = folder
        self._count = 0

    def answers(self, cheat: Cheat, *off: str, shapes: Any = None, compile_s: float = 30.0) -> Any:
        """What a job says of each case of a cheat, with some rules switched off."""
        self._count += 1
        folder = self._folder / str(self._count)
        folder.mkdir()
        rows, columns = cheat.shape
        cases = shapes or [(rows + 32 * n, columns) for n in range(cheat.cases)]
        return self._ask(Request(cheat.upload, cases, str(folder), off, compile_s))

    def answer(self, cheat: Cheat, *off: str, compile_s: float = 30.0) -> Answer:
        """What a job says of the last case of a cheat."""
        found: list[Answer] = self.answers(cheat, *off, compile_s=compile_s)
        return found[-1]

    def _ask(self, request: Request) -> list[Answer]:
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
        return [Answer(**one) for one in found["answers"]]


@contextmanager
def running_recorders(folder: Path) -> Iterator[Recorders]:
    """Start the template; it ends with what it has started."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * REQUEST_BYTES)
    path = os.pathsep.join([ROOT, *sys.path])
    with ours:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno()), str(folder)],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            )
        try:
            yield Recorders(ours, folder)
        finally:
            ours.close()
            process.wait(20)


def template(fd: int, folder: Path) -> None:
    """Import what recorders need, and fork a judge for each request."""
    compile_only.prepare(folder)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch

    import warpcall_kernels
    from warpcall_kernels.compile.first_launch import skip_hash

    for name in IMPORTED:
        importlib.import_module(name)
    warpcall_kernels.ops()
    torch.set_num_threads(1)
    skip_hash()
    gc.freeze()  # so that the forks do not write to what they share
    source = socket.socket(fileno=fd)
    while True:
        text, fds, _, _ = socket.recv_fds(source, REQUEST_BYTES, 1)
        if not text:
            return
        if not (pid := os.fork()):
            source.close()
            with socket.socket(fileno=fds[0]) as answer:
                answer.sendall(json.dumps(_judged(Request(**json.loads(text)))).encode())
            os._exit(0)
        os.close(fds[0])
        os.waitpid(pid, 0)


def _judged(request: Request) -> dict[str, Any]:
    from tests.service.cheats.judge import running_starter

    with running_starter(functools.partial(_be_recorder, request)) as starter:
        try:
            for name in request.off:
                RULES[name]()
            return {"answers": _answers(request, starter.start)}
        except BaseException:  # noqa: BLE001  # the test shows it
            return {"raised": traceback.format_exc()}


def _answers(request: Request, start: Callable[[], Any]) -> list[dict[str, Any]]:
    from warpcall_kernels import measuring
    from warpcall_kernels.execution.inputs import layout_of
    from warpcall_kernels.execution.process import RemoteFailed
    from warpcall_kernels.execution.spec import CODES

    recorder = measuring.RemoteProcess(start, {"upload": dict(request.upload), "gpu": GPU})
    plans: list[Any] = []

    class Process(measuring.VerifiedProcess):
        """A process that has no GPU, and keeps the plans that were read."""

        def _recorded(self, *given: Any) -> Any:
            plan = super()._recorded(*given)
            plans.append(plan.to_json())
            return plan

    def never() -> NoReturn:
        raise RuntimeError("nothing is called without a GPU")

    process = Process(never, recorder, GPU, on_gpu=False)
    found = []
    for shape in request.shapes:
        spec = {"shape": [*shape], "dtype": request.dtype, "params": {"dims": [1, 0]}}
        case = measuring.make_case("permute", spec)
        layouts = {name: layout_of(sample).to_json() for name, sample in case.inputs.items()}
        outputs = {name: [list(m.shape), CODES[m.dtype]] for name, m in case.outputs.items()}
        described = {"params": dict(case.params), "layouts": layouts, "outputs": outputs}
        plans.clear()
        with contextlib.suppress(RemoteFailed):
            try:
                process.case_data(described, measuring.Deadlines(5.0, request.compile_s))
            except RemoteFailed as failed:
                plan = plans[0] if plans else None
                found.append({"status": failed.status, "error": failed.error, "plan": plan})
                raise
    process.end()
    return found


def _be_recorder(request: Request, fd: int, count: int) -> NoReturn:
    """Be a recorder, as `warpcall_bench.programs.record_main` is."""
    from warpcall_bench.programs import record_main
    from warpcall_kernels.execution.record_server import serve_recorder

    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(PR_SET_PTRACER, ANY, 0, 0, 0)
    for entry in [*Path("/proc/self/fd").iterdir()]:  # the judge's own
        if int(entry.name) not in (0, 1, 2, fd):
            with contextlib.suppress(OSError):
                os.close(int(entry.name))
    if "the inspection" in request.off:
        _inspect_nothing()
    folder = Path(request.folder, str(count))
    folder.mkdir()
    serve_recorder(socket.socket(fileno=fd), lambda message: record_main._load(message, folder))
    os._exit(0)


def _replace(owner: Any, name: str, value: Any) -> None:
    setattr(owner, name, value)


def _trust_plans() -> None:
    """Carry out each plan as it comes."""
    from tests.service.cheats.verified.trusting import read
    from warpcall_kernels.execution import verified

    _replace(verified, "read_plan", lambda data, *_: read(data))


def _inspect_nothing() -> None:
    from warpcall_kernels.execution import verified
    from warpcall_kernels.verified import cuda

    _replace(verified, "inspect", lambda _: None)
    _replace(cuda, "inspect", lambda _: None)  # which tells earlier what will be refused


def _number_all_alike() -> None:
    from warpcall_kernels.execution import process

    _replace(process, "secrets", SimpleNamespace(randbits=lambda _: 7))


RULES: dict[str, Callable[[], None]] = {
    "the check of plans": _trust_plans,
    "the inspection": _inspect_nothing,
    "numbers of requests": _number_all_alike,
}


if __name__ == "__main__":
    template(int(sys.argv[1]), Path(sys.argv[2]))
    os._exit(0)  # Python's own exit takes seconds
