"""Results of several uploads are checked side by side: their first calls compile, each on a CPU."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from torch import Tensor

from tests.kernels.execution.thread_peer import ThreadPeer
from warpcall_kernels.execution import implementations
from warpcall_kernels.measuring import (
    PRECISIONS,
    RemoteProcess,
    make_case,
    measure,
    register,
    remote_implementation,
)
from warpcall_kernels.measuring._candidates import Candidate
from warpcall_kernels.measuring._preparation import _by_process

CASE = make_case("permute", {"shape": [40, 30], "dtype": "F32", "params": {"dims": [1, 0]}})
PATIENCE_S = 60.0

Function = Callable[..., Any]


def right(x: Tensor, dims: Any) -> Tensor:
    return x.permute(dims).contiguous()


@pytest.fixture
def statuses(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., dict[str, str]]]:
    """Checks functions, each in a process of its own, on a machine with many CPUs."""
    monkeypatch.setattr(implementations, "_known", dict(implementations._known))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(16))
    processes: list[RemoteProcess] = []

    def check(functions: Mapping[str, Function]) -> dict[str, str]:
        for name, function in functions.items():
            processes.append(RemoteProcess(lambda function=function: ThreadPeer(function), {}))  # type: ignore[misc]
            register(remote_implementation(name, "permute", processes[-1]))
        found = measure(CASE, ["torch", *functions], "cpu", PRECISIONS["check"])
        return {one.name: one.status for one in found.implementations}

    yield check
    for process in processes:
        process.end()


def meeting(barrier: threading.Barrier, met: list[int]) -> Function:
    """A function whose first call waits until those of all others have begun, too."""

    def call(x: Tensor, dims: Any) -> Tensor:
        if not met:
            barrier.wait(PATIENCE_S)
            met.append(1)
        return right(x, dims)

    return call


def test_first_calls_run_at_the_same_time(statuses: Callable[..., dict[str, str]]) -> None:
    barrier = threading.Barrier(3)

    found = statuses({f"ann/{n}": meeting(barrier, []) for n in range(3)})

    assert found == {"torch": "ok", "ann/0": "ok", "ann/1": "ok", "ann/2": "ok"}


def test_each_has_its_own_result(statuses: Callable[..., dict[str, str]]) -> None:
    def wrong(x: Tensor, dims: Any) -> Tensor:
        return right(x, dims) + 1

    def raises(x: Tensor, dims: Any) -> Tensor:
        raise ValueError("not like this")

    def changes(x: Tensor, dims: Any) -> Tensor:
        return right(x.zero_(), dims)

    given = {"right": right, "wrong": wrong, "raises": raises, "changes": changes}

    found = statuses({f"ann/{name}{n}": one for n in range(3) for name, one in given.items()})

    expected = {
        "right": "ok",
        "wrong": "wrong_result",
        "raises": "error",
        "changes": "wrong_result",
    }
    assert found == {"torch": "ok"} | {
        f"ann/{name}{n}": status for n in range(3) for name, status in expected.items()
    }


def test_those_of_one_process_are_checked_one_after_the_other() -> None:
    processes = [RemoteProcess(lambda: ThreadPeer(right), {}) for _ in range(2)]
    here = Candidate("torch")
    one, two = (Candidate(name, process=processes[0]) for name in ("a", "b"))
    other = Candidate("c", process=processes[1])

    assert _by_process([here, one, other, two]) == [[one, two], [other]]
