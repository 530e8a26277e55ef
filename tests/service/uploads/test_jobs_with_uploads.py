"""Jobs that time uploaded implementations: found by name, timed in their version, kept as needed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.servers import running_server
from tests.service.databases import Database
from tests.service.job_requests import JOB, client, ended, reached, results, submit
from tests.service.requests import problem_of
from tests.service.uploads.requests import (
    HANGING,
    PATH,
    SETTINGS,
    Lab,
    names,
    running_lab,
    uploaded,
)
from tests.service.uploads.sources import SHORT, TRITON, WRONG

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """On SQLite: `test_database` makes the queries on PostgreSQL, too."""
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(tmp_path_factory.mktemp("jobs"))})
    with running_lab(database, "ann", "bob", **HANGING) as running:
        yield running


def job_of(names_: list[str], **fields: Any) -> dict[str, Any]:
    return {**JOB, "implementations": names_, **fields}


def refusal(http: httpx.Client, name: str, **fields: Any) -> str:
    """What a submission that names it is refused with; a preview is refused, too."""
    job = job_of(["warpcall", name], **fields)
    said = problem_of(http.post("/v1/jobs", json=job), 422, "invalid-input", "implementations")
    preview = http.post("/v1/jobs/preview", json=job)
    assert problem_of(preview, 422, "invalid-input", "implementations") == said
    return said


def test_a_job_times_uploads_beside_the_others(lab: Lab) -> None:
    with lab.http("ann") as ann, lab.http("bob") as bob:
        kernel = uploaded(ann, TRITON, name="kernel")
        wrong = uploaded(ann, WRONG, name="wrong")
        version = f"ann/wrong@{wrong['sha256'][:8]}"
        job = submit(bob, implementations=["warpcall", "ann/kernel", version])
        job = ended(bob, job)
        found = results(bob, job)
        rows = {row["implementation"]: row for row in found["measurements"]}

    assert (job["state"], job["exit_class"]) == ("partial", "wrong_result"), job
    assert job["detail"] == f"{version} has no time in 1 of 1 case: wrong_result in 1"
    assert job["implementations"] == ["warpcall", "ann/kernel", version]
    assert job["sources"]["ann/kernel"] == kernel["sha256"]
    assert job["sources"][version] == wrong["sha256"]
    assert rows["ann/kernel"]["traceback"] is None, rows["ann/kernel"]["traceback"]
    assert [row["status"] for row in rows.values()] == ["ok", "ok", "wrong_result"]
    assert rows["ann/kernel"]["source_sha256"] == kernel["sha256"]
    assert "interpreted" in rows["ann/kernel"]["tags"]
    assert rows["ann/kernel"]["verdict"] is None
    assert "interpreted" not in rows["warpcall"]["tags"]
    assert found["remarks"][0] == job["detail"]
    assert found["remarks"][2].startswith("no GPU: Triton interprets the kernels of uploads")


def test_another_version_is_measured_anew_and_the_same_one_is_not(lab: Lab) -> None:
    with lab.http("ann") as ann:
        first = uploaded(ann, SHORT, name="edited")
        measured = ended(ann, submit(ann, implementations=["ann/edited"]))
        same = submit(ann, implementations=["ann/edited"])
        preview = ann.post("/v1/jobs/preview", json=job_of(["ann/edited"])).json()
        uploaded(ann, SHORT + "# edited\n", name="edited")
        edited = submit(ann, implementations=["ann/edited"])
        ended(ann, edited)
        back = uploaded(ann, SHORT, name="edited")
        again = submit(ann, implementations=["ann/edited"])
        key = results(ann, measured)["cases"][0]["case"]
        query = {"op": "permute", "implementation": "ann/edited", "case": key}
        points = ann.get("/v1/jobs/history", params=query).json()["points"]

    assert (same["id"], same["reused"], preview["reuses"]) == (measured["id"], True, measured["id"])
    assert not edited["reused"]
    assert back["version"] == first["version"]
    assert (again["id"], again["reused"]) == (measured["id"], True)
    assert [point["changed"] for point in points] == [["source"], []]


def test_only_what_may_be_read_can_be_timed_and_the_errors_are_alike(lab: Lab) -> None:
    with lab.http("ann") as ann, lab.http("bob") as bob, lab.http("root") as root:
        uploaded(ann, SHORT, name="private", private=True)
        gone = uploaded(ann, SHORT, name="deleted")
        ann.delete(f"{PATH}/ann/deleted")
        hidden = {
            refusal(bob, f"ann/{name}").replace(name, "X")
            for name in ("private", "deleted", "unknown", "private@12345678")
        }
        by_version = refusal(ann, f"ann/deleted@{gone['sha256']}")
        case = {"shape": [8, 8], "dtype": "F32"}
        other_op = refusal(bob, "ann/edited", op="transpose-add", cases=[case])
        mine = ended(ann, submit(ann, implementations=["ann/private"]))
        seen = bob.get(f"/v1/jobs/{mine['id']}").status_code, bob.get("/v1/jobs/queue").text
        by_root = submit(root, implementations=["ann/private"])
        root.post(f"/v1/jobs/{by_root['id']}/cancel")

    assert {text.replace("X@12345678", "X") for text in hidden} == {
        (
            "implementations: there is no 'ann/X', or it is not yours to read; it must be like "
            "user/name or user/name@3f2a91c0"
        )
    }
    assert "there is no 'ann/deleted@" in by_version
    assert other_op == "implementations: ann/edited computes permute, this job times transpose-add"
    assert mine["state"] == "succeeded"
    assert seen[0] == 404
    assert "private" not in seen[1]


@pytest.mark.parametrize(
    "name",
    [
        "/",
        "ann/",
        "/x",
        "ann/x/y",
        "ann/x@",
        "ann/x@123",
        "ann/x@XYZ",
        "ann/<b>",
        "ann/a\nb",
        "é/x",
    ],
)
def test_a_name_that_cannot_be_one_is_refused(name: str, lab: Lab) -> None:
    with lab.http("bob") as bob:
        said = refusal(bob, name)

    assert "it must be like user/name or user/name@3f2a91c0" in said
    assert said.isprintable()


def test_a_deleted_version_is_erased_when_no_queued_job_needs_it(lab: Lab) -> None:
    with lab.http("ann") as ann, lab.http("bob") as bob:
        uploaded(ann, SHORT, name="needed")
        busy = submit(bob, implementations=["hang"], fresh=True)
        reached(bob, busy, lambda job: job["state"] != "queued")
        waiting = submit(bob, implementations=["ann/needed"], fresh=True)
        ann.delete(f"{PATH}/ann/needed")
        hidden = names(bob, user="ann")
        refused = refusal(bob, "ann/needed")
        bob.post(f"/v1/jobs/{busy['id']}/cancel")
        done = ended(bob, waiting)

    assert "ann/needed" not in hidden
    assert "there is no 'ann/needed'" in refused
    assert done["state"] == "succeeded"


def test_a_job_that_waited_while_uploads_were_switched_off_is_invalid(sqlite: Database) -> None:
    with running_lab(sqlite, "ann", **HANGING) as lab, lab.http("ann") as ann:
        uploaded(ann, SHORT)
        busy = submit(ann, implementations=["hang"])
        reached(ann, busy, lambda job: job["state"] != "queued")
        waiting = submit(ann, implementations=["ann/permute"])
        key = lab.keys["ann"]
        # The server ends while one job runs and the other one waits for it.
    with (
        running_server(
            {**SETTINGS, **sqlite.settings, **HANGING, "WARPCALL_UPLOADS": "off"}
        ) as server,
        client(server, key) as ann,
    ):
        ann.post(f"/v1/jobs/{busy['id']}/cancel")
        job = ended(ann, waiting)
        refused = ann.post("/v1/jobs", json=job_of(["ann/permute"]))

    assert (job["state"], job["exit_class"]) == ("invalid", "invalid")
    assert job["detail"] == "it times uploaded implementations, and uploads have been switched off"
    assert refused.status_code == 403
    assert "this server runs no uploaded code: its operator" in refused.json()["detail"]
