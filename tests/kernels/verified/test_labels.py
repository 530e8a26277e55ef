"""Labels of configurations, which an author chooses, are shown and mean nothing to the judge."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import torch

from warpcall_kernels.execution.clock import clock
from warpcall_kernels.execution.executor import BufferSets, Executor
from warpcall_kernels.execution.inputs import layout_of
from warpcall_kernels.execution.serve import _Call
from warpcall_kernels.op.declaration import Meta


def test_a_label_cannot_be_a_tag_that_means_something() -> None:
    x = torch.ones(4)
    sets = BufferSets({"x": layout_of(x)}, x.device)
    metas, on_cpu = {"out": Meta((4,), x.dtype)}, clock(x.device)
    executor = Executor(lambda x: x + 1, sets, metas, on_cpu, None)
    planned: Any = SimpleNamespace(choose=lambda _: None, chosen=["not captured", "BLOCK: 64"])
    ours, theirs = socket.socketpair()
    with ours, theirs:
        call = _Call(theirs, executor, sets, on_cpu, planned)

        facts = call.do_ready({})

    assert facts["tags"] == ["chosen: not captured; BLOCK: 64"]
