"""Races of uploads in jobs, through a real server: who wins, who leaves, who fails."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.service.databases import new_database
from tests.service.job_requests import ended, events, reached, results, submit
from tests.service.uploads.requests import Lab, running_lab, uploaded
from tests.service.uploads.sources import WRONG
from warpcall.jobs import UNFINISHED
from warpcall_bench.jobs.models import RACE_AT_ONCE

pytestmark = pytest.mark.slow

# They sleep, so that a busy machine changes little; not in odd cases, of which there are many.
SLEEPS = """
import time
import torch

def permute(x, dims):
    if tuple(x.shape) == (8, 8):
        time.sleep({})
    return x.permute(dims).clone(memory_format=torch.contiguous_format)
"""
CRASHES = """
import os

def permute(x, dims):
    os._exit(3)
"""
HANGS = """
import time

def permute(x, dims):
    time.sleep(600)
"""


@pytest.fixture(params=["sqlite"], scope="module")
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    database = new_database(request, tmp_path_factory.mktemp("jobs"))
    limits = {"WARPCALL_UPLOAD_CALL_S": "2", "WARPCALL_UPLOAD_COMPILE_S": "20"}
    with running_lab(database, "ann", **limits) as running:
        yield running


def test_more_uploads_race_than_have_a_process_at_once(lab: Lab) -> None:
    sources = {
        "slow": SLEEPS.format(0.06),
        "wrong": WRONG,
        "crashes": CRASHES,
        "fast": SLEEPS.format(0.002),
        "hangs": HANGS,
        **{f"middle{number}": SLEEPS.format(0.02) for number in range(4)},
    }
    assert len(sources) > RACE_AT_ONCE
    with lab.http("ann") as ann:
        for name, source in sources.items():
            uploaded(ann, source, name=name)
        names = [f"ann/{name}" for name in sources]
        job = submit(ann, implementations=names, race=True)
        job = reached(
            ann, job, lambda found: found["state"] not in UNFINISHED, wait_s=280, passes=False
        )
        found = results(ann, job)
        happened = [*events(ann, job)]

    assert (job["state"], job["exit_class"]) == ("partial", "wrong_result"), job
    assert [case["race"]["outcome"] for case in found["cases"]] == ["winner"]
    assert [case["race"]["fastest"] for case in found["cases"]] == [["ann/fast"]]
    for case in found["cases"]:
        rows = {
            row["implementation"].removeprefix("ann/"): row
            for row in found["measurements"]
            if row["position"] == case["position"]
        }
        failed = {name: row["status"] for name, row in rows.items() if row["status"] != "ok"}
        assert failed == {"wrong": "wrong_result", "crashes": "crashed", "hangs": "timeout"}
        races: dict[str, Any] = {name: row["race"] for name, row in rows.items()}
        assert races["fast"]["rank"] == 1
        assert races["fast"]["left_round"] is None
        assert races["slow"]["left_leader"].startswith("ann/")
        assert races["slow"]["to_leader"]["low"] > 1
        assert {races[name]["rank"] for name in failed} == {None}
        assert all(rows[f"middle{number}"]["median_us"] for number in range(4))
    left = {e["data"]["implementation"] for e in happened if e["data"].get("phase") == "left"}
    assert left == {"ann/slow", *(f"ann/middle{number}" for number in range(4))}
    racing = [e["data"]["racing"] for e in happened if "racing" in e["data"]]
    assert max(racing, default=0) <= RACE_AT_ONCE


def test_a_race_is_another_job_than_a_measurement_of_the_same(lab: Lab) -> None:
    with lab.http("ann") as ann:
        for name, seconds in (("one", 0.002), ("two", 0.03)):
            uploaded(ann, SLEEPS.format(seconds), name=name)
        names = ["ann/one", "ann/two"]
        measured = ended(ann, submit(ann, implementations=names))
        race = submit(ann, implementations=names, race=True)
        ended(ann, race)
        again = submit(ann, implementations=names, race=True)
        compared = ann.get(f"/v1/jobs/{measured['id']}/compare/{race['id']}").json()
        page = ann.get(f"/jobs/{race['id']}/cases/0")

    assert not race["reused"]
    assert (again["id"], again["reused"]) == (race["id"], True)
    assert {row["implementation"] for row in compared["rows"]} == {"ann/one", "ann/two"}
    assert page.status_code == 200
