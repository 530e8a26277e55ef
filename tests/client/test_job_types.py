"""Answers of the jobs API as types: what a newer server adds is ignored, what does not fit is
refused.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.client.flavours import Flavour
from tests.client.job_answers import DETAILS, JOB
from tests.client.scripted import ScriptedServer
from tests.client.test_jobs import answers
from warpcall import Client, TransportError
from warpcall._jobs.parse import parse
from warpcall.jobs import STATES, UNFINISHED, JobInfo, JobList
from warpcall.jobs.results import CaseResults, Comparison, Readings

CASE: dict[str, Any] = {
    "position": 0, "case": "c", "spec": {"a": [1]}, "device": "cpu", "clock": "perf_counter",
    "column": "device_cold", "rounds": 2, "masked": [{"round": 1, "reason": "hot"}], "converged": True,
    "margin": 0.01, "a_a": None, "bytes_moved": 8, "limit_us": 1, "tags": [],
    "finished_at": "2026-01-01T00:00:00.000Z", "samples_us": {"torch": [1, 2.5, None]},
}  # fmt: skip


def test_what_a_newer_server_adds_is_ignored(flavour: Flavour) -> None:
    newer = {**DETAILS, "state": "paused", "pauses": [1, 2]}

    with ScriptedServer(answers(newer)) as server:
        (job,) = flavour.ask(server, lambda gpu: gpu.jobs.get("j1"))

    assert (job.state, job.cases_total, job.estimated_s) == ("paused", 1, 8)
    assert not hasattr(job, "pauses")


def test_a_job_has_the_fields_of_the_latest_answer() -> None:
    ended = {**DETAILS, "state": "cancelled", "exit_class": "cancelled", "cases_done": 1}

    with (
        ScriptedServer(answers(DETAILS), answers(ended)) as server,
        Client(server.url) as gpu,
    ):
        job = gpu.jobs.get("j1")
        before = job.info
        same = job.cancel()

    assert same is job
    assert (before.state, before.cases_done) == ("running", 0)
    assert (job.state, job.cases_done, job.ended) == ("cancelled", 1, True)
    assert (job.info.state, job.info.cases_done) == ("cancelled", 1)
    with pytest.raises(AttributeError):
        job.state = "queued"  # type: ignore[misc]  # as a program without type checks would


# Servers of before the field leave it out.
ADDED = {
    **dict.fromkeys(("first_case", "name", "node", "host", "device_name", "gpu", "group"), ""),
    **dict.fromkeys(("times", "outcome")),
    "kind": "benchmark",
    "has_device": True,
}


@pytest.mark.parametrize("field", [name for name in JOB if name not in ADDED])
def test_an_answer_without_a_field_is_refused(field: str) -> None:
    payload = {"jobs": [JOB, {k: v for k, v in JOB.items() if k != field}], "next": None}

    with pytest.raises(
        TransportError, match=rf"must send jobs: jobs\[1\] must have '{field}', got"
    ):
        parse(JobList, payload, "jobs")


@pytest.mark.parametrize("field", ADDED)
def test_an_answer_without_a_field_that_was_added_is_taken(field: str) -> None:
    payload = {"jobs": [{k: v for k, v in JOB.items() if k != field}], "next": None}

    assert getattr(parse(JobList, payload, "jobs").jobs[0], field) == ADDED[field]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("cases_done", "1", "cases_done must be an integer, got '1'"),
        ("cases_done", True, "cases_done must be an integer, got True"),
        ("cases_done", None, "cases_done must be an integer, got None"),
        ("estimated_s", "8", "estimated_s must be a number, got '8'"),
        ("starts_in_s", [], r"starts_in_s must be a number, got \[\]"),
        ("state", 1, "state must be a text, got 1"),
        ("cancel_requested", 0, "cancel_requested must be true or false, got 0"),
        ("tags", "a", "tags must be a list, got 'a'"),
        ("tags", ["a", 1], "tags must be a list of str, got"),
    ],
)
def test_an_answer_with_a_field_of_another_type_is_refused(
    field: str, value: object, message: str
) -> None:
    with pytest.raises(TransportError, match=f"must send a job: {message}"):
        parse(JobInfo, {**JOB, field: value}, "a job")


@pytest.mark.parametrize("payload", [None, [], "job", 1])
def test_an_answer_that_is_no_object_is_refused(payload: object) -> None:
    with pytest.raises(TransportError, match="must send a job: it must be an object, got"):
        parse(JobInfo, payload, "a job")


def test_samples_and_lists_of_objects_are_read() -> None:
    case = parse(CaseResults, CASE, "a case")

    assert case.samples_us == {"torch": [1, 2.5, None]}
    assert case.masked == CASE["masked"]
    assert case.spec == {"a": [1]}
    with pytest.raises(TransportError, match=r"samples_us\['torch'\] must be a list of float"):
        parse(CaseResults, {**CASE, "samples_us": {"torch": [1, "2"]}}, "a case")
    with pytest.raises(TransportError, match="masked must be a list of"):
        parse(CaseResults, {**CASE, "masked": [1]}, "a case")


def test_what_an_older_server_does_not_send_has_its_default() -> None:
    readings: dict[str, Any] = {
        "rounds": [4],
        "sm_clock_mhz": [1980],
        "power_w": [None],
        "temperature_c": [61],
    }

    older = parse(CaseResults, CASE, "a case")
    newer = parse(CaseResults, {**CASE, "readings": readings}, "a case")

    assert older.readings is None
    assert newer.readings == Readings(**readings)
    wrong = {name: value for name, value in readings.items() if name != "power_w"}
    with pytest.raises(TransportError, match=r"readings must have 'power_w'"):
        parse(CaseResults, {**CASE, "readings": wrong}, "a case")


def test_rows_are_refused_by_their_place() -> None:
    payload = {"a": "x", "b": "y", "same_environment": True, "differences": {}, "only_a": [],
               "only_b": [], "rows": [{"case": "c"}]}  # fmt: skip

    with pytest.raises(TransportError, match=r"rows\[0\] must have 'implementation'"):
        parse(Comparison, payload, "a comparison")


def test_states_that_are_not_ends_are_the_first_ones() -> None:
    assert STATES[: len(UNFINISHED)] == UNFINISHED
