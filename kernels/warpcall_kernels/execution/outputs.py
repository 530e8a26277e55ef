"""What the result of an implementation must be, whatever its values are.

A result is exactly `torch.Tensor`, contiguous, in memory of its own. Otherwise the time of a call
would not be the time of computing it: a view or a lazy subclass computes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from warpcall_kernels.op.declaration import Meta, dtype_name


class Wrong(Exception):
    """A result is not the one that the op defines."""


def parts_of(result: Any) -> tuple[Any, ...]:
    """A function's result as a tuple, without those that are None."""
    parts = result if isinstance(result, tuple | list) else (result,)
    return tuple(part for part in parts if part is not None)


def own_tensors(
    result: Any,
    metas: Mapping[str, Meta],
    device: torch.device,
    inputs: Iterable[tuple[str, Tensor]],
    earlier: Iterable[Sequence[Tensor]] = (),
) -> tuple[Tensor, ...]:
    """The outputs of a call, if all are tensors as the op returns them.

    Args:
        result: what the function returned.
        metas: shapes and dtypes of the outputs.
        inputs: names and memory of the inputs, also of other calls.
        earlier: outputs of calls before, which are still alive.

    Raises:
        Wrong: one of them is not.
    """
    parts = parts_of(result)
    if len(parts) != len(metas):
        raise Wrong(f"there must be {len(metas)} outputs, got {len(parts)}")
    for (name, meta), part in zip(metas.items(), parts, strict=True):
        _check_kind(name, meta, part, device)
    taken = [(f"the input {name}", *extent_of(t)) for name, t in inputs]
    taken += [("the result of an earlier call", *extent_of(t)) for made in earlier for t in made]
    named = zip(metas, parts, strict=True)
    check_extents([(name, *extent_of(part)) for name, part in named], taken)
    return parts


Extent = tuple[str, int, int]  # what lies there, its address, its bytes


def check_extents(outputs: Sequence[Extent], taken: Sequence[Extent] = ()) -> None:
    """Check that outputs have memory of their own.

    Args:
        taken: other memory, parts of which may lie in each other.

    Raises:
        Wrong: one of them shares memory with another, or with what is taken.
    """
    marked = [(begin, begin + n, False, name) for name, begin, n in taken if n]
    marked += [(begin, begin + n, True, name) for name, begin, n in outputs if n]
    reach: dict[bool, tuple[int, str]] = {}  # the furthest end of outputs, and of others, so far
    for begin, end, is_output, name in sorted(marked):
        for other_is_output, (before, other) in reach.items():
            if (is_output or other_is_output) and begin < before:
                mine, theirs = (name, other) if is_output else (other, name)
                theirs = "the result of another call" if mine == theirs else theirs
                raise Wrong(f"{mine} must have memory of its own, it shares some with {theirs}")
        reach[is_output] = max(reach.get(is_output, (end, name)), (end, name))


def extent_of(t: Tensor) -> tuple[int, int]:
    """Address and bytes of a tensor that is contiguous, or of the whole memory below another."""
    if t.is_contiguous():
        return t.data_ptr(), t.numel() * t.element_size()
    storage = t.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def _check_kind(name: str, meta: Meta, part: Any, device: torch.device) -> None:
    if type(part) is not Tensor:
        kind = type(part).__name__
        a_subclass = ", which may compute when it is looked at" if isinstance(part, Tensor) else ""
        raise Wrong(f"{name} must be a torch.Tensor, got {kind}{a_subclass}")
    found = (tuple(part.shape), part.dtype)
    if found != (meta.shape, meta.dtype) or part.device != device:
        raise Wrong(
            f"{name} must be {dtype_name(meta.dtype)} of shape {meta.shape} on {device}, "
            f"got {dtype_name(part.dtype)} of shape {tuple(part.shape)} on {part.device}"
        )
    if part.layout != torch.strided or not part.is_contiguous():
        strides = part.stride() if part.layout == torch.strided else part.layout
        raise Wrong(f"{name} must be contiguous, got strides {strides}: a view computes nothing")
    if part.is_conj() or part.is_neg():
        raise Wrong(f"{name} must have its values in memory, it is a lazy conjugate or negative")
