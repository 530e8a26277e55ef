"""Uploaded versions in the database: who may store them, and when their sources are erased."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from tests.service import job_rows
from warpcall.errors import Forbidden, InvalidInput, TooLarge, Unavailable
from warpcall_bench.jobs import lifecycle, submissions
from warpcall_bench.jobs.tables import Job
from warpcall_bench.runs.events import EnvironmentKnown
from warpcall_bench.runs.messages import problem_version, version_of
from warpcall_bench.uploads import job_uploads
from warpcall_bench.uploads.database import IMPLEMENTATIONS, PROBLEMS
from warpcall_bench.uploads.new_versions import NewImplementation, NewProblem, Quota
from warpcall_bench.uploads.tables import JobUpload, StoredProblem, UploadedVersion
from warpcall_service.auth import users
from warpcall_service.identity import LOCAL, Caller
from warpcall_service.store.database import Store

ANN, BOB = Caller("ann", "upload"), Caller("bob", "upload")
QUOTA = Quota(versions=3, nbytes=100)


def version(source: str, private: bool | None = None) -> NewImplementation:
    return NewImplementation(
        op="permute", function="permute", name="mine", source=source, private=private
    )


def put(
    store: Store, source: str = "x", *, caller: Caller = ANN, private: bool | None = None
) -> bool:
    """Store a version of `mine`; whether it is new."""
    with store.write() as session:
        new = version(source, private)
        return IMPLEMENTATIONS.store(session, caller, new, {"doc": "doc"}, QUOTA)[1]


def delete(store: Store) -> None:
    with store.write() as session:
        IMPLEMENTATIONS.delete(session, ANN, "ann", "mine", None)


def stored(store: Store) -> list[str]:
    """The sources that are stored."""
    with store.read() as session:
        return sorted(session.scalars(sa.select(UploadedVersion.source)))


def needed(store: Store) -> int:
    with store.read() as session:
        return session.scalars(sa.select(sa.func.count()).select_from(JobUpload)).one()


@pytest.fixture(autouse=True)
def _users(store: Store) -> None:
    with store.write() as session:
        for name in ("ann", "bob"):
            users.add_user(session, name)


def test_a_disabled_user_stores_nothing(store: Store) -> None:
    with store.write() as session:
        users.disable_user(session, "ann")

    with pytest.raises(Forbidden, match="the user ann is disabled"):
        put(store)

    assert stored(store) == []


def test_a_version_that_was_not_checked_is_not_stored(store: Store) -> None:
    with pytest.raises(Unavailable), store.write() as session:
        IMPLEMENTATIONS.store(session, ANN, version("x"), None, QUOTA)

    assert stored(store) == []


@pytest.mark.parametrize("caller", [ANN, LOCAL])
def test_uploads_of_a_user_at_the_same_time_are_stored_one_after_the_other(
    store: Store, caller: Caller
) -> None:
    start = threading.Barrier(4)

    def upload(source: str) -> bool:
        start.wait(30)
        return put(store, source, caller=caller)

    with ThreadPoolExecutor(4) as pool:
        created = list(pool.map(upload, ["same", "same", "same", "other"]))

    assert sorted(created) == [False, False, True, True]
    assert stored(store) == ["other", "same"]


def test_the_quota_holds_for_bytes_too_and_for_each_user_alone(store: Store) -> None:
    put(store, "a" * 60)
    with pytest.raises(
        TooLarge, match=r"60 bytes of implementations and problems stored, with this .* 110,"
    ):
        put(store, "b" * 50)
    put(store, "b" * 50, caller=BOB)
    put(store, "é" * 20)  # 40 bytes

    with pytest.raises(TooLarge, match="ann has 100 bytes"):
        put(store, "c")
    assert put(store, "a" * 60) is False


def test_what_jobs_need_outlives_its_deletion_until_they_end(store: Store) -> None:
    put(store, "first")
    put(store, "second")
    first = f"ann/mine@{version_of('permute', 'permute', 'first')[:8]}"
    job_rows.submit(store, "bob", implementations=["ann/mine", first])
    job_rows.submit(store, "bob", implementations=["ann/mine"])

    delete(store)
    with pytest.raises(InvalidInput, match="there is no 'ann/mine'"):
        job_rows.submit(store, "bob", implementations=["ann/mine"])
    kept = stored(store)
    both = job_rows.claim(store)
    assert both is not None
    with store.read() as session:
        uploads, _ = job_uploads.of_job(session, both.number)
    job_rows.finish(store, both.number, 1)
    after_one = stored(store)
    one = job_rows.claim(store)
    assert one is not None
    job_rows.finish(store, one.number, 1, "failed")

    assert kept == ["first", "second"]
    assert json.loads(both.sources or "{}") == {
        "ann/mine": version_of("permute", "permute", "second"),
        first: version_of("permute", "permute", "first"),
    }
    assert [(upload["name"], upload["source"]) for upload in uploads] == [
        ("ann/mine", "second"),
        (first, "first"),
    ]
    assert after_one == ["second"]
    assert (stored(store), needed(store)) == ([], 0)


def test_deleted_versions_that_jobs_need_count_and_can_come_back(store: Store) -> None:
    for source in ("a", "b", "c"):
        put(store, source)
    job_rows.submit(store, "bob", implementations=["ann/mine"])
    delete(store)

    assert stored(store) == ["c"]
    assert put(store, "c") is True
    put(store, "d")
    put(store, "e")
    with pytest.raises(TooLarge, match="ann has 3 versions"):
        put(store, "f")
    job = job_rows.claim(store)
    assert job is not None
    job_rows.finish(store, job.number, 1)
    assert stored(store) == ["c", "d", "e"]


def test_a_job_that_ended_needs_nothing(store: Store) -> None:
    put(store, "a")
    job_rows.submit(store, "bob", implementations=["ann/mine"])
    job = job_rows.claim(store)
    assert job is not None
    job_rows.finish(store, job.number, 1)

    delete(store)

    assert stored(store) == []


def put_problem(store: Store, source: str, *, private: bool | None = None) -> None:
    """Store a version of the problem `ann/op`."""
    columns = {"doc": "", "function": "op", "outline": "{}", "declaration": "{}"}
    with store.write() as session:
        new = NewProblem(name="op", source=source, private=private)
        PROBLEMS.store(session, ANN, new, columns, QUOTA)


def submit_problem(store: Store, user: str, source: str, *, fresh: bool = True) -> str:
    """Submit a job on the version of `ann/op` with this source."""
    with store.write() as session:
        checked = {**job_rows.checked(), "problem_sha256": problem_version(source)}
        asked = job_rows.request(op="ann/op", cases=[{}], implementations=["torch"], fresh=fresh)
        job, _ = submissions.submit(session, job_rows.caller(user), asked, checked, None, 9)  # type: ignore[arg-type]  # with one more member
        return job.id


def stored_problems(store: Store) -> list[str]:
    with store.read() as session:
        return sorted(session.scalars(sa.select(StoredProblem.source)))


def test_problems_that_jobs_need_outlive_their_deletion_until_they_end(store: Store) -> None:
    for source in ("first", "second"):
        put_problem(store, source)
    for source in ("first", "second", "second"):
        submit_problem(store, "bob", source)
    with store.write() as session:
        PROBLEMS.delete(session, ANN, "ann", "op", None)

    with pytest.raises(InvalidInput, match="there is no problem 'ann/op@"):
        submit_problem(store, "bob", "first")
    kept = [stored_problems(store)]
    needed_by_jobs = []
    while (job := job_rows.claim(store)) is not None:
        with store.read() as session:
            needed_by_jobs.append(job_uploads.problem_of_job(session, job))
        job_rows.finish(store, job.number, 1, "cancelled")
        kept.append(stored_problems(store))

    assert [one and one["source"] for one in needed_by_jobs] == ["first", "second", "second"]
    assert kept == [["first", "second"], ["second"], ["second"], []]
    with store.read() as session:
        hashes = session.execute(sa.select(Job.problem_sha256, Job.problem_number)).all()
    assert sorted(hashes) == sorted(
        (problem_version(source), None) for source in ("first", "second", "second")
    )


def test_a_job_is_on_the_version_that_was_checked_and_not_on_a_later_one(store: Store) -> None:
    put_problem(store, "checked")
    put_problem(store, "later")

    submit_problem(store, "bob", "checked")

    job = job_rows.claim(store)
    assert job is not None
    with store.read() as session:
        problem = job_uploads.problem_of_job(session, job)
    assert problem == {"name": "ann/op", "source": "checked"}


def test_only_a_job_on_the_same_version_answers_a_submission(store: Store) -> None:
    put_problem(store, "first")
    put_problem(store, "second")
    measured = submit_problem(store, "bob", "first")
    job = job_rows.claim(store)
    assert job is not None
    known = EnvironmentKnown({"kernels_sha256": "0"}, "a machine", None)
    with store.write() as session:
        lifecycle.set_environment(session, session.get_one(Job, job.number), known)
    job_rows.finish(store, job.number, 1)

    assert submit_problem(store, "bob", "first", fresh=False) == measured
    assert submit_problem(store, "bob", "second", fresh=False) != measured


def test_a_problem_that_became_private_cannot_be_submitted_by_others(store: Store) -> None:
    put_problem(store, "source", private=True)

    with pytest.raises(InvalidInput, match="or it is not yours to read"):
        submit_problem(store, "bob", "source")
    submit_problem(store, "ann", "source")


def test_the_quota_counts_both_kinds(store: Store) -> None:
    put(store, "a" * 40)
    put_problem(store, "b" * 40)

    with pytest.raises(TooLarge, match="ann has 80 bytes of implementations and problems"):
        put_problem(store, "c" * 30)
    put_problem(store, "c" * 20)
    with pytest.raises(TooLarge, match="ann has 3 versions of implementations and problems"):
        put(store, "d")


def test_the_first_implementation_of_a_private_problem_is_private_by_default(
    store: Store,
) -> None:
    def privacy(source: str, given: bool | None, problem: bool) -> bool:
        with store.write() as session:
            new = version(source, given)
            row, _ = IMPLEMENTATIONS.store(session, ANN, new, {"doc": ""}, QUOTA, private=problem)
            return row.private

    assert privacy("a", None, True) is True
    assert privacy("b", None, False) is True, "as the version before it"
    assert privacy("c", False, True) is False
