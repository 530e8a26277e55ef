"""The limits on large responses and streams of each user: how many, in which order, until when."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from warpcall.errors import Busy
from warpcall_bench.jobs import read_admission
from warpcall_bench.jobs.read_admission import ReadAdmission, StreamLimit
from warpcall_service.identity import LOCAL

PATIENT_S = 60.0


async def settle() -> None:
    """Run all tasks until each of them waits."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_reads_of_a_user_are_served_one_at_a_time_in_order() -> None:
    begun: list[tuple[str, int]] = []

    async def read(reads: ReadAdmission, user: str, number: int, end: asyncio.Event) -> None:
        async with reads.admitted(user):
            begun.append((user, number))
            await end.wait()

    async def work() -> None:
        reads = ReadAdmission(PATIENT_S)
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
        assert reads._users == {}

    asyncio.run(work())


def test_of_a_users_reads_a_few_wait_and_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_admission, "MAX_WAITING", 2)

    async def work() -> None:
        reads = ReadAdmission(0.01)
        async with reads.admitted("alice"):
            waiting = [asyncio.create_task(enter(reads, "alice")) for _ in range(2)]
            await asyncio.sleep(0)
            with pytest.raises(Busy, match="alice has 3 exports and comparisons") as refused:
                await enter(reads, "alice")
            assert refused.value.retry_after_s
            for one in await asyncio.gather(*waiting, return_exceptions=True):
                assert isinstance(one, Busy)
                assert "for 0.01 s" in one.detail
        await enter(reads, "alice")

    asyncio.run(work())


def test_reads_of_all_users_together_are_bounded_and_everyone_may_be_local(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(read_admission, "MAX_READS", 3)

    async def work() -> None:
        reads = ReadAdmission(0.01)
        async with contextlib.AsyncExitStack() as held:
            for user in ("alice", LOCAL.name, LOCAL.name):
                await held.enter_async_context(reads.admitted(user))
            for user in ("bob", LOCAL.name):
                with pytest.raises(Busy):
                    await enter(reads, user)
        await enter(reads, "bob")

    asyncio.run(work())


async def enter(reads: ReadAdmission, user: str) -> None:
    async with reads.admitted(user):
        pass


def test_streams_are_counted_by_user() -> None:
    streams = StreamLimit(2)
    with streams.opened("alice"), streams.opened("bob"):
        with streams.opened("alice"), pytest.raises(Busy, match="alice has 2 streams"):
            streams.opened("alice").__enter__()
        with streams.opened("alice"):
            pass
    with contextlib.ExitStack() as held:
        for _ in range(5):
            held.enter_context(streams.opened(LOCAL.name))

    assert not streams._open
