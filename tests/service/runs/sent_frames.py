"""Frames as a job's process sends them, and how the server reads them."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
from typing import Any

from warpcall_bench.runs.frames import Frame, FrameReader
from warpcall_bench.runs.messages import Task
from warpcall_kernels.measuring import CaseResult, ImplementationResult, Masked, Ratio
from warpcall_service.lanes.messages import frame

SPEC = {"shape": [8, 8]}
TASK: Task = {
    "device": "cpu",
    "modules": {},
    "uploads": [],
    "problem": None,
    "sandboxed": True,
    "op": "permute",
    "implementations": ["torch", "ann/mine"],
    "precision": "quick",
    "seed": 40,
    "cases": [(3, SPEC)],
    "memory_bytes": 1 << 30,
    "threads": 1,
    "odd": ["ann/mine"],
}
HELLO = {
    "hello": {
        "fingerprint": {"device": "CPU", "cores": 2, "cuda": None, "kernels_sha256": "0"},
        "environment": "x",
        "sources": {},
    }
}
PROGRESS = {
    "progress": {
        "position": 3,
        "phase": "rounds",
        "rounds": 5,
        "half_width": None,
        "medians_us": {"copy": 1.5},
    }
}
READINGS = {"rounds": [2], "sm_clock_mhz": [None], "power_w": [1.5], "temperature_c": [40]}
ODD_FOUND = {
    "right": 50,
    "wrong": 1,
    "failed": 0,
    "raised": 2,
    "not_checked": 0,
    "first_case": "permute x=F32[4,6]:strided dims=1,0",
    "first_reason": "out differs",
}
WANT, RELEASE = {"want": True}, {"release": True}
ENDED = {"ended": {"class": "ok", "detail": ""}}


def measured(name: str, **changes: Any) -> dict[str, Any]:
    samples = (1.0, None, 2)
    made = ImplementationResult(name, "ok", n=2, median_us=1.5, samples_us=samples, tags=("x",))
    return {**dataclasses.asdict(made), **changes}


def case(**changes: Any) -> dict[str, Any]:
    made = CaseResult(
        key="permute",
        op="permute",
        spec=SPEC,
        device="cuda:0",
        clock="perf_counter",
        precision="quick",
        seed=1,
        bytes_moved=512,
        output_bytes=256,
        implementations=(),
        rounds=3,
        masked=(Masked(1, "the clock fell"),),
        a_a=Ratio(1.0, None, 1.1, 3, "same"),
    )
    asked = [measured(name) for name in TASK["implementations"]]
    return {**made.to_json(), "implementations": asked, "limit": measured("copy"), **changes}


def result(position: int = 3, **changes: Any) -> dict[str, Any]:
    return {"result": {"position": position, "case": case(**changes)}}


def odd(name: str = "ann/mine", **changes: Any) -> dict[str, Any]:
    return {"odd": {"implementation": name, "found": {**ODD_FOUND, **changes}}}


def printed(
    text: str | bytes = b"a line", position: int = 3, implementation: str = "ann/mine"
) -> dict[str, Any]:
    data = base64.b64encode(text.encode() if isinstance(text, str) else text).decode()
    return {"printed": {"position": position, "implementation": implementation, "data": data}}


def read(*sent: object, task: Task = TASK) -> list[Frame]:
    """The frames that are read when these are sent; bytes are sent as they are."""

    async def play() -> list[Frame]:
        reader = asyncio.StreamReader()
        for one in sent:
            reader.feed_data(one if isinstance(one, bytes) else frame(one))
        frames_read, left = FrameReader(task, reader), len(sent)
        return [await frames_read.read() for _ in range(left)]

    return asyncio.run(play())
