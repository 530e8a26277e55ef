"""Problems: ops of a user's own, declared by a reference and by inputs that follow from sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from warpcall_kernels.op.cases import Sample
from warpcall_kernels.op.declaration import Op, Param, Size

DEFAULT_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
DEFAULT_TOLERANCE: Mapping[torch.dtype, float] = {}


@dataclass(frozen=True, eq=False)  # equal by identity, and so hashable
class Problem:
    """The declaration of an op by its reference. `op` makes the library's `Op` of it.

    Args:
        reference: plain torch that defines correctness. It takes the inputs and parameters by name
            and returns a tensor or a tuple of tensors.
        inputs: returns the tensors to draw, by name, from a dtype and the sizes, these by name.
        sizes: the sizes that `inputs` takes.
        params: the parameters that the reference takes besides the inputs, with defaults.
        dtypes: the dtypes that a benchmark may choose. The first one is the default.
        tolerance: by dtype of an output, the rtol and atol allowed against the reference in fp64;
            None means bit-exact.
        bytes_moved: returns the compulsory traffic in bytes from shapes and dtypes of the inputs
            and from the parameters, by name; by default each input is read once and each output
            written once.
        equivalent: one line that says what is computed; may be empty.
    """

    reference: Callable[..., Any]
    inputs: Callable[..., Mapping[str, Sample]]
    sizes: tuple[Size, ...] = ()
    params: tuple[Param, ...] = ()
    dtypes: tuple[torch.dtype, ...] = DEFAULT_DTYPES
    tolerance: Mapping[torch.dtype, float] | None = None
    bytes_moved: Callable[..., int] | None = None
    equivalent: str = ""

    def op(self, name: str) -> Op:
        """The op of this problem, such as "row-norm" or "ann/row-norm"."""
        raise NotImplementedError
