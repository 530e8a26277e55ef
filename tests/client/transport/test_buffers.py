"""Memory for answers is reused, but never while an array in it still exists."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from warpcall import TransportError
from warpcall._transport.buffers import GRAIN_BYTES, MAX_IDLE_BYTES, Buffers

LARGE = 3 * GRAIN_BYTES


def where(array: np.ndarray) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def test_memory_that_nobody_holds_is_used_again() -> None:
    buffers = Buffers()
    first = buffers.take(LARGE - 5)
    begin = where(first)
    assert first.size == LARGE - 5
    assert first.flags.writeable
    del first

    assert where(buffers.take(LARGE - 7)) == begin


@pytest.mark.parametrize("kind", ["slice", "view", "memoryview", "torch"])
def test_memory_that_somebody_holds_is_not(kind: str) -> None:
    buffers = Buffers()
    whole = buffers.take(LARGE)
    whole[:] = 1
    begin = where(whole)
    if kind == "slice":
        part: object = whole[8:].view(np.float32)[1:].reshape(1, -1).T
    elif kind == "view":
        part = whole.view(np.int16)
    elif kind == "memoryview":
        part = whole.data[10:]
    else:
        part = pytest.importorskip("torch").from_numpy(whole[16:])
    del whole
    gc.collect()

    other = buffers.take(LARGE)
    other[:] = 2

    assert where(other) != begin
    assert int(np.asarray(part).view(np.uint8).max() if kind != "torch" else part.max()) == 1  # type: ignore[attr-defined]
    del part
    gc.collect()
    assert where(buffers.take(LARGE)) == begin


@pytest.mark.parametrize("idle", [LARGE - GRAIN_BYTES, LARGE + GRAIN_BYTES])
def test_memory_of_another_size_is_left_for_answers_of_that_size(idle: int) -> None:
    """Smaller memory is too small. Larger memory would be held as a whole by a smaller answer."""
    buffers = Buffers()
    left = buffers.take(idle)
    begin = where(left)
    del left

    answer = buffers.take(LARGE)

    assert answer.size == LARGE
    assert where(answer) != begin
    assert where(buffers.take(idle)) == begin


def test_small_memory_is_left_to_malloc() -> None:
    assert Buffers().take(GRAIN_BYTES - 1).base is None


def test_no_more_is_kept_than_allowed_and_nothing_once_closed() -> None:
    buffers = Buffers()
    held = [buffers.take(MAX_IDLE_BYTES // 4) for _ in range(6)]
    held.clear()
    gc.collect()
    assert sum(memory.size for memory in buffers._idle.values()) == MAX_IDLE_BYTES

    last = buffers.take(MAX_IDLE_BYTES // 4)
    buffers.close()
    del last
    gc.collect()

    assert not buffers._idle


def test_threads_never_share_memory() -> None:
    buffers = Buffers()

    def work(seed: int) -> bool:
        for i in range(200):
            mine = buffers.take(GRAIN_BYTES)
            mine[:64] = (seed + i) % 251
            if not (mine[:64] == (seed + i) % 251).all():
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_too_much_is_an_error_of_ours() -> None:
    with pytest.raises(TransportError, match="no memory for an answer"):
        Buffers().take(1 << 62)
