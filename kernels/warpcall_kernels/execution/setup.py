"""The setup of an uploaded function: work that is done once in each case, before calls are timed.

A file that has a function `setup`, and a function to time that takes `state`, gets `setup` called
with the parameters and with a description of each input, by name. What it returns is passed to each
call as `state`. The values of the inputs are not known to it: they are drawn later.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from warpcall_kernels.execution.inputs import BufferLayout

STATE = "state"  # the argument of the timed function that gets what `setup` returned

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class InputDescription:
    """What `setup` knows of an input: all but its values.

    Attributes:
        shape, dtype, device: those of the input.
        strides: in elements.
    """

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    strides: tuple[int, ...]

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.numel() * self.dtype.itemsize

    def numel(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def size(self, dim: int | None = None) -> torch.Size | int:
        """The shape, or one of its dims."""
        return self.shape if dim is None else self.shape[dim]

    def stride(self, dim: int | None = None) -> tuple[int, ...] | int:
        """The strides, or that of one dim."""
        return self.strides if dim is None else self.strides[dim]

    def is_contiguous(self) -> bool:
        """Whether the elements lie in the order of the dims, without gaps."""
        like = torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device="meta")
        return like.is_contiguous()


def described(
    inputs: Mapping[str, BufferLayout] | Mapping[str, Tensor], device: torch.device
) -> dict[str, InputDescription]:
    """The descriptions of inputs that lie on a device."""
    return {
        name: InputDescription(
            torch.Size(one.shape),
            one.dtype,
            device,
            one.stride() if isinstance(one, Tensor) else one.strides,
        )
        for name, one in inputs.items()
    }


def set_up_at_first_call(
    function: Function, setup: Function | None, params: Mapping[str, Any]
) -> Function:
    """A function of the inputs alone, which calls `setup` before its first call.

    It is for calls that nobody times, such as those of a profile.
    """
    call = functools.partial(function, **params)
    if setup is None:
        return call
    made: list[Function] = []

    def set_up_and_call(**inputs: Any) -> Any:
        if not made:
            device = next((t.device for t in inputs.values()), torch.device("cpu"))
            state = setup(**described(inputs, device), **params)
            made.append(functools.partial(call, **{STATE: state}))
        return made[0](**inputs)

    return set_up_and_call
