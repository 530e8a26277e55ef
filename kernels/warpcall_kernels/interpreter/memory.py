"""The memory that a kernel may touch, and accesses to it."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from triton.runtime import interpreter as stock
from triton.runtime.interpreter import TensorHandle

from warpcall_kernels.interpreter.dtypes import Array, bits
from warpcall_kernels.interpreter.errors import CannotInterpret


class Memory:
    """The bytes that a kernel may touch: the extents of the tensors given to it.

    Attributes:
        has_made_pointers: whether the kernel has made a pointer from a number, so that an access
            outside of these tensors need not be wrong.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.begins = self.ends = np.empty(0, np.int64)
        self._begins: list[int] = []  # the same as numbers of Python
        self._ends: list[int] = []
        self.has_made_pointers = False

    def allow(self, named: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Allow the bytes of these tensors, from first to last element, and no others."""
        spans = sorted((t.data_ptr(), t.data_ptr() + _span(t), name) for name, t in named)
        self.names = [name for _, _, name in spans]
        self.begins = np.array([begin for begin, _, _ in spans], np.int64)
        ends = np.array([end for _, end, _ in spans], np.int64)
        self.ends = np.maximum.accumulate(ends) if len(ends) else ends
        self._begins, self._ends = self.begins.tolist(), self.ends.tolist()
        self.has_made_pointers = False

    def check(self, what: str, pointers: TensorHandle, mask: Array | None) -> None:
        """Raise IndexError if an active lane leaves the allowed bytes."""
        addresses = pointers.data.astype(np.int64, copy=False)
        if mask is not None:
            on = mask.astype(bool, copy=False)
            addresses = addresses[
                on if on.shape == addresses.shape else np.broadcast_to(on, addresses.shape)
            ]
        addresses = addresses.reshape(-1)
        if not addresses.size:
            return
        nbytes = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        first, last = int(np.minimum.reduce(addresses)), int(np.maximum.reduce(addresses))
        lowest = bisect.bisect_right(self._begins, first) - 1
        if lowest >= 0 and last + nbytes <= self._ends[lowest]:
            return  # all are in one tensor, as nearly always
        at = np.searchsorted(self.begins, addresses, "right") - 1
        wrong = at < 0
        if len(self.ends):
            wrong |= addresses + nbytes > self.ends[at]
        if wrong.any():
            self._refuse(what, nbytes, addresses[wrong], at[wrong])

    def _refuse(self, what: str, nbytes: int, addresses: Array, at: Array) -> None:
        if self.has_made_pointers:
            raise CannotInterpret("an access through a pointer that the kernel made from a number")
        place = f"address {addresses[0]}"
        if self.names:
            nearest = max(0, int(at[0]))
            place = (
                f"byte {addresses[0] - self.begins[nearest]} of {self.names[nearest]}, "
                f"which has {self.ends[nearest] - self.begins[nearest]}"
            )
        raise IndexError(
            f"{what} of {nbytes} bytes at {place}: out of bounds "
            f"in {len(addresses)} lanes of program {stock.interpreter_builder.grid_idx}"
        )


memory = Memory()


def named_tensors(name: str, argument: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of an argument of a kernel, each with its name."""
    if isinstance(argument, tuple):
        for i, part in enumerate(argument):
            yield from named_tensors(f"{name}[{i}]", part)
    elif hasattr(argument, "data_ptr") or hasattr(argument, "base"):
        base = getattr(argument, "base", argument)  # of a TensorWrapper or a TensorDescriptor
        yield name, base if isinstance(base, torch.Tensor) else argument


def active(mask: Any) -> Array:
    """The array of a mask. Triton's interpreter makes those of block pointers as bare arrays."""
    data: Array = mask.data if isinstance(mask, TensorHandle) else mask
    return data


def update(
    pointers: TensorHandle,
    values: Array,
    mask: Array,
    combine: Callable[[Array, Array], Array],
) -> Array:
    """Update memory as an atomic operation on numbers that Triton's interpreter does not know.

    Returns:
        What was in memory before: zeros where the mask is off.
    """
    addresses = np.broadcast_to(pointers.data, values.shape).reshape(-1)
    flat = values.reshape(-1)
    before = np.zeros_like(flat)
    left = np.flatnonzero(np.broadcast_to(mask, values.shape))
    while left.size:  # lanes with equal addresses follow each other
        _, first = np.unique(addresses[left], return_index=True)
        lanes = left[first]
        on = np.ones(len(lanes), bool)
        found = bits(np.zeros(len(lanes), flat.dtype))
        old = stock._interpreter.load(addresses[lanes], on, found, found.dtype).view(flat.dtype)
        before[lanes] = old
        stock._interpreter.store(addresses[lanes], bits(combine(old, flat[lanes])), on)
        left = np.delete(left, first)
    return before.reshape(values.shape)


def _span(t: torch.Tensor) -> int:
    if t.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
    return (last + 1) * t.element_size()
