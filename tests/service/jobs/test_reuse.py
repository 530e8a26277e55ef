"""A job answers a submission again only if it measured the same sources, all of them."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from tests.service.job_rows import MANY, caller, checked, claim, finish, request
from tests.service.stored import implementation, result
from warpcall_bench.jobs import lifecycle, submissions
from warpcall_bench.jobs.tables import Job, Measurement
from warpcall_bench.runs.events import EnvironmentKnown
from warpcall_service.store.database import Store

OLD, NEW = "1" * 64, "2" * 64
HERE = "a machine"


def submit(store: Store, source: str) -> str:
    """The id of the job that answers a submission for which the server found this source."""
    with store.write() as session:
        asked = request(implementations=["mine"])
        found = {**checked(2), "sources": {"mine": source}}
        return submissions.submit(session, caller("alice"), asked, found, None, MANY)[0].id  # type: ignore[arg-type]  # with `sources`


def run(store: Store, number: int, source: str | None, *, cases: int, **change: str) -> None:
    """Let a job measure so many more cases of a source; None means that its process says nothing."""
    with store.write() as session:
        job = session.get_one(Job, number)
        facts = {"kernels_sha256": change.get("kernels", "0")}
        sources = None if source is None else {"mine": source}
        environment = change.get("environment", HERE)
        lifecycle.set_environment(session, job, EnvironmentKnown(facts, environment, sources))
        for position in range(job.cases_done, job.cases_done + cases):
            rows = [implementation("mine", [2.0] * 9)]
            lifecycle.save_case(session, job, position, result(9, 0, implementations=rows))


def measured(store: Store, number: int) -> dict[int, str | None]:
    """The source of each case's row."""
    with store.read() as session:
        job = session.get_one(Job, number)
        rows = sa.select(Measurement).where(Measurement.job_number == job.number)
        return {row.position: row.source_sha256 for row in session.scalars(rows)}


def started(store: Store) -> int:
    job = claim(store)
    assert job is not None
    return job.number


def test_what_the_process_loaded_counts_and_not_what_the_submission_found(store: Store) -> None:
    job = submit(store, OLD)
    number = started(store)
    run(store, number, NEW, cases=2)
    finish(store, number, 1000)

    assert submit(store, NEW) == job
    assert submit(store, OLD) != job
    assert measured(store, number) == {0: NEW, 1: NEW}


def test_where_the_process_is_not_trusted_the_sources_of_the_submission_count(
    store: Store,
) -> None:
    job = submit(store, OLD)
    number = started(store)
    run(store, number, None, cases=2)
    finish(store, number, 1000)

    assert submit(store, OLD) == job
    assert measured(store, number) == {0: OLD, 1: OLD}


@pytest.mark.parametrize(
    ("source", "change"),
    [(NEW, {}), (OLD, {"kernels": "1"}), (OLD, {"environment": "another machine"})],
    ids=["another source", "other kernels", "another environment"],
)
def test_a_job_that_measured_its_cases_of_several_sources_answers_nothing(
    source: str, change: dict[str, str], store: Store
) -> None:
    job = submit(store, OLD)
    number = started(store)
    run(store, number, source, cases=1, **change)
    run(store, number, OLD, cases=0)
    run(store, number, OLD, cases=1)
    finish(store, number, 1000)

    assert job not in (submit(store, OLD), submit(store, NEW))


def test_a_job_that_was_interrupted_and_measured_the_same_answers(store: Store) -> None:
    job = submit(store, OLD)
    number = started(store)
    run(store, number, OLD, cases=1)
    run(store, number, OLD, cases=1)
    finish(store, number, 1000)

    assert submit(store, OLD) == job


@pytest.mark.parametrize("field", ["sources", "kernels_sha256"])
def test_every_source_is_part_of_the_question(field: str) -> None:
    given = {
        "op": "permute",
        "implementations": ["a", "b"],
        "precision": "quick",
        "case_keys": ["x"],
        "kernels_sha256": "0",
        "sources": {"a": OLD, "b": OLD},
    }
    other = {**given, field: {"a": OLD, "b": NEW} if field == "sources" else "1"}

    assert lifecycle.question_sha256(**given) != lifecycle.question_sha256(**other)  # type: ignore[arg-type]
