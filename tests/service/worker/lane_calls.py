"""Packets of calls for the loop of a worker process, and its answers, on any device."""

from __future__ import annotations

import json
import mmap
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from warpcall.errors import KernelFailed, Problem
from warpcall.wire import TensorInfo
from warpcall_service.devices.open_device import open_device
from warpcall_service.devices.tensors import OpCall
from warpcall_service.lanes.messages import CALL, DONE, PACKET_BYTES
from warpcall_service.lanes.plan import Plan
from warpcall_service.worker.call_loop import CallLoop

SIDE = 64
NBYTES = SIDE * SIDE * 4
CALLS = 20  # more than a device has under way
_arenas: list[mmap.mmap] = []  # never unmapped: CUDA would go on to read what had been there
Answer = tuple[int, Any]  # id of a call, and its problem or None


def message(dims: Sequence[int] = (1, 0)) -> bytes:
    """The plan of a permutation."""
    x = TensorInfo("x", "F32", (SIDE, SIDE), 0)
    return Plan.of(
        "permute", [x], {"dims": list(dims)}, [TensorInfo("out", "F32", (SIDE, SIDE))]
    ).message


def permutation(shape: Sequence[int], x_at: int = 0, out_at: int = 0) -> OpCall:
    """A transposition of fp32; `x_at` and `out_at` are the tensors' places in their regions."""
    payload = {
        "op": "permute",
        "params": {"dims": [1, 0]},
        "inputs": [["x", "F32", list(shape), x_at]],
        "outputs": [["out", "F32", list(shape[::-1]), out_at]],
    }
    return OpCall.decode(json.dumps(payload).encode())


def answers_to(device_name: str, packets: Sequence[Sequence[tuple[int, bytes, float]]]) -> Any:
    """Run calls, each with its id, plan and seconds to its deadline, packet by packet.

    Call `n` has its input, all of value `n`, and its output at their own places of the arena.

    Returns:
        The answers in their order, and the output of each call by its id.
    """
    last = max(call_id for packet in packets for call_id, *_ in packet)
    arena = mmap.mmap(-1, 2 * NBYTES * (last + 1))
    _arenas.append(arena)
    device = open_device(device_name, arena, 1)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def work() -> None:
        with torch.inference_mode():
            CallLoop(
                *(theirs, device, OpCall.decode, lambda numbers: None, problem_of),
                *(threading.Lock(), lambda: 0.0),
            ).run()

    running = threading.Thread(target=work)
    ours.settimeout(60)
    found: list[Answer] = []
    with ours, theirs:
        running.start()
        for packet in packets:
            records = []
            for call_id, plan, left_s in packet:
                begin = 2 * NBYTES * call_id
                arena[begin : begin + NBYTES] = np.full(SIDE * SIDE, call_id, np.float32).tobytes()
                head = CALL.pack(
                    call_id, begin, begin + NBYTES, time.monotonic() + left_s, len(plan)
                )
                records.append(head + plan)
            ours.send(b"".join(records))
        while len(found) < sum(map(len, packets)):
            found += _decoded(ours.recv(PACKET_BYTES))
        ours.shutdown(socket.SHUT_RDWR)
        running.join(30)
        assert not running.is_alive()
    outputs = {
        call_id: np.frombuffer(arena, np.float32, SIDE * SIDE, 2 * NBYTES * call_id + NBYTES).copy()
        for call_id, _ in found
    }
    return found, outputs


def problem_of(error: Exception) -> Problem:
    """The problem of a call that failed."""
    return error if isinstance(error, Problem) else KernelFailed(str(error))


def check_many_calls(device_name: str) -> None:
    """Many calls in few packets, two of which fail, are answered in order and with their own data."""
    fails = {4: (message((0, 5)), 60.0), 9: (message(), -1.0)}
    calls = [(n, *fails.get(n, (message(), 60.0))) for n in range(1, CALLS + 1)]

    found, outputs = answers_to(device_name, [calls[:8], calls[8:9], calls[9:]])

    assert [call_id for call_id, _ in found] == list(range(1, CALLS + 1))
    failed = {call_id: problem["type"].rpartition(":")[2] for call_id, problem in found if problem}
    assert failed == {4: "kernel-failed", 9: "timed-out"}
    for call_id, output in outputs.items():
        assert (output == (0 if call_id in fails else call_id)).all(), call_id


def _decoded(packet: bytes) -> list[Answer]:
    found: list[Answer] = []
    at = 0
    while at < len(packet):
        call_id, _, h2d_ms, kernel_ms, d2h_ms, _, nbytes = DONE.unpack_from(packet, at)
        assert min(h2d_ms, kernel_ms, d2h_ms) >= 0
        at += DONE.size + nbytes
        problem = packet[at - nbytes : at]
        found.append((call_id, json.loads(problem) if problem else None))
    return found
