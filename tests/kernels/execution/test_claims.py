"""What counts as a reason for a late answer, and how claims are held against our clock."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from warpcall_kernels.execution.claims import (
    CpuClaims,
    Late,
    ThreadTimes,
    Usage,
    _Sample,
    late,
    longer_us,
    times_of,
)

BEFORE = Usage(100.0, ThreadTimes(50.0, 20.0), 70.0)


def usage(ran: float, all_ran: float) -> Usage:
    """The times after a sample in which the main thread and all threads ran for so long."""
    return Usage(0.0, ThreadTimes(50.0 + ran, 0.0), 70.0 + all_ran)


def test_waiting_for_others_makes_an_answer_late() -> None:
    assert late(BEFORE, (100.0, 20.0 + 300.0), usage(40, 40)) == Late(300.0, 300.0)
    assert late(BEFORE, (100.0 + 500.0, 20.0), usage(40, 40)) == Late(460.0, 500.0)


def test_waiting_for_own_threads_may_be_no_reason() -> None:
    assert late(BEFORE, (100.0, 20.0 + 300.0), usage(40, 340)) == Late(0.0, 300.0)
    assert late(BEFORE, (100.0 + 500.0, 20.0), usage(500, 500)) == Late(0.0, 500.0)


def test_the_kernel_counts_the_time_of_threads() -> None:
    before = times_of(os.getpid(), threading.get_native_id())
    sum(range(200_000))
    after = times_of(os.getpid(), threading.get_native_id())

    assert after.ran_us >= before.ran_us
    assert times_of("self", 0) == ThreadTimes(0.0, 0.0), "there is no such thread"


def claims(least_us: float, spent_us: float, most_us: float = 0.0) -> Any:
    """Claims after a sample with these times by our clock; `most_us` is `least_us` by default."""
    found: Any = CpuClaims(None)  # type: ignore[arg-type]
    found._sample = _Sample(spent_us, least_us, most_us or least_us)
    return found


def test_a_claim_that_agrees_with_our_clock_is_the_time_of_a_call() -> None:
    found = claims(1050, 1200)

    assert found.time_us(1000, 1) == 1000
    assert found.disagreement(1000, 1) is None
    assert found.is_confirmed(1000, 1)


def test_waiting_that_an_upload_may_have_caused_makes_its_times_unconfirmed() -> None:
    found = claims(1050, 9000, 2000)

    assert [found.time_us(1000, 1) for _ in range(8)] == [2000] * 8
    assert found.disagreement(2000, 1) is None
    assert not found.is_confirmed(2000, 1)


def test_a_claim_is_never_above_the_time_that_passed() -> None:
    assert claims(1000, 1200).time_us(5000, 1) == 1200
    assert claims(1000, 1200).time_us(5000, 4) == 300


def test_our_clock_has_the_last_word() -> None:
    found = claims(1000, 1200)

    assert [found.time_us(400, 1) for _ in range(8)] == [1000] * 8
    assert found.disagreement(1000, 1) == (400, 1000)
    assert found.disagreement(400, 1) is None, "so short a time is only unconfirmed"


def test_a_few_late_answers_make_no_row_invalid() -> None:
    found = claims(1000, 9000)
    for least_us in (1000, 8000, 1020, 9000):
        found._sample = _Sample(9000, least_us, least_us)
        found.time_us(1000, 1)

    assert found.disagreement(1000, 1) is None
    assert not found.is_confirmed(1000, 1)


def test_what_may_be_hidden_is_a_smaller_share_of_a_longer_call() -> None:
    found = claims(1000, 1200)
    found.time_us(1000, 1)

    assert found.hidden_share(500, 1) > found.hidden_share(50_000, 1) > 0.03
    assert found.hidden_share(500, 64) < found.hidden_share(500, 1)
    assert [found.is_confirmed(us, 1) for us in (499, 501)] == [False, True]
    assert found.is_confirmed(10, 64)


@pytest.mark.parametrize(
    ("blocks_us", "claim_us", "found_us"),
    [
        ([], 10.0, 0.0),
        ([12.0, 11.0, 40.0], 10.5, 0.0),
        ([12.0, 11.0, 40.0], 10.0, 11.0),
        ([22.0, 21.0], 10.0, 21.0),
    ],
)
def test_the_shortest_block_on_a_gpu_tells_how_long_a_call_takes_at_least(
    blocks_us: list[float], claim_us: float, found_us: float
) -> None:
    assert longer_us(blocks_us, 120, claim_us) == found_us
