"""Launch plans of verified kernels, carried out on a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
import triton
from torch import Tensor

from tests.gpu.planned_kernels import add_to, scale
from warpcall_kernels.op.declaration import Meta
from warpcall_kernels.op.driver_launch import parameters_of
from warpcall_kernels.verified.launcher import CannotLoad, OutOfBounds, PlannedFunction
from warpcall_kernels.verified.plan import (
    Buffer,
    Choice,
    Copy,
    Fill,
    Kernel,
    Launch,
    Place,
    Plan,
    View,
)

SIZE = 100_000
BLOCK = 1024
X = Meta((SIZE,), torch.float32)


def kernel_of(compiled: Any) -> Kernel:
    """A kernel of a plan, of what Triton has compiled."""
    parameters = ["*" if p.startswith("*") else p for p in parameters_of(compiled.src.signature)]
    metadata = compiled.metadata
    return Kernel(
        metadata.name,
        compiled.asm["cubin"],
        tuple(parameters),
        (32 * metadata.num_warps, 1, 1),
        metadata.shared,
    )


def scaling(beyond: int = 0, warps: int = 4) -> Kernel:
    """A kernel that writes `beyond` elements behind its output."""
    compiled = scale.warmup(
        torch.float32, torch.float32, 1.5, SIZE, BLOCK, beyond, grid=(1,), num_warps=warps
    )
    return kernel_of(compiled)


def adding() -> Kernel:
    return kernel_of(add_to.warmup(torch.float32, torch.float32, SIZE, BLOCK, grid=(1,)))


def launch(kernel: int, *arguments: Any, blocks: int | None = None, early: bool = False) -> Launch:
    grid = (triton.cdiv(SIZE, BLOCK) if blocks is None else blocks, 1, 1)
    return Launch(kernel, grid, (*arguments, None, None), early)


def planned(
    kernels: Sequence[Kernel], steps: Sequence[Sequence[Choice]], *, scratch: int = 0
) -> PlannedFunction:
    buffers = (Buffer("x", X.nbytes), Buffer("", X.nbytes), Buffer("", scratch))
    made = Plan("sm_90", tuple(kernels), buffers, tuple(map(tuple, steps)), (Place(1, 0),))
    read = Plan.from_json(made.to_json(), {"x": X.nbytes}, [X.nbytes])
    assert read == made
    return PlannedFunction(read, {"out": X})


def choice(*actions: Any) -> Choice:
    return Choice("", actions)


@pytest.fixture
def x(device: str) -> Tensor:
    return torch.randn(SIZE, device=device)


SCALED = launch(0, Place(0, 0), Place(1, 0), 1.5, SIZE)


def checked(function: PlannedFunction, inputs: Mapping[str, Tensor]) -> Any:
    with function.checking():
        return function(**inputs)


def test_a_plan_is_carried_out(x: Tensor) -> None:
    function = planned([scaling()], [[choice(SCALED)]])
    assert torch.equal(checked(function, {"x": x}), x * 1.5)
    function.choose({"x": x})
    assert torch.equal(function(x=x), x * 1.5)
    function.renew()
    assert torch.equal(function(x=x), x * 1.5)


def test_calls_are_captured_in_a_graph(x: Tensor) -> None:
    function = planned([scaling()], [[choice(SCALED)]])
    function(x=x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = function(x=x)
    for _ in range(20):
        function.renew()  # the graph keeps what it was captured with
    x.normal_()
    graph.replay()
    assert torch.equal(out, x * 1.5)


def test_writes_behind_a_buffer_are_found(x: Tensor) -> None:
    function = planned([scaling(beyond=3)], [[choice(SCALED)]])
    with pytest.raises(OutOfBounds, match="12 bytes behind out"):
        checked(function, {"x": x})


def test_writes_before_a_buffer_are_found(x: Tensor) -> None:
    compiled = scaling()
    before = launch(0, Place(0, 0), Place(2, 0), 1.5, 4, blocks=1)
    filled = Fill(Place(2, 0), 1, 4, 0)
    function = planned([compiled], [[choice(filled, before, SCALED)]], scratch=4)
    with pytest.raises(OutOfBounds, match="12 bytes behind its scratch memory 2"):
        checked(function, {"x": x})


def test_fills_copies_and_launches_keep_their_order(x: Tensor) -> None:
    view = View(Place(0, 0), torch.float32, (SIZE,), (1,))
    to = View(Place(2, 0), torch.float32, (SIZE,), (1,))
    function = planned(
        [adding()],
        [
            [choice(Fill(Place(1, 0), SIZE, 4, 0x3F800000), Copy(view, to))],
            [choice(launch(0, Place(2, 0), Place(1, 0), SIZE))],
            [choice(launch(0, Place(0, 0), Place(1, 0), SIZE, early=True))],
        ],
        scratch=X.nbytes,
    )
    assert torch.equal(checked(function, {"x": x}), 1 + x + x)


def test_the_fastest_choice_is_taken(x: Tensor) -> None:
    assert planned([scaling()], [[choice(SCALED)]]).chosen == []
    slow = Launch(0, (400 * triton.cdiv(SIZE, BLOCK), 1, 1), SCALED.arguments)
    wrong = launch(1, Place(0, 0), Place(1, 0), 1.5, SIZE, blocks=1)
    function = planned(
        [scaling(), scaling(warps=8)],
        [[choice(slow), Choice("short", (SCALED,)), choice(slow)]],
    )
    function.choose({"x": x})
    assert function.chosen == ["short"]
    assert torch.equal(function(x=x), x * 1.5)
    fast = planned([scaling(), scaling(warps=8)], [[choice(SCALED), choice(wrong)]])
    fast.choose({"x": x})
    assert fast._chosen == [1]  # its outputs are compared by others


def test_what_the_driver_refuses_is_left_out(x: Tensor) -> None:
    large = Kernel(**{**vars(scaling()), "shared_bytes": 256 << 10})
    both = [choice(launch(1, *SCALED.arguments[:4])), choice(SCALED)]
    function = planned([scaling(), large], [both[::-1]])
    function.choose({"x": x})
    assert function._chosen == [0]
    with pytest.raises(CannotLoad, match="scale"):
        planned([scaling(), large], [both[:1]])


def test_empty_grids_launch_nothing(x: Tensor) -> None:
    none = Launch(0, (0, 1, 1), SCALED.arguments)
    function = planned([scaling()], [[choice(Fill(Place(1, 0), SIZE, 4, 0), none)]])
    assert not checked(function, {"x": x}).any()
