"""Processes that compile ahead leave the GPU's memory to others."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import pytest
import torch

from bench.kernels import measure, workers
from bench.kernels.peers import Peers
from warpcall_kernels import ops
from warpcall_kernels.execution import implementations as _implementations

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

CASE = next(case for case in ops()["permute"].cases if case.name == "square")


class OneTask:
    """A connection with one task: to compile for a case."""

    def __init__(self) -> None:
        self._tasks: Iterator[workers.Task] = iter(
            [workers.Task("permute", "recorded", CASE, measures=False, references=False)]
        )
        self.answers: list[Any] = []

    def recv(self) -> workers.Task:
        task = next(self._tasks, None)
        if task is None:
            raise EOFError
        return task

    def send(self, answer: object) -> None:
        self.answers.append(answer)


@pytest.mark.parametrize("in_a_cycle", [False, True])
@pytest.mark.parametrize(("largest", "compiled"), [(0, False), (1 << 62, True)])
def test_the_inputs_of_a_case_are_gone_when_its_memory_is_released(
    largest: int, compiled: bool, in_a_cycle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[weakref.ref[torch.Tensor]] = []
    left: list[bool] = []

    def draw(*_given: object) -> dict[str, torch.Tensor]:
        x = torch.ones(4, 4)
        drawn.append(weakref.ref(x))
        if in_a_cycle:  # as those of a frame that an error refers to
            cycle: list[object] = [x]
            cycle.append(cycle)
        return {"x": x}

    known = dict(_implementations._known)  # without those that a process registers for itself
    monkeypatch.setattr(_implementations, "_known", known)
    monkeypatch.setattr(workers, "draw", draw)
    monkeypatch.setattr(workers, "LARGEST_BYTES", largest)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: (2 << 30) * in_a_cycle)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: left.append(drawn[-1]() is not None))
    connection = OneTask()

    workers.serve(
        cast("Connection", connection),
        measure.Effort(rounds=1, warm_seconds=0.0),
        Peers({}),
        "cuda",
    )

    assert connection.answers == [compiled]
    assert len(left) == 1 + in_a_cycle
    assert not left[-1]
