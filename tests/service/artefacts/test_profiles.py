"""Profiles of a job, from the submission to the downloaded trace."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.command import command_for
from tests.servers import running_server
from tests.service.databases import Database
from tests.service.job_requests import BRIEF, CASE, JOB, client, ended, results, submit
from tests.service.nodes.test_nodes import killed
from tests.service.requests import problem_of
from tests.service.runs.sandboxes import needs_bubblewrap
from tests.service.uploads.requests import SETTINGS, Lab, running_lab, uploaded
from tests.service.uploads.sources import TRITON
from tests.waiting import until
from warpcall import Client
from warpcall_bench.artefacts import profiles

pytestmark = pytest.mark.slow

FAILS_AFTER_A_PROFILED_CALL = """
import torch

profiled = False

def permute(x, dims):
    global profiled
    if profiled:
        raise ValueError("<b>not now</b>")
    profiled = torch.autograd._profiler_enabled()
    return x.permute(dims).contiguous()
"""
WAITS_UNDER_THE_PROFILER = """
import pathlib
import time
import torch

def permute(x, dims):
    while torch.autograd._profiler_enabled() and not pathlib.Path({0!r}).exists():
        time.sleep(0.1)
    return x.permute(dims).contiguous()
"""
FORM = {
    "op": "permute", "baseline": "torch", "implementation": "torch", "shape": "8x8", "dtype": "F32",
    "params.dims": "1,0", "precision": "quick", "action": "submit", "token": "t1",
}  # fmt: skip
LARGE_TRACE = """
import torch

def permute(x, dims):
    if torch.autograd._profiler_enabled():
        for _ in range(500):
            x.clone()
    return x.permute(dims).contiguous()
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(tmp_path_factory.mktemp("data"))})
    with running_lab(database, "ann", WARPCALL_ARTEFACT_MAX_BYTES="300KiB") as running:
        yield running


def listed(http: httpx.Client, job: dict[str, Any]) -> dict[tuple[int, str], dict[str, Any]]:
    """The traces of a job, by case and implementation."""
    found = http.get(f"/v1/jobs/{job['id']}/artefacts").json()["artefacts"]
    traces = (one for one in found if one["kind"] == "torch-profile")
    return {(one["position"], one["implementation"]): one for one in traces}


def trace_of(http: httpx.Client, job: dict[str, Any], artefact: dict[str, Any]) -> list[Any]:
    """The events of a trace."""
    answer = http.get(f"/v1/jobs/{job['id']}/artefacts/{artefact['name']}")
    assert answer.status_code == 200, answer.text
    events: list[Any] = answer.json()["traceEvents"]
    return events


def test_each_implementation_of_each_case_has_a_trace(lab: Lab) -> None:
    cases = [CASE, {**CASE, "shape": [4, 4]}]
    with lab.http("ann") as http:
        job = submit(
            http, cases=cases, implementations=["warpcall", "torch", "copy"], profile="torch"
        )
        job = ended(http, job)
        found = listed(http, job)
        page = http.get(f"/jobs/{job['id']}", headers={"accept": "text/html"}).text
        events = {of: trace_of(http, job, one) for of, one in found.items()}
        html = {"accept": "text/html"}
        shown = [http.get(f"/jobs/{job['id']}/cases/{n}", headers=html).text for n in (0, 1)]
    with Client(lab.server.url, api_key=lab.keys["ann"]) as gpu:
        top = gpu.jobs.get(job["id"]).top_kernels()
    tables = {(one.position or 0, one.implementation): one for one in top}

    assert job["state"] == "succeeded", job
    assert found.keys() == {(p, n) for p in (0, 1) for n in ("warpcall", "torch", "copy")}
    assert {one["kind"] for one in found.values()} == {"torch-profile"}
    assert {one["media_type"] for one in found.values()} == {"application/json"}
    assert [one["error"] for one in found.values()] == [""] * 6
    assert found[1, "torch"]["name"] == "case-1.1-torch.trace.json"
    for (_, name), trace in events.items():
        # What Perfetto and chrome://tracing need of each event: phase, name, process, time.
        spans = [event for event in trace if event["ph"] == "X"]
        assert all({"name", "pid", "tid", "ts", "dur"} <= event.keys() for event in spans)
        assert {f"call {i} of {name}" for i in range(3)} <= {event["name"] for event in spans}
        assert any(event["name"].startswith("aten::") for event in spans)
    assert set(tables) == found.keys()
    for table in tables.values():
        assert (table.what, table.calls) == ("operators", 3)
        assert 0 < len(table.kernels) <= 20
        assert sum(one.share for one in table.kernels) <= 1.001
        assert table.total_us >= sum(one.total_us for one in table.kernels) * 0.999
        times = [one.total_us for one in table.kernels]
        assert times == sorted(times, reverse=True)
    for (position, name), table in tables.items():
        part = shown[position].partition(f'id="artefact-case-{position}.')
        assert part[1], name
        assert f'<td class="mono wrap">{table.kernels[0].name}</td>' in shown[position]
        link = f"{found[position, name]['name']}"
        assert f'data-trace="../../../v1/jobs/{job["id"]}/artefacts/{link}"' in shown[position]
    assert [one["name"] for one in found.values()][:3] == [
        "case-0.0-warpcall.trace.json",
        "case-0.1-torch.trace.json",
        "case-0.2-copy.trace.json",
    ]
    listed_on_page = page.partition('id="artefacts"')[2].partition("</table>")[0]
    assert "case-1.1-torch.trace.json" in listed_on_page
    assert found[1, "torch"]["expires_at"][:10] in listed_on_page


def test_nothing_is_profiled_before_all_is_measured(lab: Lab) -> None:
    with lab.http("ann") as http:
        uploaded(http, FAILS_AFTER_A_PROFILED_CALL, name="fails")
        cases = [CASE, {**CASE, "shape": [4, 4]}]
        names = ["torch", "ann/fails"]
        job = ended(http, submit(http, cases=cases, implementations=names, profile="torch"))
        rows = results(http, job)["measurements"]
        found = listed(http, job)
        page = http.get(f"/jobs/{job['id']}", headers={"accept": "text/html"}).text

    assert job["state"] == "succeeded", job
    assert [row["status"] for row in rows] == ["ok"] * 4
    for position in (0, 1):
        assert found[position, "torch"]["error"] == ""
        assert found[position, "ann/fails"]["error"] == "it raised ValueError: <b>not now</b>"
    assert "&lt;b&gt;not now&lt;/b&gt;" in page
    assert "<b>not now</b>" not in page


def test_a_trace_that_is_too_large_is_an_error(lab: Lab) -> None:
    with lab.http("ann") as http:
        uploaded(http, LARGE_TRACE, name="large")
        job = submit(http, implementations=["torch", "ann/large"], profile="torch")
        job = ended(http, job)
        found = listed(http, job)

    assert job["state"] == "succeeded", job
    assert found[0, "torch"]["error"] == ""
    assert (
        "bytes, at most 307200 are kept; profile a smaller case" in found[0, "ann/large"]["error"]
    )


def test_an_implementation_without_a_time_is_not_profiled(lab: Lab) -> None:
    with lab.http("ann") as http:
        uploaded(http, "def permute(x, dims):\n    return x\n", name="wrong")
        job = submit(http, implementations=["torch", "ann/wrong"], profile="torch")
        job = ended(http, job)
        found = listed(http, job)

    assert found.keys() == {(0, "torch")}


def test_a_request_for_profiles_is_not_answered_by_a_job_of_before(lab: Lab) -> None:
    with lab.http("ann") as http:
        plain = submit(http, note="plain")
        ended(http, plain)
        first = submit(http, profile="torch")
        ended(http, first)
        second = submit(http, profile="torch")
        ended(http, second)
        preview = http.post("/v1/jobs/preview", json={**JOB, "profile": "torch"}).json()
        again = submit(http)

    assert len({plain["id"], first["id"], second["id"]}) == 3
    assert preview["reuses"] is None
    assert again["reused"], "times are times, with or without profiles"


@pytest.mark.parametrize("given", ["nsys", "", 1, True, ["torch"]])
def test_another_profiler_is_refused(lab: Lab, given: object) -> None:
    with lab.http("ann") as http:
        answer = http.post("/v1/jobs", json={**JOB, "profile": given})

    assert "'torch'" in problem_of(answer, 422, "invalid-input", "profile")


def test_a_server_without_a_gpu_refuses_nsight_compute(lab: Lab) -> None:
    with lab.http("ann") as http:
        answer = http.post("/v1/jobs", json={**JOB, "profile": "ncu"})
        preview = http.post("/v1/jobs/preview", json={**JOB, "profile": "ncu"})
        html = {"accept": "text/html"}
        form = http.post("/new", data={**FORM, "profile": "ncu"}, headers=html).text

        compiled = http.post("/v1/jobs", json={**JOB, "profile": "compile"})

    assert "`warpcall explain`" in problem_of(compiled, 422, "invalid-input", "profile")
    why = "profile: this server has no GPU, and Nsight Compute profiles kernels of NVIDIA GPUs"
    assert problem_of(answer, 422, "invalid-input", "profile") == why
    assert problem_of(preview, 422, "invalid-input", "profile") == why
    assert '<option value="ncu" selected>' in form
    assert why.partition(" ")[2] in form


def test_too_many_profiles_are_refused(lab: Lab) -> None:
    cases = [{**CASE, "shape": [n, 4]} for n in range(1, profiles.MOST + 2)]
    with lab.http("ann") as http:
        answer = http.post("/v1/jobs", json={**JOB, "cases": cases, "profile": "torch"})

    assert problem_of(answer, 422, "invalid-input", "profile") == (
        "profile: a job with profiles may have at most 64 pairs of a case and an implementation, "
        "got 65 x 1"
    )


def test_the_command_says_how_to_get_the_traces(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WARPCALL_API_KEY", lab.keys["ann"])
    warpcall = command_for(lab.server, monkeypatch, capsys)
    words = ("bench", "permute", "--shape", "8x8", "--dtype", "fp32", "--dims", "1,0")

    shown = warpcall(*words, "--precision", "quick", "--profile", "torch")
    wrong = warpcall(*words, "--profile", "nsys")
    alone = warpcall(*words, "--profile", "torch", "--profile-launch", 2)
    pattern = warpcall(*words, "--profile", "ncu", "--profile-kernels", "(")
    metrics = warpcall(*words, "--profile", "ncu", "--profile-metrics", "a,--export")

    assert shown[0] == 0, shown
    (line,) = (line for line in shown[1].splitlines() if "warpcall artefacts" in line)
    assert line.startswith("4 artefacts: warpcall artefacts ")
    tables = re.findall(
        r"^top operators of (\S+), case 0, 3 calls: total us", shown[1], re.MULTILINE
    )
    assert tables == ["warpcall", "torch"]
    assert re.search(r"^ +\d+\.\d% +[\d.,]+ +[\d.,]+ +\d+  aten::", shown[1], re.MULTILINE)
    assert warpcall("artefacts", line.split()[-1])[1].count("trace.json") == 2
    assert wrong[0] == 2
    assert "--profile must be one of torch" in wrong[2]
    assert (alone[0], pattern[0], metrics[0]) == (2, 2, 2)
    assert "--profile-launch needs --profile ncu" in alone[2]
    assert "--profile-kernels: must be a regular expression" in " ".join(pattern[2].split())
    assert "--profile-metrics: String should match pattern" in " ".join(metrics[2].split())


def test_the_form_of_a_job_asks_for_profiles(lab: Lab) -> None:
    with lab.http("ann") as http:
        made = http.post("/new", data={**FORM, "profile": "torch"}, headers={"accept": "text/html"})
        job = ended(http, {"id": made.headers["location"].rpartition("/")[2].partition("?")[0]})
        like = http.get(f"/new?like={job['id']}", headers={"accept": "text/html"}).text
        found = listed(http, job)

    assert made.status_code == 303, made.text
    assert job["request"]["profile"] == "torch"
    assert found.keys() == {(0, "torch")}
    assert '<option value="torch" selected>' in like


def test_a_job_whose_server_is_killed_makes_the_missing_profiles_later(
    sqlite: Database, tmp_path: Path
) -> None:
    go_on = tmp_path / "go on"
    waits = WAITS_UNDER_THE_PROFILER.format(str(go_on))
    with killed(), running_lab(sqlite, "ann") as lab, lab.http("ann") as http:
        uploaded(http, waits, name="waits")
        job = submit(http, implementations=["torch", "ann/waits"], profile="torch")
        until(lambda: (0, "torch") in listed(http, job))
        before = listed(http, job), results(http, job)["measurements"]
        os.kill(lab.server.process.pid, signal.SIGKILL)
    go_on.touch()
    with (
        running_server({**SETTINGS, **sqlite.settings}) as server,
        client(server, lab.keys["ann"]) as http,
    ):
        job = ended(http, job)
        after = listed(http, job), results(http, job)["measurements"]

    assert (job["state"], job["attempts"]) == ("succeeded", 2), job
    assert [row["status"] for row in before[1]] == ["ok", "ok"]
    assert after[1] == before[1], "nothing was measured again"
    assert before[0].keys() == {(0, "torch")}
    assert after[0][0, "torch"] == before[0][0, "torch"], "nor made again"
    assert after[0][0, "ann/waits"]["error"] == ""


@needs_bubblewrap
def test_uploaded_code_is_profiled_in_the_sandbox(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(tmp_path_factory.mktemp("data"))})
    with (
        running_lab(database, "ann", WARPCALL_UPLOADS="sandboxed", **BRIEF) as lab,
        lab.http("ann") as http,
    ):
        until(lambda: http.get("/readyz").json()["uploads"] == "sandboxed")
        uploaded(http, TRITON, name="kernel")
        names = ["torch", "ann/kernel"]
        job = ended(http, submit(http, implementations=names, profile="torch"))
        found = listed(http, job)
        events = {of: trace_of(http, job, one) for of, one in found.items()}

    assert job["state"] == "succeeded", job
    assert {of: one["error"] for of, one in found.items()} == dict.fromkeys(
        ((0, name) for name in names), ""
    )
    assert all(f"call 0 of {name}" in json.dumps(events[0, name]) for name in names)
