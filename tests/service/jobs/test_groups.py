"""One question for several models of a GPU, with real servers that have different ones."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tests.e2e.command import command_for
from tests.pages.browsers import chromium, needs_chromium, opened
from tests.servers import Server
from tests.service.databases import Database
from tests.service.job_requests import JOB, client, ended
from tests.service.jobs.test_placement import with_model
from tests.waiting import until
from warpcall.jobs import UNFINISHED

pytestmark = [pytest.mark.parametrize("database", ["postgresql"], indirect=True), pytest.mark.slow]

ONE, TWO, THREE = "Acme One 40GB", "Acme Two", "Acme Three"
ASKED = ("bench", "permute", "--shape", "8x8,16x16", "--dtype", "fp32", "--dims", "1,0")


class Printed(NamedTuple):
    """How a command ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def warpcall(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Printed]:
    """Runs the command in this process, with a server and arguments."""

    def run(server: Server, *arguments: str) -> Printed:
        return Printed(*command_for(server, monkeypatch, capsys)(*arguments))

    return run


def models_of(http: httpx.Client, jobs: list[dict[str, Any]]) -> list[str]:
    return [ended(http, job)["fingerprint"]["device"] for job in jobs]


@needs_chromium
def test_one_question_has_a_column_for_each_model_and_one_that_lacks_holds_no_other(
    database: Database, tmp_path: Path, warpcall: Callable[..., Printed]
) -> None:
    with ExitStack() as stack:
        a = stack.enter_context(with_model(database, tmp_path / "a", ONE))
        b = stack.enter_context(with_model(database, tmp_path / "b", TWO))
        http = stack.enter_context(client(a))
        until(lambda: len(http.get("/v1/nodes").json()["nodes"]) == 2)

        printed = warpcall(a, *ASKED, "--precision", "quick", "--gpu", "three,one,two")
        again = warpcall(b, "watch", printed.stdout.splitlines()[0].rpartition("/")[2])
        group = http.get("/v1/jobs").json()["jobs"][0]["group"]
        found = http.get(f"/v1/groups/{group}/results").json()
        listed = warpcall(a, "jobs").stdout
        exported = [warpcall(b, "export", group, "--format", form).stdout for form in ("csv", "md")]
        jobs = [part["job"] for part in found["parts"]]
        measured_by = models_of(http, jobs[1:])
        look = stack.enter_context(chromium())
        seen, widths = [], []
        for width in (1280, 400):
            with opened(look, viewport={"width": width, "height": 900}) as tab:
                tab.page.goto(f"{b.url}/groups/{group}")
                seen.append(tab.page.inner_text("main"))
                widths.append(tab.page.evaluate("document.documentElement.scrollWidth"))
                assert tab.faults == []
        stack.enter_context(with_model(database, tmp_path / "c", THREE))
        last = ended(http, jobs[0])
        whole = warpcall(a, "watch", group)

    assert printed.returncode == again.returncode == 1, printed.stderr  # a part has not run
    for text in (printed.stdout, again.stdout):
        heads = [line.split() for line in text.splitlines()]
        assert ["three", "one", "±", "two", "±"] in heads  # there is no verdict on a CPU
        assert sum(line[:2] == ["torch", "waiting"] and len(line) == 6 for line in heads) == 2
        assert "three: waiting for a three, which no server that runs has" in text
    rows = found["rows"]
    assert [(row["position"], row["implementation"]) for row in rows] == [
        *((0, "warpcall"), (0, "torch"), (1, "warpcall"), (1, "torch"))
    ]
    for row in rows:
        assert row["times"][0] is None
        assert all(one["median_us"] > 0 and one["status"] == "ok" for one in row["times"][1:])
    assert measured_by == [ONE, TWO]
    assert (jobs[0]["state"], jobs[0]["has_device"]) == ("queued", False)
    for gpu, job in zip(("three", "one", "two"), jobs, strict=True):
        (line,) = [line for line in listed.splitlines() if line.startswith(job["id"])]
        assert {gpu, group} <= {*line.split()}
    table = [*csv.DictReader(io.StringIO(exported[0]))]
    assert [(row["gpu"], row["device"], row["implementation"]) for row in table] == [
        (gpu, model, name)
        for gpu, model in (("one", ONE), ("two", TWO))
        for name in ("warpcall", "torch") * 2
    ]
    assert "| case | implementation | three us | ratio | verdict | one us |" in exported[1]
    for text in seen:
        assert "waiting for a three: no server that runs has one" in text
        assert ONE in text
        assert TWO in text
        assert "on two typically takes" in text
    assert widths == [1280, 400]
    assert (last["state"], last["fingerprint"]["device"]) == ("succeeded", THREE)
    assert whole.returncode == 0, whole.stdout + whole.stderr
    assert "waiting" not in whole.stdout


def test_all_parts_of_a_group_are_cancelled_and_each_counts_for_the_quota(
    database: Database, tmp_path: Path, warpcall: Callable[..., Printed]
) -> None:
    body = {"gpus": ["one", "nothing", "more"], "job": {**JOB, "precision": "quick"}}
    with with_model(database, tmp_path / "a", ONE) as a, client(a) as http:
        unknown = http.post("/v1/groups", json={**body, "gpus": ["nothing", "more"]})
        first = http.post("/v1/groups", json=body, headers={"idempotency-key": "k"})
        repeated = http.post("/v1/groups", json=body, headers={"idempotency-key": "k"})
        group = first.json()
        ended(http, group["parts"][0]["job"])
        reused = http.post("/v1/groups", json=body).json()
        stopped = warpcall(a, "cancel", group["id"])
        after = http.get(f"/v1/groups/{group['id']}").json()
        left = http.get("/v1/jobs", params={"state": "queued"}).json()["jobs"]
        rest = http.post(f"/v1/groups/{reused['id']}/cancel").json()

    assert unknown.status_code == 422
    assert unknown.json()["field"] == "gpus"
    assert (
        "no server here has a device of the model 'nothing' or 'more'" in unknown.json()["detail"]
    )
    assert (first.status_code, repeated.status_code) == (201, 200)
    assert repeated.json()["id"] == group["id"]
    assert reused["id"] != group["id"]
    assert reused["parts"][0]["job"]["id"] == group["parts"][0]["job"]["id"], "measured before"
    assert stopped.returncode == 0, json.dumps(after)
    assert "2 jobs cancelled" in stopped.stdout
    assert [part["job"]["state"] for part in after["parts"]] == [
        *("succeeded", "cancelled", "cancelled")
    ]
    assert {job["group"] for job in left} == {reused["id"]}
    assert all(part["job"]["state"] not in UNFINISHED for part in rest["parts"])
