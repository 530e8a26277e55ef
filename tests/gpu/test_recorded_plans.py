"""Recorded launch plans of shipped ops compute the same as these, in each case of each op."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.kernels.verified.recording import Recording
from tests.kernels.verified.test_record_ops import BY_TORCH, OPS, SOURCE
from warpcall_kernels import ops
from warpcall_kernels.execution.inputs import layout_of
from warpcall_kernels.execution.outputs import parts_of
from warpcall_kernels.verified.inspection import inspect
from warpcall_kernels.verified.launcher import PlannedFunction

pytestmark = pytest.mark.timeout(300)
MOST_ELEMENTS = 1 << 26
PARTS = 4  # of the cases of an op, which several processes may test side by side


@pytest.fixture(scope="module")
def recording() -> Iterator[Recording]:
    process = Recording()
    yield process
    process.end()


def bits(t: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor, of which NaNs are equal to themselves."""
    return t.contiguous().view(-1).view(torch.uint8)


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", OPS)
def test_the_plans_of_an_op_compute_the_same(
    recording: Recording, device: str, name: str, part: int
) -> None:
    op, checked = ops()[name], 0
    recording.load(SOURCE.format(name), "f")
    for case in op.cases[part::PARTS]:
        metas = case.metas()
        if (name, case.name) in BY_TORCH or sum(m.nbytes for m in metas.values()) > MOST_ELEMENTS:
            continue
        params = op.check_params(case.params)
        outputs = op.check(metas, params)
        generator = torch.Generator(device).manual_seed(1)
        inputs = {n: s.draw(generator, torch.device(device)) for n, s in case.inputs.items()}
        layouts = {n: layout_of(t) for n, t in inputs.items()}
        plan = recording.plan(layouts, [*outputs.values()], params)
        inspect(plan)
        function = PlannedFunction(plan, dict(zip(outputs, outputs.values(), strict=True)))
        with function.checking():
            found = parts_of(function(**inputs))
        wanted = parts_of(op.function(**inputs, **params))
        for mine, theirs in zip(found, wanted, strict=True):
            assert mine.shape == theirs.shape
            assert torch.equal(bits(mine), bits(theirs)), case.name
        checked += 1
    assert checked
