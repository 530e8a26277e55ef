"""The order of jobs, simulated: what each user's jobs wait for, and what nobody has to wait for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.jobs.job_order import SECOND, Begun, Job, simulate
from warpcall_bench.jobs.fair_order import QueuedJob, virtual_time_us

LONG_S = 1936
USERS = "abcde"


def order(begun: Sequence[Begun]) -> str:
    return "".join(one.job.user for one in begun)


def test_two_short_jobs_run_before_the_long_ones_of_three_users() -> None:
    """Ordered by begin the second one waits for all three: 5,828 s."""
    jobs = [*[Job(user, 0, LONG_S) for user in "abc"], Job("d", 0, 20), Job("d", 0, 20)]

    assert order(simulate(jobs)) == "ddabc"
    assert order(simulate(jobs, order="begin")) == "abcdd"


def test_a_short_job_waits_for_what_runs_and_then_for_little() -> None:
    long = [Job(user, 0, LONG_S) for user in "abc"]
    short = [Job("d", 10, 20), Job("d", 10, 20), Job("e", 15, 30)]

    begun = simulate([*long, *short])

    assert order(begun) == "addebc" or order(begun) == "adedbc"
    assert max(one.at_s for one in begun if one.job.user in "de") < LONG_S + 70


def test_one_who_comes_after_a_flood_of_short_jobs_is_not_behind_the_long_ones() -> None:
    """The clock does not run ahead with those who were served first."""
    flood = [Job("d", 0, 10) for _ in range(400)]
    long = [Job(user, 0, LONG_S) for user in "abc"]

    begun = simulate([*flood, *long, Job("e", 2400, 20)])

    late = next(one for one in begun if one.job.user == "e")
    rest_s = next(one.at_s for one in begun if one.job.user == "a") + LONG_S - 2400
    assert late.at_s - 2400 <= rest_s + 20


def test_a_long_job_does_not_wait_for_ever_behind_short_ones() -> None:
    """Four users who submit twice what the device can do, all day."""
    short = [Job(user, at_s, 30) for at_s in range(0, 40_000, 60) for user in "bcde"]

    begun = simulate([Job("a", 0, LONG_S), *short])

    began_s = next(one.at_s for one in begun if one.job.user == "a")
    assert began_s <= 4 * (LONG_S + 30)


def test_a_user_with_a_limit_of_running_jobs_leaves_devices_to_others() -> None:
    begun = simulate([*[Job("a", 0, LONG_S)] * 9, Job("b", 0, 2 * LONG_S)], devices=3, running=2)

    assert [one.at_s for one in begun if one.job.user == "b"] == [0]


lengths = st.sampled_from([1, 10, 30, 60, 300, LONG_S, 7200])
arrivals = st.lists(
    st.builds(Job, st.sampled_from(USERS), st.integers(0, 20_000), lengths), min_size=1, max_size=40
)


@given(arrivals, st.integers(1, 3))
def test_while_a_job_waits_no_other_user_is_given_more_than_it_takes(
    jobs: list[Job], devices: int
) -> None:
    begun = simulate(jobs, devices)

    assert len(begun) == len(jobs), "every job runs"
    for one in begun:
        given_s: defaultdict[str, int] = defaultdict(int)
        for other in begun[: begun.index(one)]:
            if other.entry.user != one.entry.user and other.at_s >= one.job.at_s:
                given_s[other.entry.user] += other.job.takes_s
        owed_us = one.start_us - one.entry.since_us  # what its user was given before the others
        for user, took_s in given_s.items():
            assert took_s * SECOND <= owed_us + one.entry.cost_us, f"{user} before {one}"


@given(arrivals, st.integers(1, 3))
def test_no_device_is_idle_while_a_job_waits(jobs: list[Job], devices: int) -> None:
    begun = simulate(jobs, devices)

    for one in begun:
        if one.at_s > one.job.at_s:
            running = [b for b in begun if b.at_s < one.at_s <= b.at_s + b.job.takes_s]
            assert len(running) >= devices


@given(arrivals)
def test_jobs_of_one_user_run_in_the_order_in_which_they_came(jobs: list[Job]) -> None:
    begun = simulate(jobs)

    for user in USERS:
        came = [one.entry.number for one in begun if one.job.user == user]
        assert came == sorted(came)


@pytest.mark.parametrize("priority", [0, 1])
def test_the_clock_stands_at_the_least_begin_of_those_that_may_run(priority: int) -> None:
    entries = [
        QueuedJob(1, "a", priority, 5, 1),
        QueuedJob(2, "a", priority, 9, 1),
        QueuedJob(3, "b", priority, 7, 1),
        QueuedJob(4, "c", priority + 1, 0, 1),
    ]

    assert virtual_time_us(reversed(entries), {"a": 20, "b": 6}, priority) == 7
