"""The arena's reserve: small calls find room, and large calls all end."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warpcall.errors import Busy, TooLarge
from warpcall_service.lanes.arena import Arena, Slot

SIZE = 4 << 20
RESERVE = SIZE // 32
LARGEST = SIZE - RESERVE
SMALL = RESERVE // 64
PATIENCE_S = 20.0


def make(share: float = 0.75) -> Arena:
    return Arena(SIZE, lambda user: share, RESERVE)


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = make()
    yield made
    made.memory.close()


async def at_once(arena: Arena, nbytes: int, user: str) -> Slot:
    """A slot that need not be waited for."""
    return await arena.acquire(nbytes, 0.0, user)


# One step of somebody who holds what they can: a user, the bytes, whether they wait.
steps = st.lists(
    st.tuples(
        st.sampled_from("abcdefgh"),
        st.integers(1, SMALL) | st.integers(SMALL, LARGEST),
        st.booleans(),
    ),
    max_size=80,
)


@given(steps)
@settings(max_examples=200, deadline=None)
def test_a_small_call_finds_room_whatever_others_hold_or_wait_for(
    taken: list[tuple[str, int, bool]],
) -> None:
    async def play() -> None:
        arena = make()
        waiting = []
        for user, nbytes, patient in taken:
            try:
                if patient:
                    waiting.append(asyncio.create_task(arena.acquire(nbytes, 60.0, user)))
                    await asyncio.sleep(0)
                else:
                    await at_once(arena, nbytes, user)
            except (Busy, TooLarge):
                pass

        slot = await at_once(arena, 24, "z")

        assert slot.nbytes == 24
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        arena.memory.close()

    asyncio.run(play())


def test_the_largest_call_leaves_the_reserve_to_small_ones_of_all(arena: Arena) -> None:
    async def play() -> None:
        await at_once(arena, LARGEST, "a")
        with pytest.raises(Busy):
            await at_once(arena, SMALL + 1, "b")
        await at_once(arena, SMALL, "b")
        await at_once(arena, SMALL, "a")

    asyncio.run(play())


def test_a_call_that_would_take_the_reserve_gets_the_size_it_may_have(arena: Arena) -> None:
    with pytest.raises(TooLarge, match=f"must fit in {LARGEST:,} bytes together.*arena_bytes"):
        asyncio.run(at_once(arena, LARGEST + 1, "a"))


def test_one_user_gets_half_of_the_reserve_and_the_next_half_of_the_rest(arena: Arena) -> None:
    async def play() -> list[int]:
        await at_once(arena, LARGEST, "x")
        had = []
        for user in "abc":
            count = 0
            with contextlib.suppress(Busy):
                while True:
                    await at_once(arena, SMALL, user)
                    count += 1
            had.append(count)
        return had

    assert asyncio.run(play()) == [32, 16, 8]


def test_small_calls_leave_the_main_part_to_a_large_one_that_waits(arena: Arena) -> None:
    async def play() -> list[str]:
        half = await at_once(arena, LARGEST // 2, "a")
        order = []

        async def ask(nbytes: int, user: str) -> None:
            (await arena.acquire(nbytes, 5.0, user)).release()
            order.append(user)

        large = asyncio.create_task(ask(LARGEST, "large"))
        await asyncio.sleep(0)
        slots = [await at_once(arena, SMALL, "small") for _ in range(8)]
        half.release()
        await large
        for slot in slots:
            slot.release()
        return order

    assert asyncio.run(play()) == ["large"]


def test_a_small_call_that_waits_is_served_from_the_reserve_beside_a_large_one(
    arena: Arena,
) -> None:
    async def play() -> None:
        await at_once(arena, LARGEST, "x")
        large = asyncio.create_task(arena.acquire(LARGEST, 60.0, "y"))
        slots = [await at_once(arena, SMALL, "a") for _ in range(32)]
        small = asyncio.create_task(arena.acquire(SMALL, 60.0, "a"))
        await asyncio.sleep(0.01)
        assert not small.done()
        await arena.acquire(SMALL, 5.0, "b")  # who has nothing there need not wait
        slots[0].release()
        slots[1].release()
        await small
        large.cancel()
        await asyncio.wait((large,))

    asyncio.run(play())


def test_who_need_not_wait_is_served_although_no_more_may_wait() -> None:
    async def play() -> None:
        arena = Arena(SIZE, reserve=RESERVE, max_waiting=2)
        await at_once(arena, LARGEST, "x")
        for _ in range(32):
            await at_once(arena, SMALL, "a")
        waiting = [asyncio.create_task(arena.acquire(SMALL, 60.0, "a")) for _ in range(2)]
        waiting += [asyncio.create_task(arena.acquire(LARGEST, 60.0, "y")) for _ in range(2)]
        await asyncio.sleep(0)
        for nbytes in (SMALL, LARGEST):
            with pytest.raises(Busy, match="2 calls wait for memory already"):
                await arena.acquire(nbytes, 60.0, "a")

        await arena.acquire(SMALL, 60.0, "b")

        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        arena.memory.close()

    asyncio.run(play())


@given(st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_many_calls_all_end(seed: int) -> None:
    """Calls of every size that come and end at random moments."""
    chance = random.Random(seed)
    finished = []

    async def call(arena: Arena, number: int) -> None:
        nbytes = chance.choice((chance.randrange(SMALL), chance.randrange(LARGEST // 2)))
        slot = await arena.acquire(nbytes, 60.0, chance.choice("abc"))
        try:
            slot.view[:] = bytes([number]) * nbytes
            for _ in range(chance.randrange(6)):
                await asyncio.sleep(0)
            assert bytes(slot.view) == bytes([number]) * nbytes
        finally:
            slot.release()
        finished.append(number)

    async def play() -> None:
        arena = make()
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(call(arena, number) for number in range(40)))
        assert arena.stats().used == arena.waiting == 0
        assert {arena.nbytes_of(user) for user in "abc"} == {0}
        arena.memory.close()

    asyncio.run(play())

    assert len(finished) == 40
