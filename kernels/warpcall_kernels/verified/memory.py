"""Tensors in memory that is never touched, so that inputs of any size take no memory.

Such a tensor has a shape, strides, a dtype and an address, as a kernel gets them, but no values.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import torch
from torch import Tensor

from warpcall_kernels._transpose.strides import reach
from warpcall_kernels.op.launch import VECTOR_BYTES

# Private memory would count towards RLIMIT_DATA, and memory with a reserve may be refused if it is
# more than the machine has.
NO_RESERVE = 0x4000  # MAP_NORESERVE of Linux, which Python names from 3.13 on
FLAGS = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | NO_RESERVE


def untouched(
    dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int], address: int = 0
) -> Tensor:
    """A tensor in memory of its own, which nothing has touched.

    Args:
        strides: in elements.
        address: of its first element modulo 16.

    Raises:
        OSError, OverflowError: there are not so many addresses.
    """
    nbytes = spanned_bytes(dtype, shape, strides)
    begin = address % VECTOR_BYTES
    room = -(-(begin + max(nbytes, 1)) // VECTOR_BYTES) * VECTOR_BYTES
    memory = torch.frombuffer(mmap.mmap(-1, room, flags=FLAGS), dtype=torch.uint8)
    return memory.view(dtype).as_strided(shape, strides, begin // dtype.itemsize)


def spanned_bytes(dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int]) -> int:
    """Bytes from the first to the last element of a tensor."""
    return reach(tuple(shape), tuple(strides)) * dtype.itemsize if all(shape) else 0
