"""Processes that compile ahead leave the GPU's memory to others, and end when they have lost it."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import torch

from bench.kernels import measure, workers
from bench.kernels.peers import Peers
from warpcall_kernels import ops
from warpcall_kernels.execution import implementations as _implementations

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

EFFORT = measure.Effort(rounds=1, warm_seconds=0.0)
CASE = next(case for case in ops()["permute"].cases if case.name == "square")


class OneTask:
    """A connection with one task: to compile for a case, or to measure it."""

    def __init__(self, *, measures: bool = False) -> None:
        self._tasks: Iterator[workers.Task] = iter(
            [workers.Task("permute", "recorded", CASE, measures=measures, references=False)]
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
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: left.append(drawn[-1]() is not None))
    connection = OneTask()

    workers.serve(cast("Connection", connection), EFFORT, Peers({}), "cuda")

    assert connection.answers == [compiled]
    assert len(left) == 1 + in_a_cycle
    assert not left[-1]


def test_a_process_ends_when_a_case_that_it_compiles_makes_the_device_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def draw(*_given: object) -> dict[str, torch.Tensor]:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(_implementations, "_known", dict(_implementations._known))
    monkeypatch.setattr(workers, "draw", draw)
    connection = OneTask()

    workers.serve(cast("Connection", connection), EFFORT, Peers({}), "cpu")

    assert connection.answers == []


@pytest.mark.parametrize(
    ("message", "status", "lost"),
    [("out of memory", "oom", False), ("CUDA error: misaligned address", "cuda_error", True)],
)
def test_an_exception_while_a_case_is_measured_is_its_row(
    message: str, status: str, lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def row(*_given: object) -> dict[str, Any]:
        raise RuntimeError(message)

    monkeypatch.setattr(_implementations, "_known", dict(_implementations._known))
    monkeypatch.setattr(measure.Bench, "row", row)
    connection = OneTask(measures=True)

    workers.serve(cast("Connection", connection), EFFORT, Peers({}), "cpu")

    ((found, _),) = connection.answers
    assert (found["status"], found["device_lost"]) == (status, lost)
    assert message in found["error"]


class Answering:
    """The connection of a process that answers with a row."""

    def __init__(self, row: dict[str, Any]) -> None:
        self._row = row

    def send(self, task: workers.Task) -> None: ...

    def poll(self, limit_s: float | None) -> bool:
        return True

    def recv(self) -> tuple[dict[str, Any], dict[str, float]]:
        return self._row, {}

    def close(self) -> None: ...


@pytest.mark.parametrize("lost_again", [False, True])
def test_a_case_is_measured_again_if_a_process_lost_the_device(
    lost_again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: Iterator[dict[str, Any]] = iter(
        [{"device_lost": True, "ms": None}, {"device_lost": lost_again, "ms": 1.0}]
    )
    ended: list[bool] = []
    process = SimpleNamespace(
        terminate=lambda: ended.append(True), join=lambda s: None, is_alive=lambda: False
    )
    processes = workers.Workers(1, EFFORT, Peers({}), "cuda", references=False)

    def start() -> Any:
        connection: Any = Answering(next(rows))
        processes._processes[connection] = process
        return connection

    monkeypatch.setattr(processes, "_start", start)

    row, _ = processes.row(measure.Planned(ops()["permute"], "explore", CASE))

    assert row["ms"] == 1.0
    assert len(ended) == 1 + lost_again
