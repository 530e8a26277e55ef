"""Captures of CUDA graphs that fail, with a pretended GPU; tests/gpu has them on a real one."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch

from warpcall_kernels.execution import clock as _clock
from warpcall_kernels.op import launch

POOL = (0, 1)


def test_a_capture_that_failed_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    undone: list[Any] = []
    graph: Any = object()
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: POOL)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, *, pool: contextlib.nullcontext())
    monkeypatch.setattr(_clock, "end_failed_capture", lambda *given: undone.append(given))

    with _clock._capturing(graph):
        pass
    assert undone == []

    with pytest.raises(RuntimeError, match="not permitted"), _clock._capturing(graph):
        raise RuntimeError("operation not permitted when stream is capturing")
    assert undone == [(graph, POOL)]


@pytest.mark.parametrize("fails", [False, True])
def test_a_capture_is_ended_after_the_graph_was_reset(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    done: list[Any] = []

    def do(step: Any) -> None:
        done.append(step)
        if fails:
            raise RuntimeError("the device is lost, or the allocator knows no such capture")

    class Graph:
        def reset(self) -> None:
            do("reset")

    class Generator:
        def clone_state(self) -> str:
            return "a state of its own"

        def graphsafe_set_state(self, state: str) -> None:
            do(state)

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "default_generators", (None, Generator()))
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", lambda *given: do(given))
    graph: Any = Graph()

    launch.end_failed_capture(graph, POOL)

    assert done == ["reset", (1, POOL), "a state of its own"]
