"""Admission: how many tasks of each user run, in which order the others wait, and until when."""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import Any

import pytest

from warpcall.errors import Busy
from warpcall_service.admission import Admission, TokenBucket
from warpcall_service.identity import LOCAL

READS = "exports and comparisons"
PATIENT_S = 60.0


async def settle() -> None:
    """Run all tasks until each of them waits."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_reads_of_a_user_are_served_one_at_a_time_in_order() -> None:
    begun: list[tuple[str, int]] = []

    async def read(reads: Admission, user: str, number: int, end: asyncio.Event) -> None:
        async with reads.admitted(user):
            begun.append((user, number))
            await end.wait()

    async def work() -> None:
        reads = Admission(READS, 32, 8, PATIENT_S)
        ends = [asyncio.Event() for _ in range(4)]
        tasks = [asyncio.create_task(read(reads, "alice", n, ends[n])) for n in range(4)]
        await settle()
        tasks.append(asyncio.create_task(read(reads, "bob", 0, ends[0])))
        await settle()
        assert begun == [("alice", 0), ("bob", 0)]
        tasks[1].cancel()  # its client leaves while it waits
        await settle()
        ends[0].set()
        await settle()
        assert begun[2:] == [("alice", 2)]
        tasks[2].cancel()  # its client leaves during the response
        await settle()
        assert begun[3:] == [("alice", 3)]
        ends[3].set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (reads.count, reads._running) == (0, {})

    asyncio.run(work())


def test_of_a_users_reads_a_few_wait_and_for_a_while() -> None:
    async def work() -> None:
        reads = Admission(READS, 32, 2, 0.01)
        async with reads.admitted("alice"):
            waiting = [asyncio.create_task(enter(reads, "alice")) for _ in range(2)]
            await asyncio.sleep(0)
            with pytest.raises(Busy, match="alice has 3 exports and comparisons") as refused:
                await enter(reads, "alice")
            assert refused.value.retry_after_s
            for one in await asyncio.gather(*waiting, return_exceptions=True):
                assert isinstance(one, Busy)
                assert "for 0.01 s" in one.detail
            assert reads.count == 1, "those that waited are gone"
        await enter(reads, "alice")

    asyncio.run(work())


def test_reads_of_all_users_together_are_bounded_and_everyone_may_be_local() -> None:
    async def work() -> None:
        reads = Admission(READS, 3, 8, 0.01)
        async with contextlib.AsyncExitStack() as held:
            for user in ("alice", LOCAL.name, LOCAL.name):
                await held.enter_async_context(reads.admitted(user))
            for user in ("bob", LOCAL.name):
                with pytest.raises(Busy):
                    await enter(reads, user)
        await enter(reads, "bob")

    asyncio.run(work())


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({}, "one user may have one at a time, all users together may have 3 at a time"),
        ({"of_user": 2}, "one user may have 2 at a time, all users together may have 3 at a time"),
        ({"most": math.inf}, "for 0.01 s; one user may have one at a time"),
    ],
)
def test_a_refusal_names_the_limits_that_there_are(limits: dict[str, Any], says: str) -> None:
    async def work() -> str:
        reads = Admission(READS, timeout_s=0.01, **{"most": 3, "most_waiting": 8, **limits})
        async with contextlib.AsyncExitStack() as held:
            for _ in range(int(limits.get("of_user", 1))):
                await held.enter_async_context(reads.admitted("alice"))
            with pytest.raises(Busy) as refused:
                await enter(reads, "alice")
        return refused.value.detail

    assert asyncio.run(work()).endswith(says)


async def enter(reads: Admission, user: str) -> None:
    async with reads.admitted(user):
        pass


def test_streams_are_counted_by_user_and_none_waits() -> None:
    async def work() -> None:
        streams = Admission("streams of events", math.inf, 0, None, of_user=2)
        async with streams.admitted("alice"), streams.admitted("bob"):
            async with streams.admitted("alice"):
                with pytest.raises(Busy, match="alice has 2 streams of events open, at most 2 are"):
                    await enter(streams, "alice")
            await enter(streams, "alice")
        async with contextlib.AsyncExitStack() as held:
            for _ in range(5):
                await held.enter_async_context(streams.admitted(LOCAL.name))
        assert (streams.count, streams._running) == (0, {})

    asyncio.run(work())


def test_a_user_at_their_limit_does_not_delay_others_that_wait() -> None:
    async def work() -> None:
        tasks = Admission("tasks", 2, 8, PATIENT_S)
        ends = asyncio.Event(), asyncio.Event()
        begun: list[str] = []

        async def task(user: str, end: asyncio.Event) -> None:
            async with tasks.admitted(user):
                begun.append(user)
                await end.wait()

        async with asyncio.TaskGroup() as group:
            for user, end in (("alice", ends[1]), ("bob", ends[0]), ("alice", ends[1])):
                group.create_task(task(user, end))
            await settle()
            group.create_task(task("carol", ends[1]))
            await settle()
            assert begun == ["alice", "bob"]
            ends[0].set()
            await settle()
            assert begun == ["alice", "bob", "carol"], "alice has one that runs"
            ends[1].set()
        assert begun == ["alice", "bob", "carol", "alice"]

    asyncio.run(work())


def test_few_are_admitted_at_a_time_in_fair_order() -> None:
    async def play() -> tuple[list[str], int]:
        tasks = Admission("tasks", 2, math.inf, None, of_user=2)
        order: list[str] = []
        under_way = most = 0

        async def take(user: str) -> None:
            nonlocal under_way, most
            async with tasks.admitted(user, 1000):
                under_way += 1
                most = max(most, under_way)
                await asyncio.sleep(0.001)
                order.append(user)
                under_way -= 1

        async with asyncio.TaskGroup() as group:
            for user in "aaaaaaaab":
                group.create_task(take(user))
        return order, most

    order, most = asyncio.run(play())

    assert most == 2
    assert order.index("b") <= 3


def test_tasks_cost_their_bytes_until_nothing_is_under_way() -> None:
    async def play(*waiting: tuple[str, int]) -> str:
        tasks, order = Admission("tasks", 1, math.inf, None), ""

        async def task(user: str, nbytes: int) -> None:
            nonlocal order
            async with tasks.admitted(user, nbytes):
                order += user

        async with tasks.admitted("c", 64 << 20):
            pass
        async with asyncio.TaskGroup() as group, tasks.admitted("a"):
            for user, nbytes in waiting:
                group.create_task(task(user, nbytes))
            await settle()
        return order

    assert asyncio.run(play(("a", 0), ("b", 0))) == "ba", "the user whose task runs was charged"
    assert asyncio.run(play(("b", 4 << 20), ("b", 0), ("c", 0), ("c", 0))) == "cbcb"
    assert asyncio.run(play(("c", 0), ("b", 0))) == "cb", (
        "what ended before everything ended is free"
    )


@pytest.mark.parametrize("leaves", ["before", "in the same moment", "after"])
def test_a_turn_that_nobody_takes_goes_to_the_next(leaves: str) -> None:
    async def play() -> None:
        tasks = Admission("tasks", 1, math.inf, None)

        async def take() -> None:
            async with tasks.admitted("a", 1):
                pass

        async with tasks.admitted("a", 1):
            leaver, stayer = asyncio.create_task(take()), asyncio.create_task(take())
            await asyncio.sleep(0)
            if leaves != "after":
                leaver.cancel()
            if leaves == "before":
                await asyncio.sleep(0)
        if leaves == "after":
            leaver.cancel()
        async with asyncio.timeout(10):
            await stayer
            await take()

    asyncio.run(play())


def test_a_bucket_gives_so_many_at_once_and_then_so_many_a_second() -> None:
    bucket = TokenBucket(3, 0.5, 100.0)

    assert [bucket.take(100.0) for _ in range(4)] == [0, 0, 0, 0.5]
    assert bucket.take(100.25) == 0.25, "a refusal costs nothing"
    assert [bucket.take(100.5), bucket.take(100.5)] == [0, 0.5]
    assert [bucket.take(200.0) for _ in range(4)] == [0, 0, 0, 0.5], (
        "it holds no more than at first"
    )
    bucket.give_back()
    assert [bucket.take(200.0), bucket.take(200.0)] == [0, 0.5]


def test_tokens_may_be_spent_before_they_are_there() -> None:
    bucket = TokenBucket(2, 0.5, 0.0)

    assert bucket.spend(0.0, 1.5) == 0
    assert bucket.spend(0.0, 1.5) == 0.5
    assert bucket.take(0.5) == 0.5, "the debt is paid first"
    assert bucket.take(1.0) == 0
