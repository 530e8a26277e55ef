"""Uploads and jobs with them in the sandbox, on a machine without a GPU."""

from __future__ import annotations

from pathlib import Path

from tests.service.databases import Database
from tests.service.job_requests import ended, results, submit
from tests.service.requests import problem_of
from tests.service.runs.sandboxes import needs_bubblewrap
from tests.service.uploads.requests import PATH, running_lab, upload, uploaded
from tests.service.uploads.sources import SHORT, TRITON
from tests.waiting import until

TELLS = "import os\nraise ValueError(os.getuid(), os.path.exists({folder!r}))\n"


@needs_bubblewrap
def test_a_triton_kernel_is_checked_and_timed_in_the_sandbox(sqlite: Database) -> None:
    folder = sqlite.settings["WARPCALL_DATA_DIR"]
    with (
        running_lab(sqlite, "ann", WARPCALL_UPLOADS="sandboxed") as lab,
        lab.http("ann") as ann,
    ):
        until(lambda: ann.get("/readyz").json()["uploads"] == "sandboxed")
        environment = ann.get(f"{PATH}/environment").json()
        outside = problem_of(
            upload(ann, TELLS.replace("{folder!r}", repr(f"{folder}/warpcall.sqlite3"))),
            *(422, "invalid-input", "source"),
        )
        uploaded(ann, TRITON, name="kernel")
        uploaded(ann, SHORT, name="plain")
        job = ended(ann, submit(ann, implementations=["ann/kernel", "ann/plain", "torch"]))
        rows = results(ann, job)["measurements"]

    assert (environment["uploads"], environment["trouble"]) == ("sandboxed", "")
    assert outside == "source: line 2: ValueError: (1000, False)"
    assert job["state"] == "succeeded", job
    assert [(row["implementation"], row["status"], row["tags"]) for row in rows] == [
        ("ann/kernel", "ok", ["interpreted"]),
        ("ann/plain", "ok", []),
        ("torch", "ok", []),
    ]
    assert Path(folder, "warpcall.sqlite3").exists()
