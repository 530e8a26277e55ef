"""Checks of the inputs of both ops, and which positions lengths and causality leave."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from warpcall_kernels.op.declaration import TensorLike, dtype_name
from warpcall_kernels.op.errors import InvalidInput

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
LENGTHS = (torch.int32, torch.int64)


def check_rows(name: str, x: TensorLike, causal: bool) -> None:
    """Raise InvalidInput unless `x` has rows to take a softmax of."""
    check_dtype(name, x, FLOATS)
    if len(x.shape) < 1:
        raise InvalidInput(name, f"{name} must have at least 1 dim, [..., K], got shape ()")
    if causal and len(x.shape) < 2:
        raise InvalidInput(
            "causal",
            f"causal needs {name} to have at least 2 dims, [..., Q, K], got {tuple(x.shape)}",
        )


def check_lengths(lengths: TensorLike, shape: Sequence[int]) -> None:
    """Raise InvalidInput unless `lengths` has one length for each row of a tensor of this shape."""
    check_dtype("lengths", lengths, LENGTHS)
    check_broadcast("lengths", lengths, shape[:-1], "the shape of the rows")


def check_bias(bias: TensorLike, x: TensorLike, name: str) -> None:
    """Raise InvalidInput unless `bias` can be added to x, or to what is called `name`."""
    allowed = FLOATS if x.dtype == torch.float64 else FLOATS[:3]
    check_dtype("bias", bias, allowed)
    check_broadcast("bias", bias, x.shape, f"the shape of {name}")


def check_slopes(slopes: TensorLike, shape: Sequence[int]) -> None:
    """Raise InvalidInput unless `slopes` has one slope for each head of scores of this shape."""
    check_dtype("slopes", slopes, FLOATS)
    if len(shape) < 3:
        raise InvalidInput(
            "slopes",
            f"slopes need x to have at least 3 dims, [..., H, Q, K], got {tuple(shape)}",
        )
    if tuple(slopes.shape) != (shape[-3],):
        raise InvalidInput(
            "slopes",
            f"slopes must have shape ({shape[-3]},), one slope for each head of x, "
            f"got {tuple(slopes.shape)}",
        )


def check_broadcast(name: str, t: TensorLike, shape: Sequence[int], whose: str) -> None:
    """Raise InvalidInput unless `t` can be broadcast to `shape`; the message calls it `whose`."""
    ours, theirs = tuple(t.shape), tuple(shape)
    fits = len(ours) <= len(theirs) and all(
        ours[-i] in (1, theirs[-i]) for i in range(1, len(ours) + 1)
    )
    if fits:
        return
    hint = ""
    if len(theirs) > 2 and ours == (theirs[0], theirs[-1]):
        places = ", None" * (len(theirs) - 2)
        hint = f"; of one row for each batch, pass {name}[:{places}]"
    raise InvalidInput(name, f"{name} must be broadcastable to {theirs}, {whose}, got {ours}{hint}")


def check_dtype(name: str, t: TensorLike, allowed: Sequence[torch.dtype]) -> None:
    """Raise InvalidInput unless `t` has one of the allowed dtypes."""
    if t.dtype not in allowed:
        names = ", ".join(map(dtype_name, allowed))
        raise InvalidInput(name, f"{name} must be one of {names}, got {dtype_name(t.dtype)}")


def check_scale(scale: float) -> None:
    """Raise InvalidInput unless `scale` is finite."""
    if not math.isfinite(scale):
        raise InvalidInput("scale", f"scale must be finite, got {scale}")


def beyond_prefix(
    shape: Sequence[int], lengths: Tensor | None, causal: bool, device: torch.device
) -> Tensor | None:
    """Where lengths and causality mask, as a bool tensor broadcastable to `shape`.

    None if there are neither lengths nor causality.
    """
    k = torch.arange(shape[-1], device=device)
    beyond = None
    if lengths is not None:
        beyond = k >= lengths.unsqueeze(-1)
    if causal:
        q = torch.arange(shape[-2], device=device)
        after = k > q.unsqueeze(-1) + (shape[-1] - shape[-2])
        beyond = after if beyond is None else beyond | after
    return beyond


def distances(shape: Sequence[int], device: torch.device) -> Tensor:
    """k - (q + K - Q) for each query q and key k, as integers: what a slope is multiplied by."""
    q, k = (torch.arange(n, device=device) for n in shape[-2:])
    return k - (q.unsqueeze(-1) + (shape[-1] - shape[-2]))


def prefix_elements(shape: Sequence[int], lengths: TensorLike | None, causal: bool) -> int:
    """How many elements of a tensor of this shape lengths and causality leave.

    The number is exact where `lengths` is a tensor. A mere description of lengths has no values;
    then the number is the upper bound.
    """
    *rows, columns = shape
    limits = torch.tensor(columns)
    if isinstance(lengths, Tensor):
        limits = lengths.long().clamp(0, columns).cpu()
    if causal:
        q = torch.arange(rows[-1])
        limits = torch.minimum(limits, (q + 1 + columns - rows[-1]).clamp(0, columns))
    return int(limits.sum()) * (math.prod(rows) // max(1, limits.numel()))
