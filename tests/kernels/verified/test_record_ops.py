"""Functions of users that call the shipped ops can be recorded: their launches are in the plan."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.kernels.verified.recording import Recording
from warpcall_kernels import ops
from warpcall_kernels.execution.inputs import layout_of
from warpcall_kernels.execution.process import RemoteFailed
from warpcall_kernels.op.cases import Case
from warpcall_kernels.verified.plan import MOST_LAUNCHES, Launch, Plan

pytestmark = pytest.mark.timeout(500)
SOURCE = """
import warpcall_kernels
def f(**given):
    return warpcall_kernels.ops()[{!r}].function(**given)
"""
STEP = 9  # of the cases that are tested always
BY_TORCH = {("conv-backward", "no batches")}  # a sum, which no plan has
# An op whose function is its reference has no kernel.
OPS = [name for name, op in ops().items() if op.function is not op.reference]


@pytest.fixture(scope="module")
def recording() -> Iterator[Recording]:
    """One process for all tests."""
    process = Recording()
    yield process
    process.end()


def recorded(recording: Recording, name: str, case: Case) -> Plan:
    """The plan of one case of an op."""
    op = ops()[name]
    params = op.check_params(case.params)
    layouts = {key: layout_of(sample) for key, sample in case.inputs.items()}
    return recording.plan(layouts, [*op.check(case.metas(), params).values()], params)


def check(recording: Recording, name: str, cases: tuple[Case, ...]) -> None:
    """Record cases. A plan launches something unless its outputs are empty, or filled, or copied."""
    recording.load(SOURCE.format(name), "f")
    counts = []
    for case in cases:
        if (name, case.name) in BY_TORCH:
            with pytest.raises(RemoteFailed, match="it computes with torch"):
                recorded(recording, name, case)
            continue
        if not any(meta.nbytes for meta in case.metas().values()):
            with contextlib.suppress(RemoteFailed):  # torch may compute what has no elements
                recorded(recording, name, case)
            continue
        plan = recorded(recording, name, case)
        actions = [a for step in plan.steps for a in step[0].actions]
        counts.append(sum(isinstance(a, Launch) for a in actions))
        assert actions or not plan.allocated_bytes
    assert 0 < max(counts) <= MOST_LAUNCHES


@pytest.mark.parametrize("name", OPS)
def test_a_sample_of_the_cases_of_each_op_is_recorded(recording: Recording, name: str) -> None:
    check(recording, name, ops()[name].cases[::STEP])


@pytest.mark.slow
@pytest.mark.parametrize("name", OPS)
def test_all_cases_of_each_op_are_recorded(recording: Recording, name: str) -> None:
    check(recording, name, ops()[name].cases)
