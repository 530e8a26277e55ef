"""A job that the form of a new job has submitted: it runs, and is found again."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from tests.forms.conftest import FormsLab
from tests.forms.fields import errors_of, filled, new_word
from tests.service.job_requests import client, ended, submit

pytestmark = pytest.mark.slow

ROWS = {"shape": "8x8 9x7", "params.dims": "1,0"}


def send(lab: FormsLab, action: str = "submit", **changes: Any) -> httpx.Response:
    page = lab.bench.get("/new", params={"op": "permute"})
    fields = {**ROWS, "precision": "quick", "tags": new_word()}
    return lab.bench.post("/new", data={**filled(page), **fields, "action": action, **changes})


def id_of(answer: httpx.Response) -> str:
    assert answer.status_code == 303, errors_of(answer)
    found = re.fullmatch(r"(?:\.\./)?(?:jobs/)?([0-9a-f]{12})", answer.headers["location"])
    assert found is not None
    return found[1]


def test_a_submitted_form_becomes_a_job_that_runs(lab: FormsLab) -> None:
    answer = send(lab, dtype=["BF16", "F32"], implementation=["warpcall", "copy"])

    with client(lab.server, lab.keys["bench"]) as http:
        job = ended(http, {"id": id_of(answer)})
    assert (job["state"], job["cases_total"]) == ("succeeded", 4)


def test_a_preview_leads_to_the_job_that_measured_the_same(lab: FormsLab) -> None:
    with client(lab.server, lab.keys["bench"]) as http:
        done = ended(http, submit(http, implementations=["warpcall"], fresh=True))
    cases = '[{"shape": [8, 8], "dtype": "F32", "params": {"dims": [1, 0]}}]'
    same = {"cases": cases, "implementation": "warpcall"}

    page, again = send(lab, "preview", **same), send(lab, "preview", fresh="yes", **same)
    answer = send(lab, **same)

    assert f"jobs/{done['id']}" in page.text
    assert f"jobs/{done['id']}" not in again.text
    assert id_of(answer) == done["id"]
