"""What a program is made of while it is written: steps, and references to what they will give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from warpcall._tensors import BaseStoredTensor

if TYPE_CHECKING:
    import torch

    from warpcall._arrays import Array


@dataclass(frozen=True, slots=True)
class Ref:
    """An output that a step will give; what later steps take, and what `run` may ask for."""

    step: Step
    output: str


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One op of a program; `step["out"]` refers to its output of that name."""

    program: object
    name: str

    def __getitem__(self, output: str) -> Ref:
        return Ref(self, output)


StepInput: TypeAlias = (
    "Array | torch.Tensor | BaseStoredTensor[Any] | Ref"  # what an op in a program takes
)
