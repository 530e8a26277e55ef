"""Share links in the database, on SQLite and PostgreSQL."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from tests.service.job_rows import caller, submit
from warpcall.errors import Forbidden, NotFound, TooLarge
from warpcall_bench.jobs import answers, submissions
from warpcall_bench.jobs.submissions import Filter
from warpcall_bench.shares import database
from warpcall_bench.shares.tables import ShareLink
from warpcall_service.identity import guest
from warpcall_service.store.database import Store

ALICE, BOB, ROOT = caller("alice"), caller("bob"), caller("root", "admin")


def test_a_link_is_found_by_its_token_alone_and_opens_its_jobs_alone(store: Store) -> None:
    first, second, third = (submit(store, "alice") for _ in range(3))
    with store.write() as session:
        _, token = database.create(session, ALICE, first, second, 60)
        (found, *_), other = database.create(session, ALICE, third, None, None)

    with store.read() as session:
        opened, alone = (database.open_link(session, one) for one in (token, other))
        wrong = [database.open_link(session, one) for one in (found.id, token[:-1], "", "sh_" * 9)]
        assert opened is not None
        assert alone is not None
        assert (opened.job_id, opened.other_id) == (first, second)
        assert (alone.job_id, alone.other_id, alone.expires_at) == (third, None, None)
        assert wrong == [None] * 4
        assert [job.id for job in submissions.listed(session, opened.caller, Filter())] == [
            second,
            first,
        ]
        assert submissions.find(session, opened.caller, first).id == first
        for who, job_id in ((opened.caller, third), (alone.caller, first)):
            with pytest.raises(NotFound):
                submissions.find(session, who, job_id)


def test_a_guest_changes_nothing_and_reads_nothing_private(store: Store) -> None:
    shown, secret = submit(store, "alice"), submit(store, "alice", private=True)
    who = guest("x", frozenset({shown, secret}))

    with store.read() as session:
        with pytest.raises(Forbidden):
            submissions.find_own(session, who, shown)
        with pytest.raises(NotFound):
            submissions.find(session, who, secret)
        found = answers.history(session, who, "permute", "torch", "case 0", 10)
    assert found.points == []


def test_a_user_has_a_bounded_number_of_links_that_have_not_expired(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "MAX_SHARES", 3)
    mine, theirs = submit(store, "alice"), submit(store, "bob")
    with store.write() as session:
        for _ in range(3):
            database.create(session, ALICE, mine, None, 60)
    with store.write() as session, pytest.raises(TooLarge, match="alice has 3 share links"):
        database.create(session, ALICE, mine, None, 60)
    with store.write() as session:
        database.create(session, BOB, theirs, None, None)

    with store.write() as session:
        session.execute(sa.update(ShareLink).values(expires_at=1))
        database.create(session, ALICE, mine, None, None)

    with store.read() as session:
        assert len(database.listed(session, ROOT, None, None)) == 1, "expired ones are deleted"


def test_each_token_is_another_one(store: Store) -> None:
    job = submit(store, "alice")

    with store.write() as session:
        tokens = {database.create(session, ALICE, job, None, None)[1] for _ in range(50)}

    assert len(tokens) == 50
    with store.read() as session:
        digests = session.scalars(sa.select(ShareLink.digest)).all()
    assert {len(digest) for digest in digests} == {32}
