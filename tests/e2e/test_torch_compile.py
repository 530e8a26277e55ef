"""Ops of a server inside functions that torch.compile compiles: each call ends a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from demo.server import Server
from warpcall import Client

pytestmark = pytest.mark.slow

Function = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture
def gpu(server: Server) -> Iterator[Client]:
    with Client(server.url) as gpu:
        yield gpu


def compiled(function: Function) -> tuple[Function, list[int]]:
    """The function, compiled, and a list that receives the number of operations of each graph."""
    graphs: list[int] = []

    def count(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., Any]:
        graphs.append(sum(node.op == "call_function" for node in graph.graph.nodes))
        return graph.forward

    torch.compiler.reset()
    return torch.compile(function, backend=count), graphs


def in_a_program(gpu: Client, x: torch.Tensor) -> torch.Tensor:
    program = gpu.program()
    turned: torch.Tensor = program.run(y=program.permute(x, dims=(1, 0))).outputs["y"]
    return turned


WAYS: dict[str, Callable[[Client, torch.Tensor], torch.Tensor]] = {
    "method": lambda gpu, x: gpu.permute(x, dims=(1, 0)),
    "run": lambda gpu, x: gpu.run("permute", x=x, dims=(1, 0)),
    "call": lambda gpu, x: gpu.call("permute", {"x": x}, {"dims": (1, 0)}).output("out"),
    "stored": lambda gpu, x: gpu.stored.permute(x, dims=(1, 0)).get(),
    "put": lambda gpu, x: gpu.permute(gpu.put(x), dims=(1, 0)),
    "program": in_a_program,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_call_ends_a_graph_and_another_one_follows_it(way: str, gpu: Client) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return WAYS[way](gpu, x * 2 + 1) - 1

    compiled_function, graphs = compiled(function)
    x = torch.randn(2, 3)

    for _ in range(2):
        torch.testing.assert_close(compiled_function(x), x.T * 2)

    assert graphs == [2, 1]


# Where a graph ends, torch reads the gradients of tensors that are no leaves, and warns of that.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_gradients_flow_through_a_call_between_graphs(gpu: Client) -> None:
    compiled_function, graphs = compiled(lambda x: gpu.masked_softmax(x * 2).square().sum())
    x, same = (torch.ones(2, 3, requires_grad=True) for _ in range(2))
    with torch.no_grad():
        for one in (x, same):
            one[0, 0] = 3.0

    compiled_function(x).backward()  # type: ignore[no-untyped-call]
    torch.softmax(same * 2, -1).square().sum().backward()  # type: ignore[no-untyped-call]

    torch.testing.assert_close(x.grad, same.grad)
    assert len(graphs) == 2
