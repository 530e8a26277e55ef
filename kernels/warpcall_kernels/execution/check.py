"""Compares the outputs of an implementation with the reference. One that is wrong is not timed.

The reference runs in this process, in higher precision, on the same device. Inputs come from random
seeds, and are drawn twice into the same memory before anything is timed, so that an implementation
can neither know nor remember a result.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from warpcall_kernels.execution.executor import Outputs
from warpcall_kernels.execution.inputs import Values
from warpcall_kernels.execution.outputs import Wrong, parts_of
from warpcall_kernels.execution.spec import JobCase
from warpcall_kernels.op.cases import Sample
from warpcall_kernels.op.compare import Comparison, widened

DRAWS = 2  # of the inputs, before anything is timed


class Expected:
    """What the reference computes from some values of the inputs.

    Raises:
        ValueError: the reference does not return what the op declares.
    """

    def __init__(self, case: JobCase, values: Values, device: torch.device) -> None:
        op, inputs = case.op, values.tensors
        wide = inputs if op.tolerance is None else {n: widened(t) for n, t in inputs.items()}
        result = parts_of(op.reference(**wide, **case.params))
        self._outputs = tuple(t.contiguous() for t in result)
        given = [(tuple(t.shape), t.device) for t in self._outputs]
        declared = [(meta.shape, device) for meta in case.outputs.values()]
        if given != declared:
            raise ValueError(
                f"the reference must return tensors of shapes and devices {declared}, got {given}"
            )
        self._names = tuple(case.outputs)
        self._comparison = Comparison(op, inputs, case.params)

    def check(self, outputs: Outputs, where: str) -> None:
        """Compare the outputs of a call with what was expected.

        Args:
            where: the seed of the inputs, or which call it was, for the message.

        Raises:
            Wrong: they differ.
        """
        for name, ours, theirs in zip(self._names, outputs, self._outputs, strict=True):
            difference = self._comparison.difference(name, ours, theirs)
            if difference is not None:
                raise Wrong(f"{difference} ({where})")


def draw(inputs: Mapping[str, Sample], seed: int, device: torch.device) -> dict[str, Tensor]:
    """Draw inputs on a device. A seed gives the same values on one kind of device."""
    generator = torch.Generator(device).manual_seed(seed)
    return {name: sample.draw(generator, device) for name, sample in inputs.items()}
