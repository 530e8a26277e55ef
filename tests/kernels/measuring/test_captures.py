"""Captures of CUDA graphs that fail, with a pretended GPU; tests/gpu has them on a real one."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch

from warpcall_kernels.measuring import _clock
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


@pytest.mark.parametrize("knows", [True, False])
def test_a_capture_is_ended_in_the_allocator_after_the_graph_was_reset(
    monkeypatch: pytest.MonkeyPatch, knows: bool
) -> None:
    done: list[Any] = []

    class Graph:
        def reset(self) -> None:
            done.append("reset")
            raise RuntimeError("as a lost device does")

    def end(index: int, pool: tuple[int, int]) -> None:
        done.append((index, pool))
        if not knows:
            raise RuntimeError("the allocator knows no such capture")

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", end)
    graph: Any = Graph()

    launch.end_failed_capture(graph, POOL)

    assert done == ["reset", (3, POOL)]
