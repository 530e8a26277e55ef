"""Jobs with `sanitize`: what their rows, pages and the command say."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.command import command_for
from tests.service.databases import Database
from tests.service.job_requests import CASE, JOB, ended, results, submit
from tests.service.requests import problem_of
from tests.service.stored import number
from tests.service.uploads.requests import Lab, running_lab, uploaded
from tests.service.uploads.sources import SHORT
from warpcall_bench.artefacts import profiles
from warpcall_bench.jobs import sanitized
from warpcall_bench.jobs.tables import Job, Measurement
from warpcall_bench.runs.events import ProfileMade
from warpcall_service.store.database import Store

pytestmark = pytest.mark.slow

NO_GPU = "not run: it ran without a GPU, and compute-sanitizer checks kernels on NVIDIA GPUs"
HTML = {"accept": "text/html"}
MARKUP = "<b>a & b</b>"
FOUND = f"memcheck: 2 errors, first: Invalid __global__ write of size 4 bytes at _k in {MARKUP}:9"
CHECK: dict[str, Any] = {"precision": "check", "implementations": ["ann/mine"], "sanitize": True}


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Database:
    return Database("sqlite", {"WARPCALL_DATA_DIR": str(tmp_path_factory.mktemp("data"))})


@pytest.fixture(scope="module")
def lab(database: Database) -> Iterator[Lab]:
    with running_lab(database, "ann") as running, running.http("ann") as http:
        uploaded(http, SHORT, name="mine")
        yield running


@pytest.fixture
def http(lab: Lab) -> Iterator[httpx.Client]:
    with lab.http("ann") as http:
        yield http


@pytest.fixture
def store(database: Database) -> Iterator[Store]:
    store = database.store()
    yield store
    store.close()


def test_a_job_without_a_gpu_says_so_and_goes_on(http: httpx.Client) -> None:
    names = ["torch", "ann/mine"]

    job = ended(http, submit(http, implementations=names, sanitize=True))
    again = submit(http, implementations=names, sanitize=True)

    assert job["state"] == "succeeded", job
    assert again["id"] != job["id"], "it is always a new job"
    torch, mine = results(http, job)["measurements"]
    assert torch["sanitizer"] == {}
    assert mine["sanitizer"] == {"memcheck": NO_GPU, "racecheck": NO_GPU}
    assert mine["status"] == "ok"
    listed = http.get(f"/v1/jobs/{job['id']}/artefacts").json()["artefacts"]
    assert [one["name"] for one in listed] == [
        "case-0.1-ann-mine.memcheck.txt", "case-0.1-ann-mine.racecheck.txt",
    ]  # fmt: skip
    assert {one["kind"] for one in listed} == {"sanitizer-text"}
    assert {one["error"] for one in listed} == {NO_GPU.removeprefix("not run: ")}
    page = http.get(f"/jobs/{job['id']}/cases/0", headers=HTML).text
    table = page.partition('id="sanitizer"')[2].partition("</table>")[0]
    assert f"<td>ann/mine</td><td>{NO_GPU}</td><td>{NO_GPU}</td>" in table
    assert table.count("<tr>") == 2
    assert "racecheck of compute-sanitizer</h3>" in page
    said = f"Memcheck of ann/mine, {mine['case']}: {NO_GPU}"
    assert said in http.get(f"/jobs/{job['id']}", headers=HTML).text


def test_what_was_found_is_in_the_row_on_pages_and_ends_the_command_with_1(
    lab: Lab,
    http: httpx.Client,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("WARPCALL_API_KEY", lab.keys["ann"])
    warpcall = command_for(lab.server, monkeypatch, capsys)
    job = ended(http, submit(http, **CHECK, cases=[CASE, {**CASE, "shape": [4, 4]}]))
    before = warpcall("watch", job["id"])
    with store.write() as session:
        row = session.get_one(Job, number(store, job["id"]))
        for position, text in ((0, FOUND), (1, "memcheck: 0 errors")):
            made = ProfileMade(position, "ann/mine", "memcheck.txt", f"{text}\n".encode(), "")
            for _ in range(2):  # a change may be written twice
                sanitized.store(session, row, made)

    after = warpcall("watch", job["id"])
    rows = results(http, job)["measurements"]
    page = http.get(f"/jobs/{job['id']}", headers=HTML).text
    case = http.get(f"/jobs/{job['id']}/cases/0", headers=HTML).text

    assert (before[0], after[0]) == (0, 1)
    assert f"sanitizer: ann/mine, {rows[0]['case']}: memcheck: {NO_GPU}" in _joined(before[1])
    shown = _joined(after[1])
    assert f"sanitizer: ann/mine, {rows[0]['case']}: {FOUND}" in shown
    assert f"sanitizer: ann/mine, {rows[1]['case']}: memcheck: 0 errors" in shown
    assert shown.index("2 errors") < shown.index("0 errors")
    assert rows[0]["sanitizer"]["memcheck"] == FOUND.removeprefix("memcheck: ")
    assert rows[0]["sanitizer"]["racecheck"] == NO_GPU
    for text in (page, case):
        assert "_k in &lt;b&gt;a &amp; b&lt;/b&gt;:9" in text
        assert MARKUP not in text
    assert "Memcheck of ann/mine found nothing in 1 case" in page


def _joined(shown: str) -> str:
    return " ".join(shown.split())


def test_a_form_asks_for_it(http: httpx.Client) -> None:
    form = {
        "op": "permute", "baseline": "torch", "implementation": "torch", "others": "ann/mine",
        "shape": "8x8", "dtype": "F32", "params.dims": "1,0", "precision": "quick",
        "sanitize": "yes", "action": "submit", "token": "t9",
    }  # fmt: skip

    made = http.post("/new", data=form, headers=HTML)
    job = made.headers["location"].rpartition("/")[2].partition("?")[0]
    asked = http.get(f"/v1/jobs/{job}").json()["request"]
    like = http.get(f"/new?like={job}", headers=HTML).text
    http.post(f"/v1/jobs/{job}/cancel")

    assert made.status_code == 303, made.text
    assert asked["sanitize"] is True
    assert re.search(r'<input type="checkbox" name="sanitize"[^>]* checked', like)


def test_it_needs_an_upload_that_is_not_verified(http: httpx.Client) -> None:
    uploaded(http, SHORT, name="proved", verified=True, launches=None)

    alone = http.post("/v1/jobs/preview", json={**JOB, "sanitize": True})
    verified = http.post("/v1/jobs", json={**JOB, **CHECK, "implementations": ["ann/proved"]})
    monitored = http.post("/v1/monitors", json={"job": {**JOB, **CHECK}, "every_s": 3600})

    assert "sanitize needs an uploaded implementation" in alone.text
    assert "cannot be run under compute-sanitizer" in problem_of(
        verified, 422, "invalid-input", "sanitize"
    )
    problem_of(monitored, 422, "invalid-input", "job.sanitize")


def test_too_many_are_refused(http: httpx.Client) -> None:
    cases = [{**CASE, "shape": [n, 4]} for n in range(1, profiles.MOST + 2)]

    answer = http.post("/v1/jobs", json={**JOB, **CHECK, "cases": cases})

    assert problem_of(answer, 422, "invalid-input", "sanitize") == (
        "sanitize: a job with compute-sanitizer may have at most 64 pairs of a case and an upload, "
        "got 65 x 1"
    )


def test_a_wrong_result_is_checked_too(http: httpx.Client, store: Store) -> None:
    uploaded(http, "def permute(x, dims):\n    return x\n", name="wrong")

    job = ended(http, submit(http, **{**CHECK, "implementations": ["ann/wrong"]}))

    (row,) = results(http, job)["measurements"]
    assert row["status"] == "wrong_result"
    assert row["sanitizer"].keys() == {"memcheck", "racecheck"}
    with store.read() as session:
        stored = session.get_one(Measurement, (number(store, job["id"]), 0, "ann/wrong"))
    assert json.loads(stored.summary)["sanitizer"] == row["sanitizer"]
