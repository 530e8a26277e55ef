"""What a captured call has left in its memory is gone before it is timed again."""

from __future__ import annotations

import torch

from warpcall_kernels.execution.timed import Timed
from warpcall_kernels.verified.launcher import PATTERN, overwriting

SAMPLES = 40


def test_the_memory_of_all_calls_is_overwritten_once_for_each_sample() -> None:
    memory = [torch.arange(n, dtype=torch.int64).to(torch.uint8) for n in (300, 1, 5000)]
    found: list[tuple[int, list[int]]] = []

    def fill(number: int, place: int) -> None:
        found.append((number, sorted({*torch.cat(memory).tolist()})))
        memory[number][-1] = 7  # as a call would

    sets = [{"x": torch.zeros(4)} for _ in range(3)]
    timed = Timed(lambda _: None, sets, "graph of 3", 1.0, 1.0, repeats=3)
    timed.fill = overwriting(fill, memory)

    for _ in range(SAMPLES):
        timed.fill_sets(0, 5)

    assert [number for number, _ in found] == SAMPLES * [0, 1, 2]
    firsts = [values for number, values in found if number == 0]
    assert {*map(tuple, firsts)} == {(0,), (PATTERN,)}  # which nobody knows before
    assert all(7 in values for number, values in found if number > 0)
