"""Texts with NUL, lone surrogates and control characters, from requests and from uploaded code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.service.databases import Database, new_database
from tests.service.job_requests import JOB, ended, results, submit
from tests.service.requests import log_of
from tests.service.uploads.problem_sources import ROW_NORM, SCALE
from tests.service.uploads.requests import PROBLEMS, Lab, running_lab, upload, uploaded

pytestmark = pytest.mark.slow

# NUL, a lone surrogate, controls of one byte and of a direction, and code points without a character.
BAD = ("a\0b", "a\ud800b", "\x1b[2J\x9b\u202eb", "a\uffffb\U0010ffff")
RAISES = """
def permute(x, dims):
    raise ValueError("a\\0b\\ud800c\\x1b[2J\\u202e")
"""
GOOD = '''
def permute(x, dims):
    """It is a\\0b\\ud800c\\x1b[2J\\u202e fine"""
    return x.permute(dims).contiguous()
'''


@pytest.fixture(scope="module", params=["postgresql", "sqlite"])
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    database: Database = new_database(request, tmp_path_factory.mktemp("texts"))
    with running_lab(database, "ann") as running:
        yield running
        assert "Traceback" not in log_of(running.server)


def test_no_text_of_a_request_makes_a_route_fail(lab: Lab) -> None:
    with lab.http("root") as http:
        job = ended(http, submit(http))
        failed = []
        for bad in BAD:
            for method, path, how in requests(http, job["id"], bad):
                answer = http.request(method, path, **how)
                if answer.status_code >= 500:
                    failed.append((method, path, how, answer.status_code, answer.text[:200]))

    assert failed == []


def requests(http: httpx.Client, job: str, bad: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every route with a text in each parameter of its path and its query, and in known bodies."""
    quoted = "".join(f"%{byte:02X}" for byte in bad.encode(errors="surrogatepass"))
    paths = http.get("/openapi.json").json()["paths"]
    for path, methods in paths.items():
        for method, described in methods.items():
            if method != "get":
                continue
            filled = path.replace("{id}", job) if path.startswith("/v1/jobs") else path
            yield "GET", re.sub(r"\{\w+\}", quoted, filled), {}
            yield "GET", re.sub(r"\{\w+\}", quoted, path), {}
            for one in described.get("parameters", []):
                if one["in"] == "query":
                    usual = "&op=permute&implementation=torch&case=x" if "op" in path else ""
                    query = f"?{one['name']}={quoted}{usual}"
                    yield "GET", re.sub(r"\{\w+\}", "0", filled) + query, {}
    for page in ("jobs", "history", "board", "new", "kernels", "compare", "upload", "admin"):
        for name in ("user", "tag", "op", "case", "device", "implementation", "a", "like", "q"):
            yield "GET", f"/{page}?{name}={quoted}&op=permute", {"headers": {"accept": "text/html"}}
    for field in ("op", "note", "gpu", "node", "precision"):
        yield "POST", "/v1/jobs", sent({**JOB, field: bad})
    for field in ("tags", "implementations"):
        yield "POST", "/v1/jobs", sent({**JOB, field: [bad]})
    yield "POST", "/v1/jobs", {"json": JOB, "headers": {"idempotency-key": quoted}}
    for field in ("op", "name", "source", "function"):
        given = {"op": "permute", "source": GOOD, "name": "x", field: bad}
        yield "POST", "/v1/implementations", sent(given)
        yield "POST", PROBLEMS, sent({"name": "x", "source": ROW_NORM, field: bad})
    yield "POST", f"/v1/jobs/{job}/shares", sent({"other": bad})


def sent(body: dict[str, Any]) -> dict[str, Any]:
    return {"content": json.dumps(body), "headers": {"content-type": "application/json"}}


def test_what_uploaded_code_says_is_stored_and_shown_printable(lab: Lab) -> None:
    with lab.http("ann") as http:
        made = uploaded(http, GOOD, name="good")
        uploaded(http, RAISES, name="raises")
        refused = upload(http, 'raise ValueError("a\\0b\\ud800c\\x1b\\u202e")', name="refused")
        job = ended(http, submit(http, implementations=["torch", "ann/raises"]))
        rows = results(http, job)["measurements"]
        page = http.get(f"/jobs/{job['id']}", headers={"accept": "text/html"})
        after = ended(http, submit(http, implementations=["torch"], fresh=True))

    error = next(row["error"] for row in rows if row["implementation"] == "ann/raises")
    assert refused.status_code == 422
    for text in (made["doc"], refused.json()["detail"], error, job["detail"]):
        assert text.isprintable(), text
    assert page.status_code == 200
    assert after["state"] == "succeeded"


def test_a_problem_that_says_such_a_text_in_its_job_ends_this_job_only(lab: Lab) -> None:
    bad = 'raise ValueError("a\\0b\\x1b\\ud800\\u202ec")'
    fickle = f"import os\nif 'upload_main' in ' '.join(os.sys.argv):\n    {bad}\n{SCALE}"
    case = {"sizes": {"rows": 8}, "dtype": "F32"}
    with lab.http("ann") as http:
        answer = http.post(PROBLEMS, json={"name": "fickle", "source": fickle}, timeout=120)
        assert answer.status_code == 201, answer.text
        job = ended(http, submit(http, op="ann/fickle", implementations=["torch"], cases=[case]))
        after = ended(http, submit(http, implementations=["torch"], fresh=True))

    assert job["state"] == "invalid"
    assert "ValueError: a" in job["detail"]
    assert job["detail"].isprintable()
    assert after["state"] == "succeeded"
