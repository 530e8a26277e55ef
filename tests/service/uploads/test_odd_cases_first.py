"""Jobs that time an upload check it in the op's odd cases before, once for each version."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.service.databases import Database, new_database
from tests.service.job_requests import CASE, ended, events, known_tags, results, submit
from tests.service.uploads.problem_sources import SCALE
from tests.service.uploads.requests import PATH, Lab, added_problem, running_lab, uploaded
from warpcall.implementations import WRONG_IN_ODD_CASES
from warpcall_bench.uploads.tables import UploadedVersion
from warpcall_kernels.measuring import _odd

pytestmark = pytest.mark.slow

RIGHT = """
import torch

def permute(x, dims):
    return x.permute(dims).clone(memory_format=torch.contiguous_format)
"""
# It takes so long that the server's own clock confirms its times.
IGNORES_STRIDES = """
import time
import torch

def permute(x, dims):
    time.sleep(0.002)
    strides = torch.empty(x.shape, device="meta").stride()
    x = x.as_strided(x.shape, strides)
    return x.permute(dims).clone(memory_format=torch.contiguous_format)
"""
ENDS = "    if x.numel() == 0:\n        {}\n"
HANGS_LATER = """
import time
calls = 0

def permute(x, dims):
    global calls
    calls += 1
    if calls > 3:
        time.sleep(600)
    return x.permute(dims).contiguous()
"""
HANGS = RIGHT.replace("    return", ENDS.format("import time; time.sleep(600)") + "    return")
CRASHES = RIGHT.replace("    return", ENDS.format("import os; os._exit(3)") + "    return")
REFUSES = RIGHT.replace("    return", ENDS.format("raise ValueError('empty')") + "    return")


@pytest.fixture(params=["sqlite", "postgresql"], scope="module")
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Database:
    return new_database(request, tmp_path_factory.mktemp("jobs"))


@pytest.fixture(scope="module")
def lab(database: Database) -> Iterator[Lab]:
    with running_lab(database, "ann", "bob") as running:
        yield running


@pytest.fixture(scope="module")
def quick_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """With one kind of database, for what does not depend on it."""
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(tmp_path_factory.mktemp("quick"))})
    with running_lab(database, "ann") as running:
        yield running


def known(http: httpx.Client, name: str, **query: str) -> list[dict[str, Any]]:
    """What is stored of a version."""
    found: list[dict[str, Any]] = http.get(f"{PATH}/{name}", params=query).json()["odd_cases"]
    return found


def timed(http: httpx.Client, *names: str, **fields: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A job that has ended, and its results."""
    job = ended(http, submit(http, implementations=[*names], **fields))
    return job, results(http, job)


def checks(http: httpx.Client, job: dict[str, Any], name: str) -> bool:
    """Whether a job checked odd cases of an upload: it then reports a phase before "preparing"."""
    phases = [e["data"] for e in events(http, job) if e["kind"] == "progress"]
    first = phases[0] if phases else {}
    return (first.get("phase"), first.get("implementation")) == ("correctness", name)


def test_a_version_that_is_right_everywhere_is_not_marked(quick_lab: Lab) -> None:
    with quick_lab.http("ann") as ann:
        uploaded(ann, RIGHT, name="right")
        before = known(ann, "ann/right")
        job, found = timed(ann, "ann/right")
        checked = checks(ann, job, "ann/right")
        (stored,) = known(ann, "ann/right")

    assert before == []
    assert (job["state"], checked) == ("succeeded", True), job
    assert WRONG_IN_ODD_CASES not in found["measurements"][0]["tags"]
    assert not any("odd" in remark for remark in found["remarks"])
    assert stored["right"] > 10
    assert (stored["device"], stored["wrong"], stored["failed"]) == ("cpu", 0, 0)
    assert (stored["raised"], stored["first_case"], stored["first_reason"]) == (0, None, None)


def test_a_version_that_is_wrong_for_strided_inputs_is_marked_in_all_its_jobs(lab: Lab) -> None:
    with lab.http("ann") as ann, lab.http("bob") as bob:
        uploaded(ann, IGNORES_STRIDES, name="strides")
        job, found = timed(ann, "torch", "ann/strides")  # nothing is concluded to warpcall here
        later, again = timed(bob, "torch", "ann/strides", cases=[{**CASE, "shape": [9, 8]}])
        checked = [checks(ann, one, "ann/strides") for one in (job, later)]
        (stored,) = known(ann, "ann/strides")
        case = ann.get(f"/v1/jobs/{job['id']}/cases/0").json()
        page = ann.get("/implementations/ann/strides").text
        (standing, _) = ann.get("/v1/board", params={"op": "permute"}).json()["standings"]

    assert checked == [True, False]
    assert (job["state"], job["detail"]) == ("succeeded", "")
    for one in (found, again):
        ours, theirs = one["measurements"]
        assert (theirs["status"], known_tags(theirs)) == ("ok", [WRONG_IN_ODD_CASES])
        assert WRONG_IN_ODD_CASES not in ours["tags"]
        assert theirs["verdict"] is not None or "unconfirmed" in theirs["tags"]
        said = f"ann/strides is wrong in {stored['wrong']} of "
        assert one["remarks"][-1].startswith(said), one["remarks"]
        assert stored["first_case"] in one["remarks"][-1]
        assert "differs from the reference" in one["remarks"][-1]
    assert stored["wrong"] > 1
    assert any(layout in stored["first_case"] for layout in (":transposed", ":strided"))
    assert known_tags(case["measurements"][1]) == [WRONG_IN_ODD_CASES]
    assert f"is wrong in {stored['wrong']} of" in page
    assert "ann/strides" in [one["implementation"] for one in standing["unranked"]]
    assert "ann/strides" not in [one["implementation"] for one in standing["entries"]]


def test_another_version_is_checked_anew(quick_lab: Lab) -> None:
    with quick_lab.http("ann") as ann:
        wrong = uploaded(ann, IGNORES_STRIDES, name="mended")
        timed(ann, "ann/mended")
        uploaded(ann, RIGHT, name="mended")
        unknown = known(ann, "ann/mended")
        job, found = timed(ann, "ann/mended")
        checked = checks(ann, job, "ann/mended")
        (after,) = known(ann, "ann/mended")
        (before,) = known(ann, "ann/mended", version=wrong["version"])

    assert (unknown, checked) == ([], True)
    assert WRONG_IN_ODD_CASES not in found["measurements"][0]["tags"]
    assert (after["wrong"], before["wrong"] > 0) == (0, True)


@pytest.mark.parametrize(("source", "reason"), [(HANGS, "did not end"), (CRASHES, "status 3")])
def test_a_crash_or_a_hang_is_found_and_ends_in_time(
    source: str, reason: str, quick_lab: Lab
) -> None:
    with quick_lab.http("ann") as ann:
        uploaded(ann, source, name="ends")
        began = time.monotonic()
        job, found = timed(ann, "warpcall", "ann/ends")
        took_s = time.monotonic() - began
        (stored,) = known(ann, "ann/ends")

    assert (job["state"], job["exit_class"]) == ("succeeded", "ok"), job
    assert [row["status"] for row in found["measurements"]] == ["ok", "ok"]
    assert WRONG_IN_ODD_CASES in found["measurements"][1]["tags"]
    assert stored["failed"] > 0
    assert "[0" in stored["first_case"]
    assert reason in stored["first_reason"]
    assert f"ann/ends crashes or hangs in {stored['failed']} of" in found["remarks"][-1]
    assert took_s < _odd.ODD_S + 30


def test_a_version_that_hangs_is_not_called_in_further_odd_cases(quick_lab: Lab) -> None:
    with quick_lab.http("ann") as ann:
        uploaded(ann, HANGS_LATER, name="later")
        timed(ann, "warpcall", "ann/later")
        (stored,) = known(ann, "ann/later")

    assert stored["right"] > 0
    assert stored["failed"] <= 1, "on a busy machine the time can be over before the call hangs"
    assert stored["not_checked"] > 0


def test_a_version_that_refuses_odd_cases_is_not_marked(quick_lab: Lab) -> None:
    with quick_lab.http("ann") as ann:
        uploaded(ann, REFUSES, name="refuses")
        _, found = timed(ann, "ann/refuses")
        (stored,) = known(ann, "ann/refuses")

    assert WRONG_IN_ODD_CASES not in found["measurements"][0]["tags"]
    assert stored["raised"] > 0
    assert (stored["wrong"], stored["failed"], stored["first_case"]) == (0, 0, None)
    assert not any("odd" in remark for remark in found["remarks"])


def test_jobs_that_time_nothing_and_jobs_on_problems_check_nothing_first(quick_lab: Lab) -> None:
    with quick_lab.http("ann") as ann:
        uploaded(ann, IGNORES_STRIDES, name="unseen")
        job, found = timed(ann, "ann/unseen", precision="check")
        problem = added_problem(ann, SCALE)["name"]
        uploaded(ann, "def scale(x):\n    return x * 2\n", op=problem, name="twice")
        other, _ = timed(ann, "torch", "ann/twice", op=problem, cases=[{}])
        after = known(ann, "ann/unseen") + known(ann, "ann/twice")

    assert (job["state"], other["state"]) == ("succeeded", "succeeded"), (job, other)
    assert after == []
    assert found["measurements"][0]["tags"] == []


def test_what_is_known_on_another_kind_of_device_does_not_count(
    lab: Lab, database: Database
) -> None:
    counts = dict.fromkeys(("right", "wrong", "failed", "raised", "not_checked"), 1)
    first = {"first_case": "permute x=F32[4,6]:strided", "first_reason": "out differs"}
    with lab.http("ann") as ann:
        uploaded(ann, RIGHT, name="elsewhere")
        store = database.store()
        with store.write() as session:
            row = session.query(UploadedVersion).filter_by(name="elsewhere").one()
            row.odd_cases = json.dumps({"gpu": {**counts, **first}})
        store.close()
        job, found = timed(ann, "ann/elsewhere")
        stored = known(ann, "ann/elsewhere")

    assert WRONG_IN_ODD_CASES not in found["measurements"][0]["tags"]
    assert not any("odd" in remark for remark in found["remarks"])
    assert [(one["device"], one["wrong"]) for one in stored] == [("cpu", 0), ("gpu", 1)]
    assert job["state"] == "succeeded"
