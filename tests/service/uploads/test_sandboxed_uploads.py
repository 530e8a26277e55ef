"""Uploads and jobs with them in the sandbox, on a machine without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.databases import Database
from tests.service.job_requests import BRIEF, ended, known_tags, results, submit
from tests.service.requests import problem_of
from tests.service.runs.sandboxes import needs_bubblewrap
from tests.service.uploads.problem_sources import SCALE
from tests.service.uploads.requests import (
    PATH,
    Lab,
    add_problem,
    added_problem,
    running_lab,
    upload,
)
from tests.service.uploads.test_uploads_of_files import TREE, body, send
from tests.service.verifications.sources import COPY
from tests.waiting import until

pytestmark = [needs_bubblewrap, pytest.mark.slow]
SEEN_BY_PROBLEM = (
    "ValueError: (1000, False)"  # by `tell` in the sandbox: its user, and no data folder
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def lab(folder: str) -> Iterator[Lab]:
    database = Database("sqlite", {"WARPCALL_DATA_DIR": folder})
    with running_lab(database, "ann", WARPCALL_UPLOADS="sandboxed", **BRIEF) as running:
        with running.http("ann") as ann:
            until(lambda: ann.get("/readyz").json()["uploads"] == "sandboxed")
        yield running


@pytest.fixture(scope="module")
def tell(lab: Lab, folder: str) -> str:
    """A statement that raises an error, which tells where it runs."""
    database = Path(folder, "warpcall.sqlite3")
    assert database.exists()
    return f"import os; raise ValueError(os.getuid(), os.path.exists({str(database)!r}))"


def test_files_with_a_triton_kernel_are_checked_and_timed_in_the_sandbox(
    lab: Lab, tell: str
) -> None:
    with lab.http("ann") as ann:
        environment = ann.get(f"{PATH}/environment").json()
        outside = problem_of(upload(ann, f"{tell}\n"), 422, "invalid-input", "source")
        for text in TREE.values():
            send(ann, text)
        answer = upload(ann, **body(TREE, name="tree"))
        job = ended(ann, submit(ann, implementations=["ann/tree", "torch"]))
        rows = results(ann, job)["measurements"]
        (odd,) = ann.get(f"{PATH}/ann/tree").json()["odd_cases"]

    assert (environment["uploads"], environment["trouble"]) == ("sandboxed", "")
    assert answer.status_code == 201, answer.text
    assert outside == f"source: line 1: {SEEN_BY_PROBLEM}"
    assert job["state"] == "succeeded", job
    assert [(row["implementation"], row["status"], known_tags(row)) for row in rows] == [
        ("ann/tree", "ok", ["interpreted"]),
        ("torch", "ok", []),
    ]
    assert (odd["right"] > 10, odd["wrong"]) == (True, 0)


def test_the_code_of_a_problem_runs_in_the_sandbox_wherever_it_runs(lab: Lab, tell: str) -> None:
    at_upload = SCALE.replace("    return x", f"    {tell}\n    return x")
    in_cases = SCALE.replace("    return {", f"    if rows == 9:\n        {tell}\n    return {{")
    in_job = in_cases.replace(
        "    return x", f"    if not x.is_meta:\n        {tell}\n    return x"
    )
    job = {"op": "ann/scale", "precision": "quick"}
    with lab.http("ann") as ann:
        ann.timeout = 120
        said = [problem_of(add_problem(ann, at_upload), 422, "invalid-input", "source")]
        added_problem(ann, in_job)
        preview = ann.post("/v1/jobs/preview", json={**job, "cases": [{"sizes": {"rows": 9}}]})
        said.append(problem_of(preview, 422, "invalid-input", "cases.0.inputs"))
        measured = ended(ann, ann.post("/v1/jobs", json={**job, "cases": [{}]}).json())
        said += [str(row["error"]) for row in results(ann, measured)["measurements"]]

    assert len(said) == 3
    assert all(SEEN_BY_PROBLEM in text for text in said), said


def test_compile_reports_and_verifications_are_made_in_the_sandbox(lab: Lab, folder: str) -> None:
    database = Path(folder, "warpcall.sqlite3")
    seen = f"os.getuid() + os.path.exists({str(database)!r})"  # the user in the sandbox, and no data folder
    source = f"import os\n{COPY}".replace("(triton.cdiv(x.numel(), 64),)", f"({seen},)")
    case = {"shape": [64, 256], "dtype": "F32", "params": {"dims": [1, 0]}}
    turned = source.replace("x.shape, dtype", "x.shape[::-1], dtype")
    with lab.http("ann") as ann:
        ann.timeout = 120
        body = {"op": "permute", "source": turned}
        report = ann.post("/v1/compile-reports", json={**body, "case": case, "texts": ["sass"]})
        verified = ann.post("/v1/verifications", json={**body, "cases": [case]})

    assert (report.status_code, verified.status_code) == (200, 200), report.text + verified.text
    (kernel,) = report.json()["kernels"]
    assert (kernel["name"], kernel["grid"]) == ("_copy", [1000, 1, 1])
    assert "EXIT" in kernel["texts"]["sass"]["text"]
    (found,) = verified.json()["cases"]
    assert found["reason"] == ""
    assert found["steps"][0]["choices"][0]["actions"][0]["grid"] == [1000, 1, 1]
