"""Triton functions in the style of public code are recorded as they are, or refused with a reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from tests.kernels.verified.recording import SOURCES, Recording, empty, meta
from warpcall_kernels.execution.process import RemoteFailed
from warpcall_kernels.op.declaration import Meta
from warpcall_kernels.verified.plan import Copy, Fill, Launch

pytestmark = pytest.mark.timeout(300)
F16, F32, BF16 = torch.float16, torch.float32, torch.bfloat16


@pytest.fixture(scope="module")
def recording() -> Iterator[Recording]:
    """One process for all tests."""
    process = Recording()
    yield process
    process.end()


@dataclass
class Recordable:
    """A function, a case of it, and what its plan must be.

    Attributes:
        actions: letters of the actions of each step: Launch, Fill, Copy.
        choices: how many each step has.
        grid: of the first choice's last launch; 0 is any number.
    """

    name: str
    inputs: Mapping[str, torch.Tensor]
    outputs: list[Meta]
    actions: list[str]
    grid: tuple[int, int, int]
    params: Mapping[str, Any] = field(default_factory=dict)
    choices: list[int] | None = None
    file: str = ""

    def __str__(self) -> str:
        return self.name


RECORDED = [
    Recordable("softmax", {"x": empty(1823, 781)}, [meta(1823, 781)], ["L"], (0, 1, 1)),
    Recordable(
        "layer_norm",
        {"x": empty(8, 128, 1024, dtype=F16), "weight": empty(1024), "bias": empty(1024)},
        [meta(8, 128, 1024, dtype=F16)],
        ["L"],
        (1024, 1, 1),
        {"eps": 1e-5},
    ),
    Recordable(
        "matmul",
        {"a": empty(512, 768, dtype=F16), "b": empty(256, 768, dtype=F16).t()},
        [meta(512, 256, dtype=F16)],
        ["L"],
        (4, 1, 1),
        choices=[3],  # the fourth needs more shared memory than there is
    ),
    Recordable(
        "rms_norm",
        {"x": empty(4, 4096, 33, dtype=BF16).transpose(1, 2), "weight": empty(4096, dtype=BF16)},
        [meta(4, 33, 4096, dtype=BF16)],
        ["CL"],
        (132, 1, 1),
    ),
    Recordable(
        "rope",
        {
            "q": empty(2, 32, 100, 64),
            "k": empty(2, 8, 100, 64),
            "cos": empty(100, 64),
            "sin": empty(100, 64),
        },
        [meta(2, 32, 100, 64), meta(2, 8, 100, 64)],
        ["CL", "CL"],
        (200, 1, 1),
    ),
    Recordable(
        "losses_of",
        {"x": empty(64, 50257), "target": empty(64, dtype=torch.int64)},
        [meta(64)],
        ["FL"],
        (64, 1, 1),
        file="cross_entropy",
    ),
    Recordable(
        "causal_conv1d",
        {"x": empty(2, 300, 1000, dtype=BF16), "weight": empty(300, 4), "bias": empty(300)},
        [meta(2, 300, 1000, dtype=BF16)],
        ["L"],
        (63, 5, 2),
        {"activation": "silu"},
        [3],
    ),
    Recordable(
        "swiglu",
        {"x": empty(4, 9, 2 * 1100, dtype=F16)},
        [meta(4, 9, 1100, dtype=F16)],
        ["L"],
        (36, 1, 1),
    ),
    Recordable("gelu", {"x": empty(99, 1001).t()}, [meta(1001, 99)], ["CL"], (97, 1, 1)),
    Recordable(
        "dropout", {"x": empty(123_456)}, [meta(123_456)], ["L"], (121, 1, 1), {"p": 0.5, "seed": 7}
    ),
]


@pytest.mark.parametrize("case", RECORDED, ids=str)
def test_it_is_recorded(recording: Recording, case: Recordable) -> None:
    recording.load((SOURCES / f"{case.file or case.name}.py").read_text(), case.name)

    plan = recording.plan(case.inputs, case.outputs, case.params)

    letters = {Launch: "L", Fill: "F", Copy: "C"}
    actions = ["".join(letters[type(a)] for a in step[0].actions) for step in plan.steps]
    last = plan.steps[-1][0].actions[-1]
    assert actions == case.actions
    assert isinstance(last, Launch)
    assert last.grid == tuple(n or found for n, found in zip(case.grid, last.grid, strict=True))
    assert [len(step) for step in plan.steps] == (case.choices or [1 for _ in actions])


@pytest.mark.parametrize(
    ("file", "function", "inputs", "params", "text"),
    [
        (
            *("cross_entropy", "cross_entropy"),
            {"x": empty(64, 100), "target": empty(64, dtype=torch.int64)},
            {},
            r"it computes with torch \(aten.ne.Scalar\) \(line 41\): only launches of kernels",
        ),
        (
            *("dropout", "dropout_of_any_seed"),
            {"x": empty(64)},
            {"p": 0.5},
            r"it computes with torch \(aten.randint.low\) \(line 25\): only launches of kernels",
        ),
        (
            *("matmul", "matmul"),
            {"a": empty(64, 32, dtype=F16).t(), "b": empty(64, 32, dtype=F16)},
            {},
            "AssertionError: Matrix A must be contiguous",
        ),
    ],
)
def test_it_is_refused_with_the_line(
    recording: Recording,
    file: str,
    function: str,
    inputs: Mapping[str, torch.Tensor],
    params: Mapping[str, Any],
    text: str,
) -> None:
    recording.load((SOURCES / f"{file}.py").read_text(), function)

    with pytest.raises(RemoteFailed, match=text):
        recording.plan(inputs, [meta(1)], params)
