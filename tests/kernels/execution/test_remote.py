"""An implementation on the other side of a socket: its blocks of calls without pauses.

Only a clock of a GPU has such blocks. Here one of a CPU has them, and the other side is a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.kernels.execution.thread_peer import ThreadPeer
from warpcall_kernels.execution.check import Expected
from warpcall_kernels.execution.clock import CpuClock, clock
from warpcall_kernels.execution.inputs import Pool
from warpcall_kernels.execution.process import Deadlines, RemoteFailed, RemoteProcess
from warpcall_kernels.execution.reading import SAMPLES_READ
from warpcall_kernels.execution.remote import RemoteExecutor
from warpcall_kernels.execution.spec import make_case
from warpcall_kernels.execution.timed import Tight, Timed

CPU = torch.device("cpu")
CASE = make_case("permute", {"shape": [40, 30], "dtype": "F32", "params": {"dims": [1, 0]}})


def tightly(self: CpuClock, timed: Timed, calls: int) -> Tight:
    kept: list[tuple[int, Any]] = []

    def run() -> None:
        kept.clear()
        for i in range(calls):
            number = i % len(timed.sets)
            kept.append((number, timed.call(timed.sets[number])))

    return Tight(run, False, lambda: kept)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., RemoteExecutor]]:
    monkeypatch.setattr(CpuClock, "tightly", tightly)
    processes: list[RemoteProcess] = []

    def start(function: Callable[..., Any]) -> tuple[RemoteExecutor, Pool]:
        processes.append(RemoteProcess(lambda: ThreadPeer(function), {}))
        pool = Pool.draw(CASE.inputs, 1, CPU)
        made = RemoteExecutor(
            *(processes[-1], "", CASE.params, pool, CASE.outputs, clock(CPU), Deadlines(), 1, 0.5)
        )
        for which in range(made.sets):
            made.write(which, pool.at(which))
        made.call()
        made.ready()
        made.tighten()
        return made, pool

    yield start  # type: ignore[misc]
    for process in processes:
        process.end()


def right(x: Tensor, dims: Any) -> Tensor:
    return x.permute(dims).contiguous()


def test_a_block_without_pauses_has_the_outputs_of_the_values_that_were_written_last(
    started: Callable[..., Any],
) -> None:
    executor, pool = started(right)

    for place in (10, 500):
        executor.time_answer()
        values = [pool.at(place + which) for which in range(executor.sets)]
        for which, one in enumerate(values):
            executor.write(which, one)
        results = executor.take_tight()

        assert {which for which, _ in results} == set(range(executor.sets))
        for which, outputs in results:
            Expected(CASE, values[which], CPU).check(outputs, "a timed call")
        assert executor.changed() is None
    assert len(executor._tight_us) == 2


def test_calls_of_a_block_without_pauses_that_return_one_memory_are_wrong(
    started: Callable[..., Any],
) -> None:
    made: list[Tensor] = []

    def one_memory_later(x: Tensor, dims: Any) -> Tensor:
        made.append(right(x, dims) if len(made) < 8 else made[-1].copy_(right(x, dims)))
        return made[-1]

    executor, _ = started(one_memory_later)
    executor.time_answer()

    with pytest.raises(RemoteFailed, match="must have memory of its own") as failed:
        executor.take_tight()
    assert failed.value.status == "wrong_result"


def test_a_process_cannot_make_fewer_calls_without_pauses_than_asked(
    started: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    executor, _ = started(right)
    monkeypatch.setattr(
        CpuClock, "tightly", lambda self, timed, calls: tightly(self, timed, calls - 1)
    )
    executor.tighten()
    executor.time_answer()

    with pytest.raises(RemoteFailed, match="an answer about its results"):
        executor.take_tight()


def test_a_claim_of_long_calls_before_short_ones_is_not_confirmed_on_a_gpu(
    started: Callable[..., Any],
) -> None:
    """It would make a block shorter, in which an answer takes a larger share of the time."""
    executor, _ = started(right)
    executor._known.rough_us = 1000.0
    executor.tighten()
    executor._device = torch.device("cuda")

    assert executor._tight_calls == 10
    assert [executor.is_confirmed(us) for us in (1000.0, 600.0, 100.0)] == [True, True, False]


@pytest.mark.slow
def test_outputs_of_random_samples_of_a_block_are_compared(started: Callable[..., Any]) -> None:
    executor, pool = started(right)
    places = [*range(20)]
    found = []

    for _ in range(10):
        executor.take([0] * len(places), places)
        found.append(executor.results())

    for results in found:
        assert len(results) == SAMPLES_READ
        for place, outputs in results:
            Expected(CASE, pool.at(place), CPU).check(outputs, "a timed call")
    seen = {place for results in found for place, _ in results}
    assert min(seen) < 10 <= max(seen)
    assert len(seen) > 10  # of 40 drawn ones
