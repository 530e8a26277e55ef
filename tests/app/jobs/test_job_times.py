"""Where the time of a job went, and which machine measured it: in answers, exports and pages."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.app.harness import running_app
from tests.service.databases import Database
from tests.service.job_rows import claim, submit
from tests.service.stored import IMPLEMENTATIONS, finished, result
from warpcall_bench.jobs import lifecycle
from warpcall_bench.jobs.tables import Job
from warpcall_bench.runs.runner import Outcome

TIMES = {"device_wait_s": 0.75, "device_s": 12.5, "compile_s": 3.25, "setup_s": 0.75}
HTML = {"accept": "text/html"}


@dataclass(frozen=True)
class Lab:
    http: httpx.Client
    job: str
    older: str


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("data")
    store = Database("sqlite", {"WARPCALL_DATA_DIR": str(folder)}).store()
    store.migrate()
    job_id = submit(store, "local", implementations=IMPLEMENTATIONS)
    for outcome in (  # the first run is interrupted by an orderly stop of its server
        Outcome("interrupted", "", (), 2.5, 4.0, device_wait_s=0.25, compile_s=1.25, setup_s=0.25),
        Outcome("ok", "", (), 10.0, 20.0, device_wait_s=0.5, compile_s=2.0, setup_s=0.5),
    ):
        claimed = claim(store)
        assert claimed is not None
        with store.write() as session:
            job = session.get_one(Job, claimed.number)
            job.fingerprint = json.dumps({"host": "gpu-box", "device": "a device", "kind": "cuda"})
            if outcome.exit_class == "ok":
                lifecycle.save_case(session, job, 0, result(3, 0))
            for _ in range(2):  # a transaction may have been committed unknown to the server
                lifecycle.end_run(session, job, outcome, counts=False)
    older = finished(store, "local", 1)
    store.close()
    with running_app(data_dir=Path(folder), arena_bytes="16MiB") as app, app.client() as http:
        yield Lab(http, job_id, older)


def test_a_job_and_lists_have_the_times_of_all_runs_and_the_machine(lab: Lab) -> None:
    one = lab.http.get(f"/v1/jobs/{lab.job}").json()
    listed = {job["id"]: job for job in lab.http.get("/v1/jobs").json()["jobs"]}

    for job in (one, listed[lab.job]):
        assert job["times"] == TIMES
        assert (job["host"], job["device_name"]) == ("gpu-box", "a device")
    assert listed[lab.older]["times"] is None
    assert listed[lab.older]["host"] == ""


def test_exports_have_the_times_and_the_machine(lab: Lab) -> None:
    whole = lab.http.get(f"/v1/jobs/{lab.job}/results").json()
    text = lab.http.get(f"/v1/jobs/{lab.job}/results?format=csv").text
    older = lab.http.get(f"/v1/jobs/{lab.older}/results?format=csv").text

    assert whole["times"] == TIMES
    assert whole["fingerprint"]["host"] == "gpu-box"
    rows = [*csv.DictReader(io.StringIO(text))]
    assert len(rows) == len(IMPLEMENTATIONS)
    for row in rows:
        assert (row["host"], row["device"]) == ("gpu-box", "a device")
        assert {name: float(row[name]) for name in TIMES} == TIMES
    assert {row["device_s"] for row in csv.DictReader(io.StringIO(older))} == {""}


def test_the_page_of_a_job_says_where_its_time_went(lab: Lab) -> None:
    page = lab.http.get(f"/jobs/{lab.job}", headers=HTML).text
    older = lab.http.get(f"/jobs/{lab.older}", headers=HTML).text

    assert "had it for 12" in page
    assert "set up for 1 s" in page
    assert "on gpu-box" in page
    assert "had it for" not in older


def test_guests_do_not_learn_the_name_of_the_machine(lab: Lab) -> None:
    made = lab.http.post(f"/v1/jobs/{lab.job}/shares", json={}).json()
    token = made["url"].rpartition("/")[2]

    shared = lab.http.get(f"/v1/shared/{token}").text
    exported = lab.http.get(f"/v1/shared/{token}/results?format=csv").text
    page = lab.http.get(f"/share/{token}", headers=HTML, follow_redirects=True).text

    assert "device_wait_s" in shared
    assert "device_wait_s" in exported
    assert "had it for" in page
    assert "gpu-box" not in shared + exported + page
