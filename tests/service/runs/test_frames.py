"""What a job's process may send, and what is refused."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import Any

import pytest
from pydantic import BaseModel

from tests.service.runs.sent_frames import (
    ENDED,
    HELLO,
    PROGRESS,
    READINGS,
    RELEASE,
    SPEC,
    TASK,
    WANT,
    measured,
    odd,
    printed,
    read,
    result,
)
from warpcall_bench.runs import frames, results
from warpcall_bench.runs.events import Printed
from warpcall_bench.runs.frames import Frame, FrameReader, FrameRefused
from warpcall_bench.runs.messages import MOST_PRINTED_BYTES, Task, Upload
from warpcall_kernels.measuring import (
    CaseResult,
    ImplementationResult,
    Masked,
    OddCases,
    Ratio,
    Readings,
)
from warpcall_kernels.measuring._result import RaceInterval, RaceResult, RaceRow
from warpcall_service.lanes.messages import LENGTH, frame

RACE = {
    "outcome": "winner",
    "leader": "ann/mine",
    "fastest": ["ann/mine"],
    "device_s": 0.5,
    "full_device_s": None,
}


def test_an_honest_run_is_read_as_it_was_sent() -> None:
    measured = result(readings=READINGS, race=RACE)
    sent = (HELLO, PROGRESS, odd(), WANT, RELEASE, WANT, RELEASE, measured, ENDED)

    kinds = [kind for kind, _ in read(*sent)]

    assert kinds == [next(iter(one)) for one in sent]


def test_a_printed_text_comes_without_what_a_terminal_acts_on() -> None:
    (_, found) = read(HELLO, printed("a\tb\n\x1b[2J \udcff".encode(errors="surrogateescape")))

    assert found == Frame("printed", Printed(3, "ann/mine", "a\tb\n\ufffd[2J \ufffd"))


def test_printed_texts_of_a_job_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MOST_PRINTED_OF_JOB", 1000)
    texts = [printed("x" * 500, implementation=name) for name in ("torch", "ann/mine")]
    further = printed("x" * 201, implementation="a")
    task: Task = {**TASK, "implementations": ["torch", "ann/mine", "a"]}

    assert len(read(HELLO, *texts, printed("x" * 200, implementation="a"), task=task)) == 4
    with pytest.raises(FrameRefused, match="printed texts of 1201 bytes"):
        read(HELLO, *texts, further, task=task)


def test_only_a_verified_upload_of_the_task_has_verified_rows() -> None:
    upload: Upload = {"name": "ann/mine", "op": "permute", "function": "f", "source": ""}
    verified: Upload = {**upload, "verified": True, "language": "python", "launches": None}
    sent = result(
        implementations=[measured(name, verified=True) for name in TASK["implementations"]]
    )

    def rows(*uploads: Upload) -> list[bool]:
        task: Task = {**TASK, "uploads": [*uploads]}
        case = read(HELLO, sent, task=task)[-1].value["case"]
        return [row["verified"] for row in case["implementations"]]

    assert rows(upload) == [False, False]
    assert rows(verified) == [False, True]
    honest = read(HELLO, result(), task={**TASK, "uploads": [verified]})[-1].value["case"]
    assert [row["verified"] for row in honest["implementations"]] == [False, False]


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
        ([HELLO, printed(position=4)], "a case that was not asked"),
        ([HELLO, result(), printed()], "was reported before"),
        ([HELLO, printed(), printed()], "or was sent before"),
        ([HELLO, printed(implementation="bob/other")], "a printed text that was not asked"),
        ([HELLO, {"printed": {**printed()["printed"], "data": "$"}}], "not in base64"),
        ([HELLO, printed("x" * (MOST_PRINTED_BYTES + 3))], "printed.data"),
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
        (
            [HELLO, {"progress": {"position": 3, "phase": "left", "leader": "ann/other"}}],
            "an implementation that was not asked",
        ),
        ([HELLO, result(race={**RACE, "leader": "ann/other"})], "a race of an implementation"),
        ([HELLO, result(race={**RACE, "fastest": ["ann/other"]})], "a race of an implementation"),
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
        (
            [{"hello": {**HELLO["hello"], "fingerprint": {"device": "CPU"}}}],
            "a fingerprint without kernels_sha256",
        ),
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


@pytest.mark.parametrize(
    ("model", "made"),
    [
        (results.CaseModel, CaseResult),
        (results.ImplementationModel, ImplementationResult),
        (results.RatioModel, Ratio),
        (results.MaskedModel, Masked),
        (results.ReadingsModel, Readings),
        (results.OddCasesModel, OddCases),
        (results.RaceModel, RaceResult),
        (results.RaceRowModel, RaceRow),
        (results.RaceIntervalModel, RaceInterval),
    ],
)
def test_the_fields_of_a_result_are_those_that_the_sampler_makes(
    model: type[BaseModel], made: Any
) -> None:
    assert {*model.model_fields} == {field.name for field in dataclasses.fields(made)}
