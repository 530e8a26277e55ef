"""The process of one lane: python -m warpcall_service.worker.main, started by the service.

The main thread runs calls; a second one answers plans meanwhile. It ends with its parent.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import mmap
import os
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

from warpcall.errors import InvalidInput, KernelFailed, NotFound, Problem, TimedOut
from warpcall_service.lanes.messages import (
    CALL,
    DONE,
    FREE,
    PACKET_BYTES,
    Hello,
    NoSuchDevice,
    frame,
    read_frame,
)
from warpcall_service.lanes.prefault import prefault
from warpcall_service.processes import child

if TYPE_CHECKING:
    from warpcall_kernels import Op
    from warpcall_service.worker.devices import Device

MAX_DETAIL = 1000  # characters of an exception's text that a caller sees

log = logging.getLogger("warpcall.lane")


def main() -> None:
    """Serve until the parent closes its sockets or ends."""
    args = child.start(
        device=str,
        arena_nbytes=int,
        threads=int,
        warm=int,
        arena_fd=int,
        calls_fd=int,
        plans_fd=int,
    )
    arena = mmap.mmap(args.arena_fd, args.arena_nbytes)
    prefaulting = threading.Thread(target=prefault, args=(arena, lambda: False), daemon=True)
    prefaulting.start()  # while torch is imported
    calls = socket.socket(fileno=args.calls_fd)
    plans = socket.socket(fileno=args.plans_fd)
    try:
        device, hello = _open_device(args.device, arena, args.threads, args.warm)
    except Exception as error:
        if isinstance(error, NoSuchDevice):
            text = str(error)  # the operator's slip, not ours: there is nothing to trace
        else:
            log.exception("the lane cannot start")
            text = _brief(error)
        with contextlib.suppress(BrokenPipeError):  # the service has left meanwhile
            plans.sendall(frame({"error": text}))
        raise SystemExit(1) from None
    prefaulting.join()
    plans.sendall(frame(hello))
    threading.Thread(target=_answer_requests, args=(plans, device.name), daemon=True).start()
    _run_calls(calls, device)
    os._exit(0)  # no thread or CUDA context has anything to tidy that the kernel does not


def _open_device(
    device_name: str, arena: mmap.mmap, threads: int, warm: bool
) -> tuple[Device, Hello]:
    from warpcall_kernels import ops  # torch comes with it: not before the lines above
    from warpcall_service.worker import (
        job_check,  # noqa: F401  # the first request need not wait for it
        program_planner,  # noqa: F401  # see the next line
    )
    from warpcall_service.worker.devices import open_device

    device = open_device(device_name, arena, threads)
    if warm and device.name != "cpu":
        from warpcall_service.worker.warmup import warm_lane

        warm_lane(device.name)
    return device, {
        "device": device.name,
        "label": device.label,
        "devices": device.all,
        "memory_nbytes": device.memory_nbytes,
        "catalog": [_describe(op) for op in ops().values()],
    }


def _describe(op: Op) -> dict[str, Any]:
    from warpcall_service.worker.devices import CODES

    described = op.describe()
    for declared, entry in zip(op.inputs, described["inputs"], strict=True):
        # The wire has no complex128.
        entry["dtypes"] = [CODES[dtype] for dtype in declared.dtypes if dtype in CODES]
    for output, entry in zip(op.outputs, described["outputs"], strict=True):
        entry["dtype"] = output.dtype and CODES[output.dtype]
    return described


def _run_calls(calls: socket.socket, device: Device) -> None:
    """Run what comes, in order, until the other side closes."""
    import torch

    from warpcall_service.worker.devices import OpCall, Runnable
    from warpcall_service.worker.programs import PROGRAM, Program, TensorStore

    tensor_store: TensorStore = {}
    known = functools.lru_cache(4096)(OpCall.decode)  # a repeated signature is parsed once

    def decode(message: bytes) -> Runnable:
        return (
            Program.decode(message, tensor_store) if message.startswith(PROGRAM) else known(message)
        )

    with torch.inference_mode():
        while packet := calls.recv(PACKET_BYTES):
            call_id, source, target, deadline = CALL.unpack_from(packet)
            if call_id == FREE:
                for number in json.loads(packet[CALL.size :]):
                    tensor_store.pop(number, None)
                continue
            began = time.monotonic()
            times, problem, broken = (0.0, 0.0, 0.0), b"", False
            try:
                if began > deadline:
                    raise TimedOut("the deadline passed while the call waited for the device")
                times = device.run(decode(packet[CALL.size :]), source, target)
            except Exception as error:  # noqa: BLE001  # one call's failure is its caller's
                problem = json.dumps(_problem(error, "the call").to_json()).encode()
                broken = device.is_broken()
            calls.send(DONE.pack(call_id, began, *times) + problem)
            if broken:
                log.error("the device is lost to this process, which ends to be replaced")
                os._exit(1)


def _answer_requests(plans: socket.socket, device: str) -> None:
    """Check calls before their bytes come, and jobs, until the other side closes."""
    from warpcall_service.worker import job_check

    while (text := read_frame(plans)) is not None:
        try:
            request = json.loads(text)
            if "job" in request:
                answer: Any = job_check.check_job(request["job"], device)
            elif "compare" in request:
                answer = job_check.compare_jobs(request["compare"])
            else:
                answer = _plan_call(request)
        except Exception as error:  # noqa: BLE001  # likewise
            answer = {"problem": _problem(error, "planning").to_json()}
        plans.sendall(frame(answer))


def _plan_call(request: dict[str, Any]) -> dict[str, Any]:
    from warpcall_kernels import ops
    from warpcall_kernels.op.declaration import Meta
    from warpcall_service.worker.devices import CODES, DTYPES
    from warpcall_service.worker.program_planner import plan_program

    if "steps" in request:
        return plan_program(request)
    op = ops().get(request["op"])
    if op is None:
        raise NotFound(f"there is no kernel {request['op']!r:.60}, there are {', '.join(ops())}")
    params = op.check_params(request["params"])
    tensors = {name: Meta(tuple(shape), DTYPES[code]) for name, code, shape in request["tensors"]}
    outputs = op.check(tensors, params)
    return {
        "params": params,
        "outputs": [[name, CODES[m.dtype], m.shape] for name, m in outputs.items()],
    }


def _problem(error: Exception, what: str) -> Problem:
    """What a caller is told of `error`."""
    from warpcall_kernels import InvalidInput as RefusedByOp

    if isinstance(error, Problem):
        return error
    if isinstance(error, RefusedByOp):
        return InvalidInput(str(error), field=error.argument)
    log.error("%s failed", what, exc_info=error)
    return KernelFailed(f"{what} failed: {_brief(error)}")


def _brief(error: Exception) -> str:
    notes = getattr(error, "__notes__", ())  # which step of a program it was
    return ", ".join((f"{type(error).__name__}: {error}".strip()[:MAX_DETAIL], *notes))


if __name__ == "__main__":
    main()
