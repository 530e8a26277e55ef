"""Many candidates in one request: their verdicts as lines, and what happens to others meanwhile."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.databases import Database
from tests.service.evaluations.test_evaluations import PATH, verdict
from tests.service.job_requests import CASE, reached, show, submit
from tests.service.requests import problem_of
from tests.service.uploads.requests import Lab, names, running_lab
from tests.service.uploads.sources import SHORT, TRITON, WRONG
from tests.service.uploads.test_verified_uploads import CUDA, CUDA_LAUNCHES
from tests.waiting import until_lasting as until

pytestmark = pytest.mark.slow

BODY = {"op": "permute", "cases": [CASE], "baseline": "torch"}
BROKEN = "def permute(x, dims:\n"
EXITS = "import os\nos._exit(0)\n"
HANGS = "import time\n\ntime.sleep(600)\n"
CRASHES = "import os\n\ndef permute(x, dims):\n    os._exit(3)\n"
# Its jobs last until a test lets them end, by a file.
SLOW = """
import os
import time

def permute(x, dims):
    time.sleep(0.0 if os.path.exists({file!r}) else 0.1)
    return x.permute(dims).contiguous()
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(tmp_path_factory.mktemp("data"))})
    keys = {"cat": database.key("cat", "bench")}
    with running_lab(database, "ann", "dan", WARPCALL_UPLOAD_CHECK_S="3") as running:
        yield Lab(running.server, {**running.keys, **keys})


@pytest.fixture
def http(lab: Lab) -> Iterator[httpx.Client]:
    with lab.http("ann") as http:
        yield http


def slow(file: Path, numbers: range) -> list[dict[str, Any]]:
    return [{"source": numbered(SLOW.format(file=str(file)), n)} for n in numbers]


def numbered(source: str, number: object) -> str:
    return f"{source}# {number}\n"


def lines(http: httpx.Client, *sources: str, **change: Any) -> list[dict[str, Any]]:
    body = {**BODY, "sources": [{"source": one} for one in sources], **change}
    with http.stream("POST", f"{PATH}/batch", json=body, timeout=150) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"] == "application/x-ndjson"
        return [json.loads(line) for line in answer.iter_lines() if line]


def jobs_of(http: httpx.Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = http.get("/v1/jobs").json()["jobs"]
    return found


def test_each_candidate_has_a_line_whatever_the_others_do(http: httpx.Client) -> None:
    right = [numbered(SHORT, n) for n in range(4)]

    found = lines(http, BROKEN, *right, WRONG, EXITS, CRASHES, HANGS, right[0])

    by_index = {one["index"]: one for one in found}
    assert sorted(by_index) == [*range(10)]
    assert [by_index[n]["right"] for n in range(10)] == [
        *(False, True, True, True, True, False, False, False, False, True)
    ]
    kinds = {n: one["failure"]["kind"] for n, one in by_index.items() if one["failure"]}
    imports = dict.fromkeys((0, 6, 8), "import_error")
    assert kinds == {**imports, 5: "wrong_result", 7: "crashed"}
    assert "line 1" in by_index[0]["failure"]["text"]
    assert "did not end within 3 s" in by_index[8]["failure"]["text"]
    assert {one["id"] is None for one in found[:3]} == {True}, "refusals come first"
    assert by_index[9] == {**by_index[1], "index": 9}
    assert len(jobs_of(http)) == 1, "six candidates in one job"
    assert names(http, user="ann") == []

    again = lines(http, *right, WRONG)
    alone = verdict(http, right[2])

    assert [one["reused"] for one in sorted(again, key=lambda one: one["index"])] == [
        *(True, True, True, True, False)
    ]
    assert (alone["reused"], alone["id"]) == (True, by_index[3]["id"])


def test_a_batch_takes_stored_implementations_too(http: httpx.Client) -> None:
    found = lines(http, sources=[{"implementation": "warpcall"}, {"source": SHORT, "name": "new"}])

    assert {one["implementation"] for one in found} == {"warpcall", "ann/new"}
    assert all(one["right"] for one in found)


def test_verified_candidates_of_a_batch_stand_beside_others(http: httpx.Client) -> None:
    cuda = {"verified": True, "language": "cuda", "launches": CUDA_LAUNCHES}
    sources = [
        {"source": TRITON, "verified": True},
        {"source": TRITON},
        {"source": CUDA, **cuda, "name": "cuda"},
        {"source": WRONG, "verified": True, "name": "computes-with-torch"},
        {"source": TRITON, "verified": True, "launches": {"launches": []}},
    ]

    found = {one["index"]: one for one in lines(http, sources=sources)}

    assert [found[n]["verified"] for n in range(5)] == [True, False, True, True, True]
    kinds = [found[n]["failure"] and found[n]["failure"]["kind"] for n in range(5)]
    assert kinds == ["unchecked", None, "unchecked", "error", "import_error"]
    assert "interpreted" in found[1]["marks"]
    assert len({found[n]["source_sha256"] for n in range(5)}) == 5


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"sources": []}, "sources"),
        ({"sources": [{"source": SHORT}] * 257}, "sources"),
        ({"sources": [{"source": SHORT}, {"source": SHORT, "function": "a b"}]}, None),
        ({"sources": [{"source": SHORT, "name": "x"}], "cases": []}, "cases"),
        ({"sources": [{"source": SHORT}], "op": "nothing"}, "op"),
        ({"sources": [{"implementation": "torch"}]}, "body"),
        ({"sources": [{"implementation": "ann/gone"}]}, "implementation"),
        ({"sources": [{"source": SHORT}], "when_left": "stay"}, "when_left"),
    ],
)
def test_a_wrong_batch_is_a_problem(
    change: dict[str, Any], field: str | None, http: httpx.Client
) -> None:
    answer = http.post(f"{PATH}/batch", json={**BODY, **change})

    problem_of(answer, 422, "invalid-input", field or "sources.1.function")


def test_a_batch_of_more_bytes_than_allowed_is_too_large(http: httpx.Client) -> None:
    long = SHORT + "#" * (200 << 10)

    answer = http.post(f"{PATH}/batch", json={**BODY, "sources": [{"source": long}] * 21})

    problem_of(answer, 413, "too-large", "body")


def test_the_job_of_another_user_does_not_wait_for_a_batch(
    lab: Lab, http: httpx.Client, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    body = {**BODY, "sources": slow(file, range(15))}

    def states() -> set[str]:
        return {job["state"] for job in jobs_of(http)}

    with http.stream("POST", f"{PATH}/batch", json=body, timeout=150), lab.http("cat") as cat:
        until(lambda: {"queued", "running"} <= states())
        job = submit(cat, implementations=["torch"])
        place = show(cat, job)["position"]
        waiting = [one for one in jobs_of(http) if one["state"] == "queued"]
        file.touch()
        job = reached(cat, job, lambda one: one["started_at"], 200)
        later = [show(http, one) for one in waiting]

    assert place in (None, 1), "it is next, whatever the batch has queued"
    assert later
    assert all(one["started_at"] is None or one["started_at"] > job["started_at"] for one in later)


def test_a_client_that_leaves_cancels_what_has_not_begun(
    http: httpx.Client, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    before = {job["id"] for job in jobs_of(http)}
    body = {**BODY, "sources": slow(file, range(100, 115))}

    with http.stream("POST", f"{PATH}/batch", json=body, timeout=150):
        until(lambda: len({job["id"] for job in jobs_of(http)} - before) >= 3)

    def states() -> list[str]:
        return [job["state"] for job in jobs_of(http) if job["id"] not in before]

    until(lambda: "cancelled" in states() and "queued" not in states())
    file.touch()
    assert len(states()) == 3
    assert states().count("cancelled") >= 2


def test_a_batch_that_continues_is_measured_without_its_client(http: httpx.Client) -> None:
    before = {job["id"] for job in jobs_of(http)}
    sources = [{"source": numbered(SHORT, n)} for n in range(200, 208)]
    body = {**BODY, "sources": sources, "when_left": "continue"}

    with http.stream("POST", f"{PATH}/batch", json=body, timeout=150):
        time.sleep(0.5)  # the batch has begun

    def states() -> list[str]:
        return [job["state"] for job in jobs_of(http) if job["id"] not in before]

    until(lambda: states() == 2 * ["succeeded"], timeout_s=150)


def test_only_so_many_batches_of_a_user_run_at_a_time(http: httpx.Client, tmp_path: Path) -> None:
    file = tmp_path / "file"
    body = {**BODY, "sources": slow(file, range(300, 302))}
    with (
        http.stream("POST", f"{PATH}/batch", json=body, timeout=150),
        http.stream("POST", f"{PATH}/batch", json=body, timeout=150),
    ):
        problem_of(http.post(f"{PATH}/batch", json=body), 429, "busy", None)
        file.touch()
