"""Which jobs become private, and which job answers a request, on SQLite and PostgreSQL."""

from __future__ import annotations

from typing import Any

import pytest

from tests.service.job_rows import MANY, caller, checked, claim, finish, request
from warpcall.errors import InvalidInput
from warpcall_bench.jobs import submissions
from warpcall_bench.jobs.tables import Job
from warpcall_bench.uploads.database import IMPLEMENTATIONS
from warpcall_bench.uploads.new_versions import NewImplementation, Quota
from warpcall_service.auth import users
from warpcall_service.identity import Caller
from warpcall_service.store.database import Store

# Of `request()` by a server without the field `private`: a retry must find its job after an upgrade.
HASH = "3bd398c820ee2e69250087b170ddfacfc9d4acd7a991a97c7cb7c9524f571185"
UPLOADS = ["alice/open", "alice/secret"]


def submit(
    store: Store, *, by_default: bool = False, who: Caller | None = None, **fields: Any
) -> tuple[str, bool]:
    """The id of the job that answers a request, and whether it is private."""
    asked = request(**{"implementations": ["torch"], **fields})
    with store.write() as session:
        job, _ = submissions.submit(
            session, who or caller("alice"), asked, checked(), None, MANY, by_default
        )
        session.flush()
        return job.id, job.private


def measured(store: Store, **fields: Any) -> str:
    """A job of alice's that has ended."""
    job_id, _ = submit(store, fresh=True, **fields)
    job = claim(store)
    assert job is not None
    with store.write() as session:
        session.get_one(Job, job.number).environment = "a machine"
    finish(store, job.number, 1000)
    return job_id


def upload(store: Store) -> None:
    """Store the UPLOADS of alice's, the second of them private."""
    with store.write() as session:
        users.add_user(session, "alice")
        session.flush()
        for name in UPLOADS:
            new = NewImplementation(
                op="permute",
                function="f",
                name=name.partition("/")[2],
                source=name,
                private="secret" in name,
            )
            IMPLEMENTATIONS.store(session, caller("alice"), new, {"doc": ""}, Quota(10, 10_000))


@pytest.mark.parametrize(
    ("given", "by_default", "private"),
    [
        (None, False, False),
        (None, True, True),
        (False, False, False),
        (False, True, False),
        (True, False, True),
        (True, True, True),
    ],
)
def test_a_request_decides_before_the_setting_of_the_server(
    store: Store, given: bool | None, by_default: bool, private: bool
) -> None:
    assert submit(store, private=given, by_default=by_default)[1] is private


@pytest.mark.parametrize(
    ("names", "given", "private"),
    [
        (["torch"], None, False),
        (UPLOADS[:1], None, False),
        (UPLOADS, None, True),
        (UPLOADS, False, False),
        (UPLOADS[:1], True, True),
    ],
)
def test_a_job_that_times_a_private_upload_is_private_unless_the_request_says_otherwise(
    store: Store, names: list[str], given: bool | None, private: bool
) -> None:
    upload(store)

    assert submit(store, implementations=names, private=given)[1] is private


@pytest.mark.parametrize("was_private", [False, True])
def test_a_job_answers_only_requests_that_want_no_other_readers(
    store: Store, was_private: bool
) -> None:
    before = measured(store, private=was_private)

    reused = {
        (given, by_default): submit(store, private=given, by_default=by_default)[0] == before
        for given in (None, False, True)
        for by_default in (False, True)
    }

    assert reused == {
        (None, False): True,
        (None, True): was_private,
        (False, False): not was_private,
        (False, True): not was_private,
        (True, False): was_private,
        (True, True): was_private,
    }


def test_a_preview_names_the_job_that_would_answer(store: Store) -> None:
    before = measured(store, private=False)

    with store.read() as session:
        found = [
            submissions.find_answered(
                session,
                caller("alice"),
                request(implementations=["torch"], private=given),
                checked(),
                False,
            )
            for given in (None, False, True)
        ]

    assert [job and job.id for job in found] == [before, before, None]


def test_the_jobs_of_other_users_answer_nothing(store: Store) -> None:
    before = measured(store, private=False)

    assert submit(store, who=caller("bob"))[0] != before


def test_a_request_without_the_field_is_the_same_as_before_there_was_one() -> None:
    assert submissions.sha256_of(request()) == HASH
    assert submissions.sha256_of(request(private=None)) == HASH
    assert submissions.sha256_of(request(private=False)) != HASH


def test_no_user_is_called_as_all_users_are(store: Store) -> None:
    with store.write() as session, pytest.raises(InvalidInput, match="a user all already"):
        users.add_user(session, "all")
