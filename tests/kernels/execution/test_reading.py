"""Which outputs of another process are read, and that all calls have memory of their own."""

from __future__ import annotations

import pytest
import torch

from warpcall_kernels.execution import answers
from warpcall_kernels.execution.outputs import Wrong
from warpcall_kernels.execution.reading import MOST_READ, MOST_READ_BYTES, choose_calls
from warpcall_kernels.op.declaration import Meta

METAS = {"out": Meta((4, 4), torch.float32)}  # 64 bytes


def calls(*addresses: int, handle: str = "") -> list[tuple[int, list[dict[str, object]]]]:
    more = {"handle": handle} if handle else {}
    return [(i, [{"address": address, **more}]) for i, address in enumerate(addresses)]


def test_some_calls_are_chosen_and_not_always_the_same() -> None:
    every = calls(*range(0, 64 * 100, 64))

    chosen = [choose_calls(every, METAS) for _ in range(20)]

    assert {len(some) for some in chosen} == {MOST_READ}
    assert all(one in every for some in chosen for one in some)
    assert len({tuple(key for key, _ in some) for some in chosen}) > 1


def test_large_outputs_are_read_of_one_call_at_least() -> None:
    large = {"out": Meta((MOST_READ_BYTES,), torch.float32)}

    assert len(choose_calls(calls(0, 1 << 40), large)) == 1


@pytest.mark.parametrize("shift", [0, 32, 63])
def test_calls_that_share_memory_are_wrong(shift: int) -> None:
    with pytest.raises(Wrong, match="the result of another call"):
        choose_calls(calls(0, 64, 64 + shift), METAS)


def test_equal_offsets_in_different_allocations_are_different_memory() -> None:
    two = [*calls(0, handle="aa"), *calls(0, handle="ab")]

    assert len(choose_calls(two, METAS)) == 2


def test_an_answer_without_addresses_is_unsound() -> None:
    with pytest.raises(answers.Unsound):
        choose_calls([(0, "no list")], METAS)
