"""What users see of jobs in the database, on SQLite and PostgreSQL: each user finds their own, and
once.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any

import pytest
import sqlalchemy as sa

from tests.service import stored
from tests.service.job_rows import DEVICES, MANY, caller, checked, claim, finish, request, submit
from warpcall.errors import InvalidInput, NotFound
from warpcall.jobs.outcomes import chip_of
from warpcall_bench.jobs import answers, events, lifecycle, submissions
from warpcall_bench.jobs.submissions import Filter
from warpcall_bench.jobs.tables import Job, JobCase
from warpcall_service.identity import Caller
from warpcall_service.store import times
from warpcall_service.store.database import Store


def test_a_submission_that_is_sent_again_finds_its_job(store: Store) -> None:
    first = submit(store, "alice", key="a")

    assert submit(store, "alice", key="a") == first
    assert submit(store, "alice", key="b") != first
    assert submit(store, "bob", key="a") != first
    with pytest.raises(InvalidInput, match="Idempotency-Key must be a new one") as caught:
        submit(store, "alice", key="a", note="else")
    assert caught.value.field == "idempotency-key"


def test_what_was_measured_is_not_measured_again_unless_asked(store: Store) -> None:
    first = submit(store, "alice", fresh=False)
    job = claim(store)
    assert job is not None
    unfinished = submit(store, "alice", fresh=False)
    with store.write() as session:
        session.get_one(Job, job.number).environment = "a machine"
    finish(store, job.number, 5000)

    assert submit(store, "alice", fresh=False, note="who cares", priority="low") == first
    others = {
        submit(store, "alice", fresh=True),
        submit(store, "alice", fresh=False, precision="quick"),
        submit(store, "alice", fresh=False, implementations=["torch"]),
        submit(store, "alice", fresh=False, cases=2),
        submit(store, "bob", fresh=False),
    }
    assert len(others | {first, unfinished}) == 7


def test_estimates_learn_from_what_jobs_took(store: Store) -> None:
    submit(store, "alice")
    job = claim(store)
    assert job is not None
    finish(store, job.number, 2 * job.nominal_ms)

    with store.read() as session:
        estimate = submissions.estimate(session, request(), checked())

    assert estimate.estimated_s == pytest.approx(2 * estimate.nominal_s)


def test_lists_are_filtered_and_paged_and_show_no_private_jobs_of_others(store: Store) -> None:
    ids = [submit(store, "alice", tags=[f"t{i % 2}", "all"]) for i in range(5)]
    theirs = submit(store, "bob", op="conv", tags=["all"], private=True)

    def listed(who: Caller, **wanted: Any) -> list[str]:
        with store.read() as session:
            return [job.id for job in submissions.listed(session, who, Filter(**wanted))]

    alice, admin = caller("alice"), caller("root", "admin")
    assert listed(alice) == ids[::-1]
    assert listed(alice, tag="t0") == [ids[4], ids[2], ids[0]]
    assert listed(alice, limit=2) == ids[:1:-1], "one more than asked says that there are more"
    assert listed(alice, before=ids[2]) == [ids[1], ids[0]]
    assert listed(alice, user="bob") == listed(alice, op="conv") == []
    assert listed(alice, state="running") == []
    assert listed(admin) == [theirs, *ids[::-1]]
    assert listed(admin, user="bob") == listed(admin, op="conv") == [theirs]
    with pytest.raises(NotFound, match="or it is private to another user"):
        listed(alice, before=theirs)


def test_a_job_is_found_by_the_beginning_of_its_id(store: Store) -> None:
    ids = [submit(store, "alice") for _ in range(3)]
    theirs = submit(store, "bob", private=True)
    with store.write() as session:
        new = ("abcd00000001", "abcd0000000f", "abce00000000", "0123456789ab")
        for id_, wanted in zip((*ids, theirs), new, strict=True):
            session.scalars(sa.select(Job).where(Job.id == id_)).one().id = wanted

    def found(part: str) -> str:
        with store.read() as session:
            return submissions.find(session, caller("alice"), part).id

    assert found("abce") == "abce00000000"
    assert found("abcd0000000f") == "abcd0000000f"
    with pytest.raises(InvalidInput, match="several jobs have ids that begin with abcd") as caught:
        found("abcd")
    assert caught.value.field == "id"
    for part in ("abc", "", "abcf", "abcd%", "abcd_", "0123", "0123456789ab", "abcd00000001a"):
        with pytest.raises(NotFound, match="or it is private to another user"):
            found(part)


def test_a_list_says_what_each_job_measures_first(store: Store) -> None:
    submit(store, "alice", cases=3)

    with store.read() as session:
        (job,) = answers.jobs(session, caller("alice"), Filter(), DEVICES).jobs

    assert job.first_case == "case 0"


def test_a_job_is_found_by_a_part_of_its_name(store: Store) -> None:
    submit(store, "alice", cases=3)
    named = submit(store, "alice", cases=3, name=" 100 % of\N{EM DASH}Tiles ")
    submit(store, "bob", cases=3, name="tiles", private=True)

    def found(name: str, user: str = "alice") -> list[str]:
        with store.read() as session:
            listed = answers.jobs(session, caller(user), Filter(words=name), DEVICES).jobs
        return [f"{job.title}: {job.measured}" for job in listed]

    ours = "100 % of\N{EM DASH}Tiles: case 0 + 2 more"
    assert found("tiles") == found("% OF") == [ours]
    assert found("tiles", "bob") == ["tiles: case 0 + 2 more", ours]
    assert found("1_0") == found("nothing") == []
    with store.read() as session:
        assert (
            answers.job(session, caller("alice"), named, DEVICES).name == "100 % of\N{EM DASH}Tiles"
        )


def test_a_job_is_found_by_any_of_its_texts_its_outcome_and_its_day(store: Store) -> None:
    large = submit(store, "alice", cases=2, note="After the fix", tags=["nightly"])
    small = submit(store, "alice", implementations=["torch", "copy"])
    private = submit(store, "bob", note="after all", private=True)
    with store.write() as session:
        for job, day in ((large, 29), (small, 30)):
            row = session.scalars(sa.select(Job).where(Job.id == job)).one()
            row.created_ms = int(datetime(2026, 11, day, 23, 59, tzinfo=UTC).timestamp() * 1e3)
            row.implementations = '["torch","ann/tiles"]'
        case = session.scalars(sa.select(JobCase).where(JobCase.key == "case 1")).one()
        case.key = "permute x=BF16[8192,8192] dims=1,0"
    measured_as(store, large, "faster", "wrong_result")
    measured_as(store, small, "faster")

    def found(**wanted: Any) -> list[str]:
        with store.read() as session:
            return [
                job.id
                for job in answers.jobs(session, caller("alice"), Filter(**wanted), DEVICES).jobs
            ]

    for words in ("FIX", "8192x8192", "8192 x 8192 bf16", "fix 8192,8192", "nightly", large):
        assert found(words=words) == [large], words
    assert found(words="after") == [large]
    assert found(words="ann/tiles") == found(words="x") == found(words="") == [small, large]
    assert found(words="fix small") == found(words="%") == found(words="81_2") == []
    assert private not in found(words="bob")
    assert found(found="faster") == []  # their ends decide that
    with store.write() as session:
        session.execute(sa.update(Job).values(state="partial"))
    assert found(found="faster") == [small, large]
    assert found(found="wrong result") == [large]
    assert found(found="slower") == found(found="right") == []
    assert found(since=date(2026, 11, 30)) == [small]
    assert found(until=date(2026, 11, 29)) == [large]
    assert found(since=date(2026, 11, 29), until=date(2026, 11, 30)) == [small, large]
    assert found(until=date.max) == [small, large]
    assert found(until=date.min) == []


def test_a_list_in_any_order_comes_whole_in_pages(store: Store) -> None:
    jobs = [submit(store, user, name=name) for user, name in zip("abab", "CbcA", strict=True)]
    with store.write() as session:
        for took, job in zip((5, 7, 7, 1), jobs, strict=True):
            session.execute(sa.update(Job).where(Job.id == job).values(took_ms=took))

    def listed(sort: str) -> str:
        found, before = [], None
        with store.read() as session:
            while True:
                wanted = Filter(sort=sort, limit=1, before=before)
                page = answers.jobs(session, caller("root", "admin"), wanted, DEVICES)
                found += [jobs.index(job.id) for job in page.jobs]
                if (before := page.next) is None:
                    return "".join(map(str, found))

    assert {sort: listed(sort) for sort in ("submitted", "-submitted", "took", "-took")} == {
        "submitted": "0123",
        "-submitted": "3210",
        "took": "3021",
        "-took": "2103",
    }
    assert (listed("user"), listed("-user")) == ("2031", "3120")
    assert (listed("job"), listed("-job")) == ("3120", "2013")


def measured_as(store: Store, job_id: str, *statuses: str) -> None:
    """Let the second implementation of a job have a time and be faster, or a status, case by case."""
    with store.write() as session:
        row = session.scalars(sa.select(Job).where(Job.id == job_id)).one()
        for position, status in enumerate(statuses):
            found = stored.result(3, position)
            found["implementations"] = [
                stored.implementation("torch", [2.0]),
                {
                    **stored.implementation(
                        "ann/tiles", [1.0], "ok" if status == "faster" else status
                    ),
                    "relative": {"ratio": 0.5, "low": 0.4, "high": 0.6, "n": 3, "verdict": "faster"}
                    if status == "faster"
                    else None,
                },
            ]
            lifecycle.save_case(session, row, position, found)
            lifecycle.save_case(session, row, position, found)  # which is idempotent


def test_a_list_says_what_each_job_found_with_a_number_of_queries_that_does_not_grow(
    store: Store,
) -> None:
    def listed(limit: int) -> tuple[list[str], int]:
        with store.read() as session:
            asked: list[object] = []
            sa.event.listen(session.connection(), "before_execute", lambda *_: asked.append(1))
            jobs = answers.jobs(session, caller("alice"), Filter(limit=limit), DEVICES).jobs
        chips = [chip_of(replace(job, state="succeeded")) for job in jobs]
        return [chip.text if chip else "" for chip in chips], len(asked)

    found = (("faster",), ("faster", "wrong_result"), ("faster", "timeout", "oom"))
    for statuses in found:
        job = submit(store, "alice", cases=3)
        with store.write() as session:
            row = session.scalars(sa.select(Job).where(Job.id == job)).one()
            row.implementations = '["torch","ann/tiles"]'
        measured_as(store, job, *statuses)

    texts, queries = listed(50)

    assert texts == [
        "tiles: 2 of 3 without a time",
        "tiles: wrong result in 1 of 2",
        "tiles 0.50x of torch, faster",
    ]
    assert listed(1)[1] == queries
    with store.write() as session:  # as a server of an earlier release, which measures on
        session.execute(sa.update(Job).values(cases_done=Job.cases_done + 1))
    assert listed(50)[0] == [""] * 3


def test_the_queue_names_a_private_job_only_to_those_who_may_read_it(store: Store) -> None:
    submit(store, "alice", name="open")
    submit(store, "alice", name="secret", private=True)

    def titles(user: Caller) -> list[str]:
        with store.read() as session:
            return [entry.title for entry in answers.whole_queue(session, user, DEVICES).entries]

    assert titles(caller("alice")) == titles(caller("root", "admin")) == ["open", "secret"]
    assert titles(caller("bob")) == ["open", "permute"]


def test_a_case_is_stored_once_and_found_in_its_history(store: Store) -> None:
    for _ in range(2):
        submit(store, "alice")
    for environment in ("one", "two"):
        job = claim(store)
        assert job is not None
        with store.write() as session:
            row = session.get_one(Job, job.number)
            row.environment, row.fingerprint = environment, json.dumps({"torch": environment})
            for _ in range(2):
                lifecycle.save_case(session, row, 0, result())
            assert row.cases_done == 1
            assert lifecycle.unmeasured_cases(session, row) == []
        finish(store, job.number, 1000)

    with store.read() as session:
        found = answers.history(session, caller("alice"), "permute", "torch", "case 0", 10)
        theirs = answers.history(session, caller("bob"), "permute", "torch", "case 0", 10)
    assert [(p.environment, p.changed) for p in found.points] == [("two", ["torch"]), ("one", [])]
    assert found.points[0].measurement.median_us == 2.0
    assert theirs.points == found.points


def result() -> dict[str, Any]:
    implementation = {
        "name": "torch",
        "status": "ok",
        "error": None,
        "method": "perf_counter",
        "n": 3,
        **dict.fromkeys(("p5_us", "p25_us", "p75_us", "p95_us", "min_us"), 2.0),
        **dict.fromkeys(("median_us", "ci_low_us", "ci_high_us"), 2.0),
        **dict.fromkeys(("gb_per_s", "share_of_limit", "peak_bytes", "hot_us", "host_us"), None),
        "energy_mj": None,
        "relative": None,
        "samples_us": [2.0, 2.0, 2.0],
        "tags": [],
    }
    return {"implementations": [implementation], "limit": None}


def test_of_a_job_that_ended_long_ago_states_and_cases_are_kept(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "PRUNED_JOBS", 2)
    now_ms = times.now_ms()
    with store.write() as session:
        for days in (5, 4, 3, 0, None):
            asked = request(fresh=True)
            job, _ = submissions.submit(session, caller("alice"), asked, checked(), None, MANY)
            for position in range(3):
                events.append_event(session, job, "progress", {"position": position})
            lifecycle.end_job(session, job, "succeeded", "ok", "")
            job.finished_ms = None if days is None else now_ms - days * 90_000_000

    def left() -> list[list[tuple[int, str]]]:
        with store.read() as session:
            return [
                [(e.sequence, e.kind) for e in events.after(session, n, 0)] for n in range(1, 6)
            ]

    whole, since_ms = left(), 0
    for _ in range(3):
        with store.write() as session:
            since_ms = lifecycle.prune(session, since_ms)

    assert since_ms == now_ms - 3 * 90_000_000
    assert whole[0] == [(1, "state"), *((i, "progress") for i in (2, 3, 4)), (5, "state")]
    assert left() == [[(1, "state"), (5, "state")]] * 3 + whole[3:]
