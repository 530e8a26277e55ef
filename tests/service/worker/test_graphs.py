"""Which calls are captured as CUDA graphs, with a pretended GPU; tests/gpu has them on a real one."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import Any, ClassVar, cast

import pytest
import torch
from torch import Tensor

from tests.service.worker.lane_calls import permutation
from warpcall_service.devices import graphs
from warpcall_service.devices.graphs import GraphedCall, Graphs, has_passed


class PretendedGraph:
    """Notes whether its capture was ended."""

    made: ClassVar[list[PretendedGraph]] = []

    def __init__(self) -> None:
        self.made.append(self)
        self.ended = False

    def capture_begin(self, **_: Any) -> None: ...

    def capture_end(self) -> None:
        self.ended = True


class PretendedEvent:
    def __init__(self, **_: Any) -> None: ...


class Failing:
    """A call whose kernels cannot be captured."""

    name = "failing"
    inputs = outputs = ()
    is_empty = False

    def compute(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        raise RuntimeError("operation not permitted when stream is capturing")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Graphs:
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", PretendedGraph)
    monkeypatch.setattr(torch.cuda, "Event", PretendedEvent)
    monkeypatch.setattr(PretendedGraph, "made", [])
    return Graphs(torch.device("cpu"))


def captured(device: Graphs) -> tuple[GraphedCall | None, Mapping[str, Tensor]]:
    outputs = {"out": torch.zeros(3, 2)}
    work = permutation((2, 3))
    return device.capture(work, {"x": torch.arange(6.0).view(2, 3)}, outputs), outputs


def test_a_captured_call_writes_its_outputs_where_they_are_read(device: Graphs) -> None:
    call, outputs = captured(device)

    assert call is not None
    assert not call.is_under_way
    assert outputs["out"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert [graph.ended for graph in PretendedGraph.made] == [True]


def test_no_more_calls_are_captured_than_may_be_kept(
    device: Graphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "MAX_GRAPHS", 2)
    kept = [captured(device)[0] for _ in range(3)]
    assert [call is None for call in kept] == [False, False, True]

    kept.clear()  # as when the views are dropped

    assert captured(device)[0] is not None


def test_a_call_that_cannot_be_captured_ends_the_capture_and_is_logged(
    device: Graphs, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[Any] = []  # captures in torch
    monkeypatch.setattr(graphs, "end_failed_capture", lambda *given: ended.append(given))
    with caplog.at_level(logging.ERROR, "warpcall.lane"):
        assert device.capture(Failing(), {}, {}) is None

    assert [graph.ended for graph in PretendedGraph.made] == [True]
    assert ended == [(PretendedGraph.made[0], (0, 1))]
    assert "a call of failing cannot be captured" in caplog.text
    assert captured(device)[0] is not None


def test_a_lost_device_has_come_to_every_event() -> None:
    class Event:
        def query(self) -> bool:
            raise RuntimeError("an illegal memory access was encountered")

    assert has_passed(cast(torch.cuda.Event, Event()))
