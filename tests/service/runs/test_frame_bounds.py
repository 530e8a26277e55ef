"""Texts and numbers of frames are bounded, and frames are paced, whatever a job's process sends."""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel

from tests.service.runs.sent_frames import (
    HELLO,
    PROGRESS,
    READINGS,
    RELEASE,
    TASK,
    WANT,
    measured,
    odd,
    read,
    result,
)
from warpcall_bench.runs import frames, results
from warpcall_bench.runs.frames import Frame, FrameReader, FrameRefused
from warpcall_bench.runs.stored_results import (
    LEAST,
    MAX_COUNT,
    MOST,
    MOST_MARGIN,
    MOST_US,
    result_of,
)
from warpcall_service.lanes.messages import LENGTH, frame


@pytest.mark.parametrize("kind", ["progress", "want and release"])
def test_a_flood_of_frames_makes_its_process_wait(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flood = [PROGRESS] * 2000 if kind == "progress" else [WANT, RELEASE] * 1000
    paused: list[float] = []

    async def pause(seconds: float) -> None:
        paused.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", pause)
    for clock in ("monotonic", "thread_time"):
        monkeypatch.setattr(time, clock, lambda: 1.0)

    read(HELLO, *flood[:998])
    burst = list(paused)
    paused.clear()
    read(HELLO, *flood[:1002])

    assert burst == [0.0] * 999, "other tasks run between two frames"
    assert paused[-3:] == pytest.approx([0.001, 0.002, 0.003])


def test_large_frames_and_those_that_take_long_count_for_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s, paused = 0.0, []

    async def pause(seconds: float) -> None:
        paused.append(seconds)

    def slow(text: bytes) -> Frame:
        nonlocal now_s
        now_s += 0.15
        return Frame("progress", {"position": 3})

    monkeypatch.setattr(asyncio, "sleep", pause)
    monkeypatch.setattr(time, "monotonic", lambda: 1.0)
    monkeypatch.setattr(time, "thread_time", lambda: now_s)

    padded = json.dumps(PROGRESS).encode().ljust(frames.SMALL_BYTES)
    read(HELLO, *[LENGTH.pack(len(padded)) + padded] * 700)
    large = paused[-1]
    parse = frames._parse
    monkeypatch.setattr(
        frames, "_parse", lambda text: slow(text) if b"pro" in text else parse(text)
    )
    read(HELLO, PROGRESS)

    assert large == pytest.approx((701 * 16384e-8 - 0.1) / 0.1, abs=0.01)
    assert paused[-1] == pytest.approx(0.501, abs=1e-6)


FACTS = {"kernels_sha256": "0"}


def test_texts_of_all_frames_are_made_printable() -> None:
    bad = "a\0b\x1bc\u202ed\te\nf"
    made = "a\ufffdb\ufffdc\ufffdd e\nf"
    spoiled = {"hello": {"fingerprint": {**FACTS, bad: bad}, "environment": bad, "sources": {}}}
    texts = {"status": "error", "error": bad, "traceback": bad, "method": bad, "tags": [bad]}
    sent = result(
        key=bad,
        device=bad,
        clock=bad,
        tags=[bad],
        masked=[{"round": 1, "reason": bad}],
        limit=measured("copy", **texts),
    )

    found = read(
        spoiled,
        odd(first_case=bad, first_reason=bad),
        sent,
        {"ended": {"class": "killed", "detail": bad}},
    )

    hello, odd_cases, case_, end = (value for _, value in found)
    assert (hello["fingerprint"], hello["environment"]) == ({**FACTS, made: made}, made)
    assert {odd_cases["found"][name] for name in ("first_case", "first_reason")} == {made}
    case_ = case_["case"]
    assert {case_[name] for name in ("key", "device", "clock")} == {made}
    assert (case_["tags"], case_["masked"][0]["reason"]) == ([made], made)
    limit = case_["limit"]
    assert {limit[name] for name in ("error", "traceback", "method")} == {made}
    assert limit["tags"] == [made]
    assert end["detail"] == made


def test_every_text_of_a_frame_is_printable_or_one_of_a_few_words() -> None:
    lacking = [
        place
        for place, kind in texts_of(frames._Frame, "frame")
        if not any(part is results.Printable for part in kind)
    ]

    # The hash in `sources` has a pattern, and the file is one of the task. The data are base64: a printed
    # text is made printable when it is decoded, and a profile is a file.
    assert lacking == [
        "frame.hello.sources.value",
        "frame.printed.data",
        "frame.profile.file",
        "frame.profile.data",
    ]


def texts_of(kind: Any, place: str, parts: tuple[Any, ...] = ()) -> list[tuple[str, Any]]:
    """Place and annotations of each text in a type."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [
            one
            for name, field in kind.model_fields.items()
            if name != "spec"  # the task's takes its place
            for one in texts_of(field.annotation, f"{place}.{name}", tuple(field.metadata))
        ]
    if kind is str:
        return [(place, parts)]
    if get_origin(kind) is Annotated:
        return texts_of(get_args(kind)[0], place, (*parts, *get_args(kind)[1:]))
    if get_origin(kind) is Literal:
        return []
    names = ("key", "value") if get_origin(kind) is dict else ("",) * 9
    return [
        one
        for name, part in zip(names, get_args(kind), strict=False)
        for one in texts_of(part, f"{place}.{name}" if name else place)
    ]


def test_a_message_about_a_fault_is_printable() -> None:
    with pytest.raises(FrameRefused) as caught:
        read({"a\0\x1b\u202e": True})

    assert str(caught.value).isprintable()


@pytest.mark.parametrize("number", [1e308, 1e19, 5e-324, -1.0, -5e-324, 10**400, 1 << 64])
@pytest.mark.parametrize(
    "field",
    ["median_us", "hot_us", "ci_low_us", "gb_per_s", "share_of_limit", "energy_mj", "samples_us"],
)
def test_an_extreme_number_of_a_result_is_refused_and_its_field_named(
    field: str, number: float
) -> None:
    given = [1.0, number] if field == "samples_us" else number

    with pytest.raises(FrameRefused, match=rf"limit\.{field}"):
        read(HELLO, result(limit=measured("copy", **{field: given})))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"margin": 1e308}, "margin"),
        ({"seconds": 1e308}, "seconds"),
        ({"bytes_moved": 1 << 70}, "bytes_moved"),
        ({"output_bytes": -1}, "output_bytes"),
        ({"a_a": {"ratio": 5e-324, "low": 1.0, "high": 1.0, "n": 3, "verdict": "same"}}, "a_a"),
        ({"a_a": {"ratio": 0.0, "low": 1.0, "high": 1.0, "n": 3, "verdict": "same"}}, "a_a"),
        ({"margin": 101.0}, "margin"),
        ({"a_a": {"ratio": 1.0, "low": 1.0, "high": 1e308, "n": 3, "verdict": "same"}}, "a_a"),
        ({"readings": {**READINGS, "power_w": [1e308]}}, "power_w"),
        ({"readings": {**READINGS, "temperature_c": [1 << 70]}}, "temperature_c"),
    ],
)
def test_an_extreme_number_of_a_case_is_refused_and_its_field_named(
    changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(FrameRefused, match=why):
        read(HELLO, result(**changes))


def test_numbers_of_the_first_frame_are_bounded() -> None:
    for number in (1e308, -1e308, 1 << 70):
        spoiled = {"hello": {**HELLO["hello"], "fingerprint": {"cores": number}}}
        with pytest.raises(FrameRefused, match=r"hello\.fingerprint"):
            read(spoiled)


def test_other_tasks_run_while_a_flood_of_frames_is_read() -> None:
    many = [frame(one) for one in (WANT, RELEASE)] * 2000

    async def play() -> list[float]:
        reader, late, now = asyncio.StreamReader(), [], time.thread_time

        async def tick() -> None:
            while True:
                begin = now()
                await asyncio.sleep(0)  # a clock would tick less often on a busy machine
                late.append(now() - begin)

        ticking = asyncio.create_task(tick())
        reader.feed_data(frame(HELLO) + b"".join(many))
        frames_read = FrameReader(TASK, reader)
        for _ in range(1 + len(many)):
            await frames_read.read()
        ticking.cancel()
        return late

    late = asyncio.run(play())

    # In CPU time, which also counts collections of garbage: a few late ones are no fault.
    assert len(late) > 500
    assert sum(one >= 0.02 for one in late) <= 5


@pytest.mark.parametrize("us", [0.0, LEAST, 1.5, MOST_US])
@pytest.mark.parametrize("number", [0.0, LEAST, 2.5, MOST])
@pytest.mark.parametrize("count", [0, MAX_COUNT])
def test_what_is_accepted_is_read_as_it_was_stored(us: float, number: float, count: int) -> None:
    row = measured("copy", median_us=us, gb_per_s=number, energy_mj=number, n=count)
    sent = result(
        limit={**row, "samples_us": [us, None], "peak_bytes": count},
        margin=min(number, MOST_MARGIN),
        seconds=number,
        bytes_moved=count,
        readings={**READINGS, "power_w": [number], "temperature_c": [-40]},
    )

    stored = read(HELLO, sent)[-1].value["case"]

    assert result_of(zlib.compress(json.dumps(stored).encode())) == stored
