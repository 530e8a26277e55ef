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
    uploaded,
)
from tests.service.uploads.sources import LONG, TRITON
from tests.waiting import until
from warpcall.implementations import WRONG_IN_ODD_CASES

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


def test_a_triton_kernel_is_checked_and_timed_in_the_sandbox(lab: Lab, tell: str) -> None:
    with lab.http("ann") as ann:
        environment = ann.get(f"{PATH}/environment").json()
        outside = problem_of(upload(ann, f"{tell}\n"), 422, "invalid-input", "source")
        uploaded(ann, TRITON, name="kernel")
        uploaded(ann, LONG, name="plain")
        job = ended(ann, submit(ann, implementations=["ann/kernel", "ann/plain", "torch"]))
        rows = results(ann, job)["measurements"]

    assert (environment["uploads"], environment["trouble"]) == ("sandboxed", "")
    assert outside == f"source: line 1: {SEEN_BY_PROBLEM}"
    assert job["state"] == "succeeded", job
    assert [(row["implementation"], row["status"], known_tags(row)) for row in rows] == [
        ("ann/kernel", "ok", ["interpreted", WRONG_IN_ODD_CASES]),  # it ignores strides
        ("ann/plain", "ok", []),
        ("torch", "ok", []),
    ]


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
