"""The side of a process that records launch plans: it runs code of users, without a GPU.

It answers as `serve` does, to the requests `load` and `record`. A plan that it answers with is its own
word, which the process that asked checks.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from warpcall_kernels.compile.architectures import ARCHITECTURES, Architecture, architecture
from warpcall_kernels.compile.pretended import pretending
from warpcall_kernels.execution import frames
from warpcall_kernels.execution.failures import (
    MAX_ERROR_CHARS,
    class_of,
    first_line,
    printable,
    traceback_of,
)
from warpcall_kernels.execution.inputs import BufferLayout
from warpcall_kernels.execution.spec import DTYPES
from warpcall_kernels.execution.verified import PLAN_BYTES
from warpcall_kernels.interpreter import needs_gpu
from warpcall_kernels.op.declaration import Meta
from warpcall_kernels.verified.cuda import CudaCompileError, plan_of_source
from warpcall_kernels.verified.declaration import Declaration, InvalidDeclaration
from warpcall_kernels.verified.inspection import Refused
from warpcall_kernels.verified.launched import use_driver
from warpcall_kernels.verified.memory import untouched
from warpcall_kernels.verified.plan import Plan
from warpcall_kernels.verified.record import (
    CannotCompile,
    NotVerifiable,
    Recording,
    record_declared,
    trace,
)

DECORATED = "__warpcall_launches__"  # where the client's decorator puts a declaration
USUAL = "sm_90"  # what a source sees while it is imported, unless the data to load it say otherwise
MOST_PROCESSES = 16  # that compile side by side; each may take some 200 MB
POLL_S = 0.01
OUTPUT = (1, 2)  # descriptors


@dataclass(frozen=True)
class Recorded:
    """What a process that records has loaded.

    Args:
        function: the uploaded host function; it takes inputs and parameters by name.
        error: why there is none.
        module: of the function, which has the kernels that a declaration names.
        language: "python" or "cuda".
        source: its text.
        folders: where CUDA C++ finds files that it includes; empty if it is a single file.
        declaration: of the launches as JSON; None if those of the function are recorded.
        optional: names of the optional inputs of the op, which are null in a declaration of CUDA C++ if a
            case has not got them.
    """

    function: Callable[..., Any] | None = None
    error: BaseException | None = None
    module: ModuleType | None = None
    language: str = "python"
    source: str = ""
    folders: tuple[str, ...] = ()
    declaration: Any = None
    optional: Sequence[str] = ()


def serve_recorder(sock: socket.socket, load: Callable[[dict[str, Any]], Recorded]) -> None:
    """Answer requests until the process that asks has ended.

    Args:
        sock: the connection to it.
        load: imports the uploaded source; called with what was sent for it. The source sees a GPU of
            the architecture that the member `gpu` names.
    """
    serving = _Serving(sock, load)
    try:
        while True:
            request = frames.receive(sock, most_bytes=PLAN_BYTES)
            frames.send(sock, {**serving.answer(request), "number": request["number"]})
    except frames.Ended:
        return


class _Serving:
    """Answers the requests.

    Args:
        sock: for messages before an answer.
    """

    def __init__(self, sock: socket.socket, load: Callable[[dict[str, Any]], Recorded]) -> None:
        self._sock = sock
        self._load = load
        self._recorded = Recorded()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what a request asks, and return its answer, or what was raised."""
        try:
            answer: dict[str, Any] = getattr(self, f"do_{request['do']}")(request)
        except BaseException as error:  # noqa: BLE001  # code of others may raise anything
            answer = {"failed": _failed(error)}
        _flush()
        return answer

    def do_load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Import the source; says first that this process has imported what it needs itself."""
        frames.send(self._sock, {"first": True, "number": request["number"]})
        data = request["data"]
        target = ARCHITECTURES.get(data.get("gpu"), ARCHITECTURES[USUAL])
        use_driver(target)
        with pretending(target):
            self._recorded = self._load(data)
        return {}

    def do_record(self, request: dict[str, Any]) -> dict[str, Any]:
        """The launch plan of a case: its parameters, the layouts of inputs, the metas of outputs."""
        layouts = {n: BufferLayout.from_json(d) for n, d in request["layouts"].items()}
        metas = {n: Meta(tuple(s), DTYPES[d]) for n, (s, d) in request["outputs"].items()}
        params = {n: tuple(v) if isinstance(v, list) else v for n, v in request["params"].items()}
        plan = plan_of(self._recorded, layouts, params, metas, architecture(request["gpu"]))
        return {"plan": plan.to_json()}

    def do_prepare(self, request: dict[str, Any]) -> dict[str, Any]:
        """Record many cases in processes side by side, for Triton's cache on the disk.

        Threads would wait for each other: most of Triton's compiler holds Python's lock.
        """
        if self._recorded.language == "cuda":  # its cubins are kept in this process
            return {}
        cases = request["cases"]
        count = min(len(cases), len(os.sched_getaffinity(0)), MOST_PROCESSES)
        until = time.monotonic() + request["until_s"]
        started = [
            self._record_apart([{"gpu": request["gpu"], **case} for case in cases[number::count]])
            for number in range(count)
        ]
        while started and time.monotonic() < until:
            started = [pid for pid in started if os.waitpid(pid, os.WNOHANG) == (0, 0)]
            time.sleep(POLL_S)
        for pid in started:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        return {}

    def _record_apart(self, requests: Sequence[dict[str, Any]]) -> int:
        """Start a process that records some cases and answers nothing; returns its id."""
        _flush()
        if pid := os.fork():
            return pid
        with contextlib.suppress(BaseException):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for fd in OUTPUT:
                os.dup2(nowhere, fd)  # it prints again when the case is recorded
            for request in requests:
                with contextlib.suppress(Exception):
                    self.do_record(request)
        os._exit(0)


def plan_of(
    recorded: Recorded,
    layouts: Mapping[str, BufferLayout],
    params: Mapping[str, Any],
    outputs: Mapping[str, Meta],
    target: Architecture,
) -> Plan:
    """The launch plan of one case of what was loaded.

    Raises:
        NotVerifiable: it does what no plan can have, or its declaration does not fit.
        CannotCompile: a kernel cannot be compiled.
        Exception: whatever the source raises.
    """
    return recording_of(recorded, layouts, params, outputs, target)[0]


def recording_of(
    recorded: Recorded,
    layouts: Mapping[str, BufferLayout],
    params: Mapping[str, Any],
    outputs: Mapping[str, Meta],
    target: Architecture,
) -> tuple[Plan, Recording | None]:
    """The launch plan as in `plan_of`, and what `propose` takes unless the launches are declared."""
    if recorded.error is not None:
        raise recorded.error.with_traceback(recorded.error.__traceback__)
    if recorded.language == "cuda":
        return _cuda_plan(recorded, layouts, params, outputs, target), None
    function, declared = recorded.function, recorded.declaration
    inputs = tensors_of(layouts)
    if declared is None:
        declared = getattr(function, DECORATED, None)
    if declared is None:
        assert function is not None
        recording = trace(function, inputs, params, outputs, target)
        return recording.plan, recording
    try:
        declaration = Declaration.from_json(declared)
        module = recorded.module
        plan = record_declared(module, declaration, inputs, params, outputs, target, function)
    except InvalidDeclaration as error:
        raise NotVerifiable(str(error)) from None
    return plan, None


def _cuda_plan(
    recorded: Recorded,
    layouts: Mapping[str, BufferLayout],
    params: Mapping[str, Any],
    outputs: Mapping[str, Meta],
    target: Architecture,
) -> Plan:
    absent = [name for name in recorded.optional if name not in layouts]
    inputs = {**layouts, **dict.fromkeys(absent)}
    try:
        declaration = Declaration.from_json(recorded.declaration)
        return plan_of_source(
            recorded.source, declaration, inputs, params, outputs, target, recorded.folders
        )
    except (InvalidDeclaration, Refused) as error:
        raise NotVerifiable(str(error)) from None


def tensors_of(layouts: Mapping[str, BufferLayout]) -> dict[str, torch.Tensor]:
    """Inputs that lie as their layouts say, in memory that nothing touches."""
    return {
        name: untouched(one.dtype, one.shape, one.strides, one.begin * one.dtype.itemsize)
        for name, one in layouts.items()
    }


def _failed(error: BaseException) -> dict[str, Any]:
    """What an answer says of an exception."""
    if isinstance(error, NotVerifiable):
        return {"status": "error", "error": _text(str(error)), "traceback": None}
    if isinstance(error, CudaCompileError):
        log = printable(str(error))
        return {"status": "compile_error", "error": _text(log.split("\n")[0]), "traceback": log}
    if isinstance(error, CannotCompile):
        text = _text(str(error))
        return {"status": "compile_error", "error": text, "traceback": traceback_of(error.error)}
    text = first_line(error)
    if needs_gpu(error):
        text = _text(f"it is recorded without a GPU: {text}")
    return {"status": class_of(error), "error": text, "traceback": traceback_of(error)}


def _text(text: str) -> str:
    return printable(text)[:MAX_ERROR_CHARS]


def _flush() -> None:
    """Write out what the source has printed."""
    for stream in (sys.stdout, sys.stderr):  # the code may have put anything in their place
        with contextlib.suppress(BaseException):
            stream.flush()
