"""Uploads of a job are checked in odd cases side by side, on as many CPUs as there are for it."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.kernels.execution.thread_peer import ThreadPeer
from tests.service.runs.sent_frames import TASK
from warpcall_bench.programs import job_main
from warpcall_bench.runs.messages import JobTask, Task, Upload, odd_at_once
from warpcall_bench.runs.peers import UPLOAD_MODULE
from warpcall_bench.runs.run_processes import first_processes
from warpcall_kernels.execution import implementations
from warpcall_kernels.measuring import RemoteProcess

PATIENCE_S = 60.0
POSITION = 7


class Server:
    """What the job's process sends."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []
        self.events: list[dict[str, Any]] = []

    def send(self, what: str, value: Any) -> None:
        self.sent.append((what, value))

    def progress(self, position: int, event: dict[str, Any]) -> None:
        assert position == POSITION
        self.events.append(event)


class Starter:
    """Starts the process of one upload; says which were started ahead when it began."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        self.is_ahead = False
        self._function = function

    def start_ahead(self) -> None:
        self.is_ahead = True

    def process(self) -> RemoteProcess:
        return RemoteProcess(lambda: ThreadPeer(self._function), {})


def right(x: Tensor, dims: Any) -> Tensor:
    return x.permute(dims).clone(memory_format=torch.contiguous_format)


def checked(monkeypatch: pytest.MonkeyPatch, starters: list[Starter], cpus: int) -> Server:
    monkeypatch.setattr(implementations, "_known", dict(implementations._known))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(cpus))
    task: JobTask = {
        **TASK,
        "op": "permute",
        "cases": [(POSITION, {})],
        "call_s": 60.0,
        "compile_s": 60.0,
        "behind": [],
    }
    remotes = {one.name: one.process() for one in starters}
    server = Server()
    job_main._check_odd_cases(task, starters, remotes, server, torch.device("cpu"))  # type: ignore[arg-type]
    return server


def test_several_are_checked_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    barrier = threading.Barrier(3)

    def meeting() -> Callable[..., Any]:
        met: list[bool] = []

        def call(x: Tensor, dims: Any) -> Tensor:
            if not met:
                barrier.wait(PATIENCE_S)
                met.append(True)
            return right(x, dims)

        return call

    def wrong(x: Tensor, dims: Any) -> Tensor:
        return right(x, dims) if x.dtype == torch.float32 else right(x, dims).zero_()

    functions = {f"ann/{number}": meeting() for number in range(3)} | {"ann/wrong": wrong}
    starters = [Starter(*one) for one in functions.items()]

    server = checked(monkeypatch, starters, cpus=6)

    found = {value["implementation"]: value["found"] for _, value in server.sent}
    assert found.keys() == functions.keys()
    for number in range(3):
        one = found[f"ann/{number}"]
        assert one["right"] > 10
        assert (one["wrong"], one["failed"], one["raised"]) == (0, 0, 0)
    assert found["ann/wrong"]["wrong"] > 3
    assert [one.is_ahead for one in starters] == [False, False, False, True]
    assert server.events
    assert all(one == {"phase": "correctness"} for one in server.events)


def test_on_few_cpus_one_is_checked_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    running: list[int] = []
    most: list[int] = []

    def call(x: Tensor, dims: Any) -> Tensor:
        running.append(1)
        most.append(len(running))
        found = right(x, dims)
        running.pop()
        return found

    starters = [Starter(f"ann/{number}", call) for number in range(3)]

    server = checked(monkeypatch, starters, cpus=2)

    assert {*most} == {1}
    assert [one.is_ahead for one in starters] == [False, True, True]
    assert [value["implementation"] for _, value in server.sent] == ["ann/0", "ann/1", "ann/2"]
    assert {one["implementation"] for one in server.events} == {"ann/0", "ann/1", "ann/2"}


def test_a_process_that_ends_is_started_again_once(monkeypatch: pytest.MonkeyPatch) -> None:
    peers: list[ThreadPeer] = []
    calls: list[bool] = []

    def call(x: Tensor, dims: Any) -> Tensor:
        calls.append(not x.is_floating_point())
        if calls[-1]:
            peers[-1].sock.shutdown(socket.SHUT_RDWR)  # as the end of the process does
        return right(x, dims)

    class Counting(Starter):
        def process(self) -> RemoteProcess:
            def start() -> ThreadPeer:
                peers.append(ThreadPeer(call))
                return peers[-1]

            return RemoteProcess(start, {})

    server = checked(monkeypatch, [Counting("ann/ends", call)], cpus=2)

    ((_, value),) = server.sent
    assert value["found"]["failed"] == len(peers) == calls.count(True) == 2
    assert value["found"]["right"] > 3
    assert value["found"]["not_checked"] > 3


@pytest.mark.parametrize(("device", "count"), [("cuda:0", 3), ("cpu", 2)])
def test_one_more_process_waits_for_a_single_upload_on_a_gpu(device: str, count: int) -> None:
    upload: Upload = {"name": "ann/a", "op": "permute", "function": "permute", "source": ""}
    task: Task = {**TASK, "device": device, "uploads": [upload], "odd": ["ann/a"]}

    assert first_processes(task) == (UPLOAD_MODULE,) * count
    assert first_processes({**task, "odd": []}) == (UPLOAD_MODULE,)


@pytest.mark.parametrize(("cpus", "count"), [(1, 1), (2, 1), (5, 2), (16, 8), (256, 8)])
def test_half_of_the_cpus_are_left(monkeypatch: pytest.MonkeyPatch, cpus: int, count: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(cpus))

    assert odd_at_once() == count
