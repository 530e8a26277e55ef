"""The pages of problems, which users declare, with a real upload, its implementation and a job."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.service.databases import Database
from tests.service.job_requests import ended
from tests.service.uploads.problem_sources import SCALE, THRICE
from tests.service.uploads.requests import added_problem, running_lab, upload

HTML = {"accept": "text/html"}
MINE = "def scale(x):\n    return x + x\n"


@pytest.mark.slow
def test_a_problem_has_its_declaration_versions_source_and_jobs(tmp_path: Path) -> None:
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(tmp_path)})
    with running_lab(database, "ann", "bob") as lab, lab.http("ann") as ann:
        first = added_problem(ann, SCALE)
        second = added_problem(ann, THRICE, name="scale")
        added_problem(ann, SCALE, name="hidden", private=True)
        assert upload(ann, source=MINE, op="ann/scale", name="mine").status_code == 201
        job = ann.post(
            "/v1/jobs",
            json={
                "op": "ann/scale",
                "cases": [{}],
                "precision": "quick",
                "implementations": ["torch", "ann/mine"],
            },
        ).json()
        path = "/problems/ann/scale"
        with lab.http("bob") as bob:
            bob.headers.update(HTML)
            listed = bob.get("/kernels")
            page = bob.get(path)
            difference = bob.get(f"{path}?version={second['version']}&against={first['version']}")
            mine = bob.get("/implementations/ann/mine")
            of_job = bob.get(f"/jobs/{job['id']}")
            hidden = bob.get("/problems/ann/hidden")
        ended(ann, job)

    assert [one.status_code for one in (listed, page, difference, mine, of_job)] == [200] * 5
    assert 'href="./problems/ann/scale"' in listed.text
    assert "ann/hidden" not in listed.text
    assert hidden.status_code == 404
    assert f"/jobs/{job['id']}" in page.text
    assert '<td class="mono fit">x</td>' in page.text
    assert re.search(r">ann/mine</a>", page.text)
    assert '<span class="added">' in difference.text
    assert '<span class="removed">' in difference.text
    assert 'href="../../problems/ann/scale"' in mine.text
    assert 'href="../problems/ann/scale"' in of_job.text
