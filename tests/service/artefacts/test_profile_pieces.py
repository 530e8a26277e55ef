"""Profiles between a job's process and the database: pieces, what is left to make, lost claims."""

from __future__ import annotations

import asyncio
import base64
import json
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from pydantic import ByteSize

from tests.service import job_rows
from tests.service.artefacts.kept import keeping
from tests.service.databases import Database
from tests.service.runs.sent_frames import HELLO, TASK, case
from tests.service.stored import number, result
from warpcall_bench.artefacts import profiles
from warpcall_bench.artefacts.profiles import ArtefactWriter, artefact_of
from warpcall_bench.jobs import lifecycle, queue
from warpcall_bench.jobs.queue import Claim, ClaimLost
from warpcall_bench.jobs.tables import Job
from warpcall_bench.runs.events import ProfileMade
from warpcall_bench.runs.frames import FrameReader, FrameRefused
from warpcall_bench.runs.messages import PIECE_BYTES, ProfileTask, Task
from warpcall_bench.settings import BenchSettings
from warpcall_service.lanes.messages import frame
from warpcall_service.store.database import Store

MOST = 2 * PIECE_BYTES
PROFILE: ProfileTask = {
    "profiler": "torch",
    "cases": [(3, {}, ["torch", "ann/mine"])],
    "most_bytes": MOST,
    "program": "",
    "limit_s": 9.0,
    "call_s": 3.0,
}
WITH_PROFILE: Task = {**TASK, "profile": PROFILE}
TRACE = "trace.json"
RESULT = {"result": {"position": 3, "case": case()}}
FULL = bytes(range(256)) * (PIECE_BYTES // 256)


def piece(content: bytes, last: bool = True, **change: Any) -> dict[str, Any]:
    text = base64.b64encode(content).decode()
    made = {"position": 3, "implementation": "torch", "file": TRACE, "data": text, "last": last}
    return {"profile": {**made, "error": "", **change}}


def read(*sent: dict[str, Any], task: Task = WITH_PROFILE) -> list[Any]:
    """The values of the frames about profiles."""

    async def play() -> list[Any]:
        reader = asyncio.StreamReader(limit=1 << 30)
        for one in sent:
            reader.feed_data(frame(one))
        frames = FrameReader(task, reader)
        return [(await frames.read()) for _ in sent]

    return [found.value for found in asyncio.run(play()) if found.kind == "profile"]


def test_pieces_are_joined() -> None:
    other = piece(b"", implementation="ann/mine", error="it raised an error")

    found = read(HELLO, RESULT, piece(FULL, last=False), piece(b"end"), other)

    assert found == [
        None,
        ProfileMade(3, "torch", TRACE, FULL + b"end", ""),
        ProfileMade(3, "ann/mine", TRACE, b"", "it raised an error"),
    ]


@pytest.mark.parametrize(
    ("pieces", "why"),
    [
        ([piece(b"x", position=4)], "was not asked"),
        ([piece(b"x", implementation="warpcall")], "was not asked"),
        ([piece(b"x", file="ncu-rep")], "was not asked"),
        ([piece(b"x", file="x" * 33)], "a fault at profile.file"),
        ([piece(b"x"), piece(b"x")], "or was sent before"),
        ([piece(FULL, last=False), piece(b"x", implementation="ann/mine")], "was not asked"),
        ([piece(b"x", last=False)], "a piece of a profile of 1 bytes"),
        ([piece(FULL, last=False)] * 2 + [piece(b"x")], f"of more than {MOST} bytes"),
        ([piece(b"", data="a*==")], "not in base64"),
        ([piece(b"", data="=" * 2_000_000)], "a fault at profile.data"),
        ([piece(b"", error="x" * 1001)], "a fault at profile.error"),
        ([piece(b"", more=1)], "a fault at profile.more"),
    ],
)
def test_what_no_honest_process_sends_is_refused(pieces: list[dict[str, Any]], why: str) -> None:
    with pytest.raises(FrameRefused, match=why):
        read(HELLO, RESULT, *pieces)


def test_a_profile_that_no_job_asked_for_is_refused() -> None:
    with pytest.raises(FrameRefused, match="was not asked"):
        read(HELLO, piece(b"x"), task=TASK)


def test_what_is_left_after_an_interruption(database: Database, store: Store) -> None:
    names = ["warpcall", "torch"]
    job_id = job_rows.submit(
        store, "ann", cases=2, implementations=names, profile="ncu", profile_options={"launch": 2}
    )
    plain = job_rows.submit(store, "ann")
    measured = result(3, 0)
    measured["implementations"] = measured["implementations"][:2]
    for one, name, status in zip(measured["implementations"], names, ("ok", "error"), strict=True):
        one |= {"name": name, "status": status}
    job_rows.claim(store)
    with store.write() as session:
        job = session.get_one(Job, number(store, job_id))
        lifecycle.save_case(session, job, 0, measured)
    here = keeping(database, store)
    settings = BenchSettings.load(
        artefact_max_bytes=ByteSize(2048), ncu="none", job_stall_s=40.0, job_block_s=5.0
    )

    with store.read() as session:
        job = session.get_one(Job, number(store, job_id))
        before = profiles.left(session, job, settings)
        none = profiles.left(session, session.get_one(Job, number(store, plain)), settings)
    here.add(job_id, b"", profiles.described(names, 0, "warpcall", "ncu-rep"))
    with store.read() as session:
        half = profiles.left(session, session.get_one(Job, number(store, job_id)), settings)
    here.add(job_id, b"", profiles.described(names, 0, "warpcall", "ncu.txt"))
    with store.read() as session:
        after = profiles.left(session, session.get_one(Job, number(store, job_id)), settings)
    here.artefacts._threads.close()

    whole = (1, {"n": 1}, names)
    assert none is None
    assert before is not None
    assert before["cases"] == [(0, {"n": 0}, ["warpcall"]), whole]
    assert half == before, "its text is missing"
    assert after == {**before, "cases": [whole]}
    assert (before["profiler"], before["program"], before["most_bytes"]) == ("ncu", "", 2048)
    assert (before["limit_s"], before["call_s"]) == (20.0, 4.0)
    assert before["options"]["launch"] == 2


def test_what_is_left_to_sanitize(database: Database, store: Store) -> None:
    names = ["torch", "ann/mine", "ann/other"]
    job_id = job_rows.submit(store, "ann", cases=2)
    plain = job_rows.submit(store, "ann")
    measured = result(3, 0)
    measured["implementations"] = measured["implementations"][:3]
    statuses = ("ok", "wrong_result", "compile_error")
    for one, name, status in zip(measured["implementations"], names, statuses, strict=True):
        one |= {"name": name, "status": status}
    job_rows.claim(store)
    with store.write() as session:
        job = session.get_one(Job, number(store, job_id))
        job.implementations = json.dumps(names)
        job.request = json.dumps({**json.loads(job.request), "sanitize": True})
        lifecycle.save_case(session, job, 0, measured)
    here = keeping(database, store)
    here.add(job_id, b"", profiles.described(names, 1, "ann/mine", "memcheck.txt"))
    settings = BenchSettings.load(compute_sanitizer="none")

    with store.read() as session:
        job = session.get_one(Job, number(store, job_id))
        memcheck, racecheck = profiles.left_to_sanitize(session, job, settings)
        none = profiles.left_to_sanitize(
            session, session.get_one(Job, number(store, plain)), settings
        )
    here.artefacts._threads.close()

    assert none == []
    assert (memcheck["profiler"], racecheck["profiler"]) == ("memcheck", "racecheck")
    assert memcheck["program"] == racecheck["program"] == ""
    assert memcheck["cases"] == [(0, {"n": 0}, ["ann/mine"]), (1, {"n": 1}, ["ann/other"])]
    assert racecheck["cases"] == [(0, {"n": 0}, ["ann/mine"]), (1, {"n": 1}, names[1:])]


def test_each_tool_of_a_sanitizer_may_send_its_text_once() -> None:
    tools: list[ProfileTask] = [
        {**PROFILE, "profiler": tool, "cases": [(3, {}, ["ann/mine"])]}
        for tool in ("memcheck", "racecheck")
    ]
    task: Task = {**WITH_PROFILE, "sanitize": tools}
    texts = [
        piece(b"x", implementation="ann/mine", file=f"{tool}.txt")
        for tool in ("memcheck", "racecheck")
    ]

    found = read(HELLO, RESULT, piece(b"x"), *texts, task=task)

    assert [one.file for one in found] == [TRACE, "memcheck.txt", "racecheck.txt"]
    for wrong in (texts[0], piece(b"x", implementation="torch", file="memcheck.txt")):
        with pytest.raises(FrameRefused, match="was not asked"):
            read(HELLO, RESULT, texts[0], wrong, task=task)


def test_profiles_of_a_run_that_lost_its_claim_are_dropped(
    database: Database, store: Store
) -> None:
    job_id = job_rows.submit(store, "ann", profile="torch")
    job_rows.claim(store)
    here = keeping(database, store)
    job_number = number(store, job_id)

    async def play(fence: int) -> None:
        claim = Claim(job_number, job_rows.RUNNER, fence)
        writer = ArtefactWriter(
            here.artefacts,
            lambda session: queue.lock_claimed(session, claim),
            partial(artefact_of, ["torch"]),
        )
        writer.put(ProfileMade(0, "torch", TRACE, b"{}", ""))
        await writer.close()

    with store.read() as session:
        fence = session.scalars(sa.select(Job.fence)).one()
    with pytest.raises(ClaimLost), store.write() as session:
        queue.lock_claimed(session, Claim(job_number, job_rows.RUNNER, fence + 1))
    asyncio.run(play(fence + 1))
    dropped = here.rows()
    asyncio.run(play(fence))
    here.artefacts._threads.close()

    assert dropped == []
    assert [row.name for row in here.rows()] == ["case-0.0-torch.trace.json"]
