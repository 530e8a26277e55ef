"""The arena: slots that never overlap, all memory back, and a queue that nobody jumps."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warpcall.errors import Busy, TooLarge, Unavailable
from warpcall_service.lanes.arena import Arena, Slot

SIZE = 1 << 20


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena(SIZE)
    yield made
    made.memory.close()


async def take(arena: Arena, nbytes: int, *, urgent: bool = False) -> Slot:
    return await arena.acquire(nbytes, 5.0, urgent=urgent)


@given(st.lists(st.tuples(st.integers(0, SIZE // 4), st.integers(0, 7)), max_size=60))
@settings(max_examples=200, deadline=None)
def test_slots_never_overlap_and_all_memory_comes_back(steps: list[tuple[int, int]]) -> None:
    async def play() -> None:
        arena = Arena(SIZE)
        allocated: dict[int, Slot] = {}
        for nbytes, place in steps:
            if place in allocated:
                allocated.pop(place).release()
            else:
                try:
                    slot = await arena.acquire(nbytes, 0.0)
                except Busy:
                    continue
                slot.view[:] = bytes([place]) * nbytes
                allocated[place] = slot
            for number, slot in allocated.items():
                assert bytes(slot.view) == bytes([number]) * slot.nbytes
        for slot in allocated.values():
            slot.release()
        assert arena.stats().free == arena.nbytes
        assert (await arena.acquire(SIZE, 0.0)).offset == 0  # free ranges were joined
        arena.memory.close()

    asyncio.run(play())


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_ranges_that_come_back_join_their_neighbours_in_any_order(
    order: tuple[int, ...], arena: Arena
) -> None:
    async def play() -> Slot:
        slots = [await take(arena, SIZE // 4) for _ in range(4)]
        for number in order:
            slots[number].release()
        return await arena.acquire(3 * SIZE // 4, 0.0)  # nobody else would make room

    assert asyncio.run(play()).offset == 0


def test_a_slot_is_writable_and_as_long_as_asked(arena: Arena) -> None:
    slot = asyncio.run(take(arena, 1000))

    slot.view[999] = 7

    assert len(slot.view) == slot.nbytes == 1000
    assert arena.stats().used >= 1000


def test_more_than_there_is_is_refused_at_once(arena: Arena) -> None:
    with pytest.raises(TooLarge, match="1,048,577"):
        asyncio.run(take(arena, SIZE + 1))


def test_without_room_in_time_the_answer_is_busy_and_says_when_to_come_back(arena: Arena) -> None:
    async def play() -> Busy:
        await take(arena, SIZE)
        with pytest.raises(Busy) as refused:
            await arena.acquire(1, 0.01)
        return refused.value

    busy = asyncio.run(play())

    assert busy.retry_after_s is not None
    assert 1 <= busy.retry_after_s <= 60
    assert arena.waiting == 0


def test_a_small_request_does_not_overtake_a_large_one(arena: Arena) -> None:
    async def play() -> list[str]:
        half, order = await take(arena, SIZE // 2), []

        async def ask(name: str, nbytes: int) -> None:
            slot = await take(arena, nbytes)
            order.append(name)
            slot.release()

        large = asyncio.create_task(ask("large", SIZE))
        await asyncio.sleep(0)
        small = asyncio.create_task(ask("small", 1))
        await asyncio.sleep(0.01)
        assert arena.waiting == 2
        half.release()
        await asyncio.gather(large, small)
        return order

    assert asyncio.run(play()) == ["large", "small"]


def test_an_urgent_request_goes_first(arena: Arena) -> None:
    async def play() -> list[str]:
        everything, order = await take(arena, SIZE), []

        async def ask(name: str, urgent: bool) -> None:
            slot = await take(arena, SIZE, urgent=urgent)
            order.append(name)
            slot.release()

        tasks = [asyncio.create_task(ask("patient", urgent=False))]
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(ask("urgent", urgent=True)))
        await asyncio.sleep(0)
        everything.release()
        await asyncio.gather(*tasks)
        return order

    assert asyncio.run(play()) == ["urgent", "patient"]


def test_who_stops_waiting_leaves_room_to_those_behind(arena: Arena) -> None:
    async def play() -> None:
        half = await take(arena, SIZE // 2)
        large = asyncio.create_task(take(arena, SIZE))
        await asyncio.sleep(0)
        small = asyncio.create_task(take(arena, 1))
        await asyncio.sleep(0)
        large.cancel()
        await asyncio.wait((large,))
        (await small).release()
        half.release()

    asyncio.run(play())

    assert arena.stats().used == arena.waiting == 0


def test_a_slot_allocated_in_the_moment_of_a_cancellation_comes_back(arena: Arena) -> None:
    async def play() -> None:
        everything = await take(arena, SIZE)
        waiting = asyncio.create_task(take(arena, SIZE))
        await asyncio.sleep(0)
        everything.release()
        waiting.cancel()
        await asyncio.wait((waiting,))

    asyncio.run(play())

    assert arena.stats().used == 0


def test_an_arena_that_came_to_rest_has_forgotten_who_had_much(arena: Arena) -> None:
    async def play() -> list[str]:
        held = await arena.acquire(SIZE, 5.0, "alice")
        leaving = asyncio.create_task(arena.acquire(1, 5.0, "bob"))
        await asyncio.sleep(0)
        leaving.cancel()
        held.release()  # before its caller has left the queue
        await asyncio.gather(leaving, return_exceptions=True)

        order: list[str] = []

        async def ask(user: str) -> None:
            slot = await arena.acquire(SIZE, 5.0, user)
            order.append(user)
            slot.release()

        held = await arena.acquire(SIZE, 5.0, "carol")
        asking = [asyncio.create_task(ask(user)) for user in ("alice", "bob")]
        await asyncio.sleep(0)
        held.release()
        await asyncio.gather(*asking)
        return order

    assert asyncio.run(play()) == ["alice", "bob"]


def test_a_retained_slot_stays_allocated_until_it_is_released(arena: Arena) -> None:
    slot = asyncio.run(take(arena, 100))
    slot.retain()

    slot.release()
    slot.release()

    assert arena.stats().used
    slot.release_retained()
    assert not arena.stats().used


def test_those_who_wait_can_be_refused_all_at_once(arena: Arena) -> None:
    async def play() -> None:
        await take(arena, SIZE)
        waiting = [asyncio.create_task(take(arena, 1)) for _ in range(3)]
        await asyncio.sleep(0)
        arena.refuse_waiting(Unavailable("gone"))
        for task in waiting:
            with pytest.raises(Unavailable):
                await task

    asyncio.run(play())


def test_making_its_pages_keeps_what_they_hold(arena: Arena) -> None:
    slot = asyncio.run(take(arena, SIZE))
    slot.view[12345] = 99

    arena.memory.prefault()

    assert slot.view[12345] == 99
