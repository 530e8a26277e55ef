"""Jobs on problems: found by name, measured in their version, kept as needed."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.servers import running_server
from tests.service.databases import Database
from tests.service.job_requests import CASE, client, ended, reached, results, submit
from tests.service.requests import metrics, problem_of
from tests.service.uploads.problem_sources import ROW_NORM, SCALE, THRICE
from tests.service.uploads.requests import (
    HANGING,
    PROBLEMS,
    SETTINGS,
    Lab,
    added_problem,
    problem_names,
    running_lab,
    uploaded,
)

pytestmark = pytest.mark.slow

MINE = "def scale(x):\n    return x + x\n"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(tmp_path_factory.mktemp("jobs"))})
    with running_lab(database, "ann", "bob", **HANGING) as running:
        yield running


def job_on(op: str, **fields: Any) -> dict[str, Any]:
    return {"op": op, "cases": [{}], "precision": "quick", **fields}


def submitted(http: httpx.Client, op: str, **fields: Any) -> dict[str, Any]:
    answer = http.post("/v1/jobs", json=job_on(op, **fields), timeout=120)
    assert answer.status_code in (200, 201), answer.text
    found: dict[str, Any] = answer.json()
    return found


def previewed(http: httpx.Client, op: str, **fields: Any) -> dict[str, Any]:
    answer = http.post("/v1/jobs/preview", json=job_on(op, **fields), timeout=120)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def refusal(http: httpx.Client, field: str, op: str, **fields: Any) -> str:
    """What a preview is refused with."""
    answer = http.post("/v1/jobs/preview", json=job_on(op, **fields), timeout=120)
    return problem_of(answer, 422, "invalid-input", field)


def test_a_sweep_of_a_problem_is_measured_with_an_implementation_of_another_user(lab: Lab) -> None:
    mine = (
        "def row_norm(x, eps):\n    return x * (x.square().sum(-1, keepdim=True) + eps).rsqrt()\n"
    )
    with lab.http("ann") as ann, lab.http("bob") as bob, lab.http("root") as root:
        problem = added_problem(ann, ROW_NORM)
        fast = uploaded(bob, mine, op="ann/row-norm", function="row_norm", name="fast")
        fields: dict[str, Any] = {
            "cases": None,
            "sweep": {"sizes": {"rows": [3, 4]}, "dtypes": ["bf16"], "params": {"eps": [0.5]}},
            "implementations": ["torch", "bob/fast", "copy"],
        }
        preview = previewed(bob, "ann/row-norm", **fields)
        before = metrics(root)['warpcall_upload_checks_total{outcome="accepted"}']
        job = submitted(bob, "ann/row-norm", **fields)
        after = metrics(root)['warpcall_upload_checks_total{outcome="accepted"}']
        job = ended(bob, job)
        found = results(bob, job)
        listed = bob.get("/v1/jobs", params={"op": "ann/row-norm@" + "0" * 12}).json()["jobs"]
        table = bob.get(f"/v1/jobs/{job['id']}/results", params={"format": "csv"}).text

    assert (preview["cases"], preview["reuses"]) == (2, None)
    assert after == before, "the cases of the preview were kept"
    assert job["state"] == "succeeded", job
    assert (job["op"], job["problem_sha256"]) == ("ann/row-norm", problem["sha256"])
    assert job["sources"] == {"torch": problem["sha256"], "bob/fast": fast["sha256"]}
    assert [
        (row["case"], row["implementation"], row["status"]) for row in found["measurements"]
    ] == [
        (f"ann/row-norm x=BF16[{rows},8] eps=0.5", name, "ok")
        for rows in (3, 4)
        for name in ("torch", "bob/fast", "copy")
    ]
    assert {row["problem_sha256"] for row in found["measurements"]} == {problem["sha256"]}
    assert found["remarks"][0] == "no GPU: these are times of a CPU, which say nothing about a GPU"
    assert [one["id"] for one in listed] == [job["id"]]
    rows = [*csv.DictReader(io.StringIO(table))]
    assert {row["problem_sha256"] for row in rows} == {problem["sha256"]}


def test_a_problem_is_timed_by_its_reference_if_nothing_is_named(lab: Lab) -> None:
    with lab.http("ann") as ann:
        added_problem(ann, SCALE, name="default")
        job = submitted(ann, "ann/default")
        ann.post(f"/v1/jobs/{job['id']}/cancel")

    assert (job["implementations"], job["cases_total"]) == (["torch"], 1)


def test_another_version_is_measured_anew_and_histories_mark_it(lab: Lab) -> None:
    with lab.http("ann") as ann, lab.http("bob") as bob:
        first = added_problem(ann, SCALE, name="edited")
        uploaded(bob, MINE, op="ann/edited", function="scale", name="mine")
        names = ["torch", "bob/mine"]
        measured = ended(bob, submitted(bob, "ann/edited", implementations=names))
        same = submitted(bob, "ann/edited", implementations=names)
        added_problem(ann, THRICE, name="edited")
        preview = previewed(bob, "ann/edited", implementations=names)
        edited = ended(bob, submitted(bob, "ann/edited", implementations=names))
        named = submitted(bob, f"ann/edited@{first['sha256'][:8]}", implementations=names)
        key = results(bob, measured)["cases"][0]["case"]
        points = {
            name: bob.get(
                "/v1/jobs/history",
                params={"op": "ann/edited", "implementation": name, "case": key},
            ).json()["points"]
            for name in names
        }
        compared = bob.get(f"/v1/jobs/{measured['id']}/compare/{edited['id']}").json()
        statuses = [row["status"] for row in results(bob, edited)["measurements"]]

    assert (same["id"], same["reused"]) == (measured["id"], True)
    assert preview["reuses"] is None
    assert edited["id"] != measured["id"]
    assert (named["id"], named["reused"]) == (measured["id"], True), "the version that is named"
    assert [point["changed"] for point in points["torch"]] == [["problem", "source"], []]
    assert [point["changed"] for point in points["bob/mine"]] == [["problem"], []]
    shown = [point["measurement"]["problem_sha256"] for point in points["torch"]]
    assert shown == [edited["problem_sha256"], first["sha256"]]
    assert statuses == ["ok", "wrong_result"]
    assert compared["differences"] == {
        "problem_sha256": [first["sha256"], edited["problem_sha256"]]
    }
    assert [row["case"] for row in compared["rows"]] == [key]


def test_a_private_problem_does_not_exist_for_others(lab: Lab) -> None:
    with lab.http("ann") as ann, lab.http("bob") as bob, lab.http("root") as root:
        secret = added_problem(ann, SCALE, name="secret", private=True)
        gone = added_problem(ann, THRICE, name="gone")
        ann.delete(f"{PROBLEMS}/ann/gone")
        names = ("secret", f"secret@{secret['version']}", "gone", f"gone@{gone['version']}", "none")
        said = {refusal(bob, "op", f"ann/{name}").replace(name, "X") for name in names}
        submission = bob.post("/v1/jobs", json=job_on("ann/secret"))
        busy = submit(ann, implementations=["hang"], fresh=True)
        reached(ann, busy, lambda job: job["state"] != "queued")
        mine = submitted(ann, "ann/secret", fresh=True)
        queue = {
            user: {
                entry["id"]: entry["op"] for entry in http.get("/v1/jobs/queue").json()["entries"]
            }
            for user, http in (("ann", ann), ("bob", bob), ("root", root))
        }
        for job in (busy, mine):
            ann.post(f"/v1/jobs/{job['id']}/cancel")
        by_root = submitted(root, "ann/secret")
        root.post(f"/v1/jobs/{by_root['id']}/cancel")

    said.add(problem_of(submission, 422, "invalid-input", "op").replace("secret", "X"))
    assert said == {
        (
            "op: there is no problem 'ann/X', or it is not yours to read; it must be like user/name "
            "or user/name@3f2a91c0"
        )
    }
    assert {user: found[mine["id"]] for user, found in queue.items()} == {
        "ann": "ann/secret",
        "bob": "a private problem",
        "root": "ann/secret",
    }
    assert queue["bob"][busy["id"]] == "permute"


def test_what_a_job_on_a_problem_cannot_be_is_refused(lab: Lab) -> None:
    with lab.http("ann") as ann, lab.http("bob") as bob:
        added_problem(ann, SCALE, name="fussy")
        uploaded(bob, MINE, op="ann/fussy", function="scale", name="ours")
        op = "ann/fussy"
        kernels = refusal(bob, "implementations", op, implementations=["torch", "warpcall"])
        other = refusal(
            bob, "implementations", "permute", cases=[CASE], implementations=["bob/ours"]
        )
        shape = refusal(bob, "cases.0", op, cases=[{"shape": [8], "dtype": "F32"}])
        shapes = refusal(bob, "sweep.shapes", op, cases=None, sweep={"shapes": [[8]]})
        size = refusal(bob, "cases.1.sizes.rows", op, cases=[{}, {"sizes": {"rows": 0}}])
        unknown = refusal(bob, "cases.0.sizes.rows<b>", op, cases=[{"sizes": {"rows<b>": 1}}])
        huge = refusal(bob, "cases.0", op, cases=[{"sizes": {"rows": 1 << 40}}])
        many = {"sizes": {"rows": [*range(1, 1002)]}}
        too_many = refusal(bob, "sweep", op, cases=None, sweep=many)

    assert kernels == (
        "implementations: warpcall has no kernels for ann/fussy, which is a problem; of the library "
        "there are torch, torch.compile, copy"
    )
    assert other == "implementations: bob/ours computes ann/fussy, this job times permute"
    assert shape == "cases.0: a problem has no shape, its inputs follow from sizes"
    assert shapes == "sweep.shapes: a problem has no shapes, its inputs follow from sizes"
    assert "rows must be an integer between 1 and" in size
    assert "it has rows" in unknown
    assert "that a job may have on this server" in huge
    assert "sweep must be at most 1000 cases, got 1001" in too_many


def test_an_error_of_a_problems_code_names_the_problem_and_the_line(lab: Lab) -> None:
    picky = SCALE.replace("    return {", "    assert rows != 5, 'five'\n    return {")
    with lab.http("ann") as ann, lab.http("bob") as bob:
        added_problem(ann, picky, name="picky")
        case = refusal(bob, "cases.0.inputs", "ann/picky", cases=[{"sizes": {"rows": 5}}])
        sweep = refusal(
            bob, "sweep.inputs", "ann/picky", cases=None, sweep={"sizes": {"rows": [5]}}
        )

    assert case == "cases.0: line 12 of ann/picky: AssertionError: five"
    assert sweep == "sweep: line 12 of ann/picky: AssertionError: five"


@pytest.mark.parametrize("name", ["/", "ann/", "/x", "ann/x/y", "ann/x@", "ann/x@123", "é/x"])
def test_a_name_that_cannot_be_one_is_refused(name: str, lab: Lab) -> None:
    with lab.http("bob") as bob:
        said = refusal(bob, "op", name)

    assert "it must be like user/name or user/name@3f2a91c0" in said
    assert said.isprintable()


def test_a_deleted_problem_is_kept_for_the_jobs_that_wait(lab: Lab) -> None:
    with lab.http("ann") as ann, lab.http("bob") as bob:
        added_problem(ann, SCALE, name="needed")
        busy = submit(bob, implementations=["hang"], fresh=True)
        reached(bob, busy, lambda job: job["state"] != "queued")
        waiting = submitted(bob, "ann/needed", fresh=True)
        ann.delete(f"{PROBLEMS}/ann/needed")
        hidden = problem_names(bob, user="ann")
        refused = refusal(bob, "op", "ann/needed")
        bob.post(f"/v1/jobs/{busy['id']}/cancel")
        done = ended(bob, waiting)

    assert "ann/needed" not in hidden
    assert "there is no problem 'ann/needed'" in refused
    assert done["state"] == "succeeded", done


def test_a_problem_that_cannot_be_loaded_in_its_job_makes_the_job_invalid(lab: Lab) -> None:
    fickle = (
        f"import os\nif 'upload_main' in ' '.join(os.sys.argv):\n    raise ValueError(5)\n{SCALE}"
    )
    broken = SCALE.replace("    return x *", "    assert x.is_meta, 'not today'\n    return x *")
    with lab.http("ann") as ann:
        added_problem(ann, fickle, name="fickle")
        added_problem(ann, broken, name="broken")
        uploaded(ann, MINE, op="ann/broken", function="scale", name="whole")
        unloadable = ended(ann, submitted(ann, "ann/fickle"))
        failing = ended(ann, submitted(ann, "ann/broken", implementations=["torch", "ann/whole"]))
        rows = results(ann, failing)["measurements"]

    assert (unloadable["state"], unloadable["exit_class"]) == ("invalid", "invalid"), unloadable
    assert "ann/fickle cannot be used: line 3: ValueError: 5" in unloadable["detail"]
    assert failing["state"] == "failed", failing
    assert [row["status"] for row in rows] == ["error", "error"]
    assert "not today" in rows[0]["error"]


def test_a_job_that_waited_while_uploads_were_switched_off_is_invalid(sqlite: Database) -> None:
    with running_lab(sqlite, "ann", **HANGING) as lab, lab.http("ann") as ann:
        added_problem(ann, SCALE)
        busy = submit(ann, implementations=["hang"])
        reached(ann, busy, lambda job: job["state"] != "queued")
        waiting = submitted(ann, "ann/scale")
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

    assert (job["state"], job["exit_class"]) == ("invalid", "invalid")
    assert job["detail"] == "it measures a problem, and uploads have been switched off"
