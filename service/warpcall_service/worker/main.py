"""The worker process of a lane: python -m warpcall_service.worker.main, started by the server.

The main thread runs calls. A second thread, the planning thread, checks calls and jobs meanwhile.
The process ends when the server ends.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import logging
import mmap
import os
import pkgutil
import socket
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from warpcall import wire
from warpcall.errors import InvalidInput, KernelFailed, NotFound, Problem
from warpcall_service.extension import load
from warpcall_service.lanes.arena_memory import prefault, takes_all
from warpcall_service.lanes.messages import Hello, NoSuchDevice, frame, read_frame
from warpcall_service.processes import child
from warpcall_service.processes.imports import quick_imports, release_import_memory
from warpcall_service.text import error_text

if TYPE_CHECKING:
    from warpcall_service.devices.device import Device

PlanRequest = Callable[[Any, str], Mapping[str, Any]]

log = logging.getLogger("warpcall.lane")


def main() -> None:
    """Run calls until the server closes the sockets or ends."""
    args = child.start(
        device=str,
        arena_nbytes=int,
        threads=int,
        warm=int,
        calls_only=int,
        arena_fd=int,
        calls_fd=int,
        plans_fd=int,
    )
    child.outlast_sigterm()
    run_worker(args, mmap.mmap(args.arena_fd, args.arena_nbytes))
    os._exit(0)  # the operating system frees everything: no clean-up is needed


def run_worker(args: argparse.Namespace, arena: mmap.mmap) -> None:
    """Run calls until the server closes the sockets.

    Args:
        args: the options of `main`.
        arena: the memory of calls, which the server shares.

    Raises:
        SystemExit: the device cannot be opened; the server knows why.
    """
    with (
        socket.socket(fileno=args.calls_fd) as calls,
        socket.socket(fileno=args.plans_fd) as plans,
    ):
        _run(args, arena, calls, plans)


def _run(
    args: argparse.Namespace, arena: mmap.mmap, calls: socket.socket, plans: socket.socket
) -> None:
    takes = takes_all(args.device)
    prefaulting = threading.Thread(target=prefault, args=(arena, lambda: not takes), daemon=True)
    prefaulting.start()  # while torch is imported
    try:
        device, hello = _open_device(args.device, arena, args.threads)
        plan_requests = {} if args.calls_only else _plan_requests()
    except Exception as error:
        if isinstance(error, NoSuchDevice):
            text = str(error)  # an operator's mistake needs no traceback
        else:
            log.exception("the lane cannot start")
            text = error_text(error)
        with contextlib.suppress(BrokenPipeError):  # the server has ended meanwhile
            plans.sendall(frame({"error": text}))
        raise SystemExit(1) from None
    prefaulting.join()
    if device.name == "cpu":
        release_import_memory()
    answers = Answers(plans)
    launching = threading.Lock()
    if args.warm and device.name != "cpu":
        _start_warming(device.name, launching, answers)
    if not answers.send(hello):
        return
    threading.Thread(
        target=_answer_requests,
        args=(plans, answers, device.name, plan_requests),
        daemon=True,
    ).start()
    _run_calls(calls, device, launching)


class Answers:
    """Sends frames to the server from several threads."""

    def __init__(self, plans: socket.socket) -> None:
        self._plans = plans
        self._lock = threading.Lock()

    def send(self, payload: object) -> bool:
        """Send a frame, and return whether the server takes it: it may have ended."""
        with self._lock, contextlib.suppress(BrokenPipeError):
            self._plans.sendall(frame(payload))
            return True
        return False


def _start_warming(device: str, launching: threading.Lock, answers: Answers) -> None:
    import torch

    from warpcall_service.worker.warmup import LaneWarmer

    major, minor = torch.cuda.get_device_capability(device)
    LaneWarmer(
        device,
        major * 10 + minor,
        launching,
        lambda what, done, count: answers.send({"warming": [what, done, count]}),
    ).start()


def _open_device(device_name: str, arena: mmap.mmap, threads: int) -> tuple[Device, Hello]:
    with quick_imports():
        from warpcall_kernels import measuring, ops  # imports torch, so not before the lines above
        from warpcall_service.devices.open_device import open_device
        from warpcall_service.devices.tensors import describe
        from warpcall_service.worker import program_planner  # noqa: F401  # for the first request

    if takes_all(device_name):  # a GPU, which takes a second to open
        threading.Thread(target=_prepare_first_launch, name="first-launch", daemon=True).start()
    device = open_device(device_name, arena, threads)
    fingerprint = measuring.fingerprint(device.name)
    return device, {
        "device": device.name,
        "label": device.label,
        "devices": device.all,
        "memory_nbytes": device.memory_nbytes,
        "fingerprint": fingerprint,
        "environment": measuring.environment_class(fingerprint),
        "minor": measuring.minor_number(device.name),
        "catalog": [describe(op) for op in ops().values()],
    }


def _prepare_first_launch() -> None:
    from warpcall_kernels.compile.first_launch import prepare_first_launch

    try:
        prepare_first_launch()
    except Exception:  # the first launch raises the same error, for its caller
        log.exception("Triton cannot be prepared for the first launch")


def _run_calls(calls: socket.socket, device: Device, launching: threading.Lock) -> None:
    """Run calls in the order in which they come, until the server closes the socket."""
    import torch

    from warpcall_service.devices.compilations import Compilations
    from warpcall_service.devices.tensors import OpCall, Runnable
    from warpcall_service.worker.call_loop import CallLoop
    from warpcall_service.worker.programs import PROGRAM, PlannedProgram, TensorStore

    tensor_store: TensorStore = {}
    known = functools.lru_cache(4096)(OpCall.decode)  # the same messages come again and again

    def decode(message: bytes) -> Runnable:
        return (
            PlannedProgram.decode(message, tensor_store)
            if message.startswith(PROGRAM)
            else known(message)
        )

    def free(numbers: list[int]) -> None:
        for number in numbers:
            tensor_store.pop(number, None)

    compilations = Compilations()
    compilations.listen()
    with torch.inference_mode():
        CallLoop(
            *(calls, device, decode, free, lambda error: _problem(error, "the call"), launching),
            compiled_s=lambda: compilations.seconds,
        ).run()


def _plan_requests() -> dict[str, PlanRequest]:
    """The functions that answer requests of the extension, by name; see `Extension`.

    They are imported now, so that the first request need not wait.
    """
    found = load()
    targets = {} if found is None else found.plan_requests
    with quick_imports():
        return {name: pkgutil.resolve_name(target) for name, target in targets.items()}


def _answer_requests(
    plans: socket.socket,
    answers: Answers,
    device: str,
    plan_requests: Mapping[str, PlanRequest],
) -> None:
    """Check calls, and what the extension asks for, until the server closes the socket."""
    while (text := read_frame(plans)) is not None:
        try:
            request = json.loads(text)
            name = next((name for name in plan_requests if name in request), None)
            if name is None:
                answer: Mapping[str, Any] = _plan_call(request)
            else:
                answer = plan_requests[name](request[name], device)
        except Exception as error:  # noqa: BLE001  # as above
            answer = {"problem": _problem(error, "planning").to_json()}
        answers.send(answer)


def _plan_call(request: dict[str, Any]) -> dict[str, Any]:
    from warpcall_kernels import ops
    from warpcall_kernels.op.declaration import Meta
    from warpcall_service.devices.tensors import DTYPES, wire_code
    from warpcall_service.worker.program_planner import plan_program

    if "steps" in request:
        return plan_program(request)
    op = ops().get(request["op"])
    if op is None:
        raise NotFound(wire.no_such_op(request["op"], ops()))
    params = op.check_params(request["params"])
    tensors = {name: Meta(tuple(shape), DTYPES[code]) for name, code, shape in request["tensors"]}
    outputs = op.check(tensors, params)
    return {
        "params": params,
        "outputs": [[name, wire_code(name, m.dtype), m.shape] for name, m in outputs.items()],
    }


def _problem(error: Exception, what: str) -> Problem:
    """The problem that the caller gets for `error`."""
    from warpcall_kernels import InvalidInput as RefusedByOp

    if isinstance(error, Problem):
        return error
    if isinstance(error, RefusedByOp):
        return InvalidInput(str(error), field=error.argument)
    log.error("%s failed", what, exc_info=error)
    return KernelFailed(f"{what} failed: {error_text(error)}")


if __name__ == "__main__":
    main()
