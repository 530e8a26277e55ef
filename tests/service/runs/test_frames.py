"""What a job's process may send, and what is refused."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from typing import Any

import pytest
from pydantic import BaseModel

from warpcall_kernels.measuring import (
    CaseResult,
    ImplementationResult,
    Masked,
    OddCases,
    Ratio,
    Readings,
)
from warpcall_service.lanes.messages import LENGTH, frame
from warpcall_service.runs import frames, results
from warpcall_service.runs.frames import Frame, FrameReader, FrameRefused
from warpcall_service.runs.messages import Task

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
        "fingerprint": {"device": "CPU", "cores": 2, "cuda": None},
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


def read(*sent: object) -> list[Frame]:
    """The frames that are read when these are sent; bytes are sent as they are."""

    async def play() -> list[Frame]:
        reader = asyncio.StreamReader()
        for one in sent:
            reader.feed_data(one if isinstance(one, bytes) else frame(one))
        frames_read, left = FrameReader(TASK, reader), len(sent)
        return [await frames_read.read() for _ in range(left)]

    return asyncio.run(play())


def test_an_honest_run_is_read_as_it_was_sent() -> None:
    measured = result(readings=READINGS)
    sent = (HELLO, PROGRESS, odd(), WANT, RELEASE, WANT, RELEASE, measured, ENDED)

    kinds = [kind for kind, _ in read(*sent)]

    assert kinds == [next(iter(one)) for one in sent]


def test_what_the_task_says_takes_the_place_of_what_the_process_says() -> None:
    lie = result(op="conv", spec={"shape": [1]}, seed=9, precision="publish")

    value = read(HELLO, lie)[-1].value["case"]

    assert (value["op"], value["spec"], value["seed"]) == ("permute", SPEC, 43)
    assert value["precision"] == "quick"


@pytest.mark.parametrize(
    ("refused", "why"),
    [
        ([result()], "a result at the wrong time"),
        ([HELLO, HELLO], "a hello at the wrong time"),
        ([HELLO, RELEASE], "a release at the wrong time"),
        ([HELLO, WANT, WANT], "a want at the wrong time"),
        ([HELLO, ENDED, PROGRESS], "a progress at the wrong time"),
        ([HELLO, result(position=4)], "a case that was not asked"),
        ([HELLO, result(), result()], "was reported before"),
        ([HELLO, {"progress": {"position": 9, "phase": "rounds"}}], "a case that was not asked"),
        ([HELLO, {"progress": {"position": 3, "phase": "mine"}}], "progress.phase"),
        (
            [HELLO, {"progress": {"position": 3, "phase": "rounds", "implementation": "x"}}],
            "an implementation that was not asked",
        ),
        (
            [HELLO, {"progress": {"position": 3, "phase": "rounds", "medians_us": {"x": 1.0}}}],
            "an implementation that was not asked",
        ),
        ([odd()], "a odd at the wrong time"),
        ([HELLO, odd("torch")], "odd cases that were not asked"),
        ([HELLO, odd("ann/other")], "odd cases that were not asked"),
        ([HELLO, odd(), odd()], "or were reported before"),
        ([HELLO, result(), odd()], "odd cases that were not asked"),
        ([HELLO, ENDED, odd()], "a odd at the wrong time"),
        ([HELLO, odd(wrong=-1)], "found.wrong"),
        ([HELLO, odd(right=10_001)], "found.right"),
        ([HELLO, odd(right=True)], "found.right"),
        ([HELLO, odd(right=1.0)], "found.right"),
        ([HELLO, odd(first_case="x" * 501)], "found.first_case"),
        ([HELLO, odd(first_reason="x" * 501)], "found.first_reason"),
        ([HELLO, odd(first_reason=None)], "there is a first case exactly if"),
        ([HELLO, odd(wrong=0)], "there is a first case exactly if"),
        ([HELLO, odd(first_case=None, first_reason=None)], "there is a first case exactly if"),
        ([HELLO, odd(further=1)], "found.further"),
        ([HELLO, {"odd": {"implementation": "ann/mine"}}], "odd.found"),
        ([HELLO, result(implementations=[measured("torch")])], "other implementations"),
        (
            [HELLO, result(implementations=[measured("ann/mine"), measured("torch")])],
            "other implementations",
        ),
        ([HELLO, result(limit=measured("mine"))], "a limit that is not the copy"),
        ([HELLO, result(limit=measured("copy", median_us=float("nan")))], "median_us"),
        ([HELLO, result(limit=measured("copy", median_us=float("inf")))], "median_us"),
        ([HELLO, result(limit=measured("copy", median_us=-1.0))], "median_us"),
        ([HELLO, result(limit=measured("copy", median_us="1"))], "median_us"),
        ([HELLO, result(limit=measured("copy", status="best"))], "status"),
        ([HELLO, result(limit=measured("copy", samples_us=[1.0] * 7501))], "samples_us"),
        ([HELLO, result(limit=measured("copy", tags=["x"] * 17))], "tags"),
        ([HELLO, result(limit=measured("copy", tags=["x" * 201]))], "tags"),
        ([HELLO, result(rounds=1 << 40)], "rounds"),
        ([HELLO, result(readings=READINGS | {"power_w": []})], "readings must have one length"),
        ([HELLO, result(readings=READINGS | {"power_w": [float("nan")]})], "readings.power_w"),
        ([HELLO, result(readings={name: [1] * 2001 for name in READINGS})], "readings.rounds"),
        ([HELLO, result(further=1)], "further"),
        ([HELLO, {**WANT, **RELEASE}], "2 members"),
        ([HELLO, {}], "0 members"),
        ([HELLO, {"done": True}], "done"),
        ([HELLO, {"want": 1}], "want"),
        ([HELLO, [1]], "its begin"),
        ([LENGTH.pack(4) + b"\xff{}x"], "its begin"),
        ([{"ended": {"class": "best", "detail": ""}}], "ended.class"),
        ([{"ended": {"class": "ok", "detail": "x" * 4001}}], "ended.detail"),
        ([{"hello": {**HELLO["hello"], "fingerprint": {"x": [1]}}}], "hello.fingerprint"),
        ([{"hello": {**HELLO["hello"], "sources": {"torch": "0"}}}], "hello.sources.torch"),
        (
            [{"hello": {**HELLO["hello"], "sources": {"other": "0" * 64}}}],
            "the source of an implementation that was not asked",
        ),
        ([LENGTH.pack(frames.MAX_BYTES + 1)], "more than 2097152"),
        ([HELLO, {"progress": {"position": 3, "phase": "x" * 20_000}}], "progress.phase"),
    ],
)
def test_a_frame_that_no_honest_process_sends_is_refused(refused: list[Any], why: str) -> None:
    with pytest.raises(FrameRefused, match=why):
        read(*refused)


def test_a_large_frame_that_is_slow_to_parse_is_refused_before_it_is_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = b"[" + b"[]," * 30_000 + b"0]"
    monkeypatch.setattr(frames, "_parse", lambda text: pytest.fail("it is parsed"))

    with pytest.raises(FrameRefused, match="too many parts"):
        read(LENGTH.pack(len(slow)) + slow)


def test_the_largest_honest_result_is_read() -> None:
    names = [f"implementation-{i}" for i in range(8)]
    samples = [123.45678901234567] * 7000
    many = [measured(name, samples_us=samples, traceback="x, y: [z]\n" * 400) for name in names]
    masked = [{"round": i, "reason": "the clock fell from 1980 to 1800 MHz"} for i in range(2000)]
    text = result(
        implementations=many,
        limit=measured("copy", samples_us=samples),
        rounds=7000,
        masked=masked,
        readings={name: [1000] * 2000 for name in READINGS},
    )

    async def play() -> Frame:
        reader = asyncio.StreamReader()
        reading = FrameReader({**TASK, "implementations": names}, reader)
        for one in (HELLO, text):
            reader.feed_data(frame(one))
        await reading.read()
        return await reading.read()

    assert len(json.dumps(text)) < frames.MAX_BYTES
    assert len(asyncio.run(play()).value["case"]["implementations"]) == 8


def test_an_error_and_a_traceback_are_cut_to_their_length() -> None:
    long = measured("copy", status="error", error="e" * 9000, traceback="t" * 9000)

    value = read(HELLO, result(limit=long))[-1].value["case"]["limit"]

    assert (len(value["error"]), len(value["traceback"])) == (4096, 4096)


def test_a_flood_of_progress_makes_its_process_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    paused: list[float] = []

    async def pause(seconds: float) -> None:
        paused.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", pause)
    monkeypatch.setattr(time, "monotonic", lambda: 1.0)

    read(HELLO, *[PROGRESS] * 1000)
    burst = list(paused)
    read(HELLO, *[PROGRESS] * 1003)

    assert burst == []
    assert paused == pytest.approx([0.01, 0.02, 0.03])


@pytest.mark.parametrize(
    ("model", "made"),
    [
        (results.CaseModel, CaseResult),
        (results.ImplementationModel, ImplementationResult),
        (results.RatioModel, Ratio),
        (results.MaskedModel, Masked),
        (results.ReadingsModel, Readings),
        (results.OddCasesModel, OddCases),
    ],
)
def test_the_fields_of_a_result_are_those_that_the_sampler_makes(
    model: type[BaseModel], made: Any
) -> None:
    assert {*model.model_fields} == {field.name for field in dataclasses.fields(made)}
