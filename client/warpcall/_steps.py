"""The steps of a program, and references to their outputs.

This is a module of its own because the generated methods of programs need these classes, and the
module of programs needs the generated methods.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from warpcall._tensors import BaseStoredTensor

if TYPE_CHECKING:
    import torch

    from warpcall._arrays import Array, Numbers


@dataclass(frozen=True, slots=True)
class Ref:
    """A reference to an output of a step. Later steps and `run` take it."""

    step: Step
    output: str


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One op of a program; `step["out"]` refers to its output of that name."""

    program: object
    name: str

    def __getitem__(self, output: str) -> Ref:
        return Ref(self, output)


# An input of a step.
StepInput: TypeAlias = "Array | torch.Tensor | BaseStoredTensor[Any] | Ref | Numbers"
