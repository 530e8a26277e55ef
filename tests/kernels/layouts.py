"""Layouts without tensors, and parts of the plans for them."""

from __future__ import annotations

from typing import Any

import torch

from warpcall_kernels._transpose.strides import contiguous_strides
from warpcall_kernels.op.launch import Launch, LayoutKey

ADDRESSES = (2, 4, 6, 8, 12)  # modulo 16, of tensors that do not begin at a multiple of 16 bytes
WHOLE = {2: 2, 4: 4, 6: 2, 8: 8, 12: 4}  # bytes, a power of two, that divide such an address


def at(
    address: int, shape: tuple[int, ...], dtype: torch.dtype, pitch: int | None = None
) -> LayoutKey:
    """A tensor at this address modulo 16, contiguous unless its rows are `pitch` elements apart."""
    stored = shape if pitch is None else (*shape[:-1], pitch)
    return shape, contiguous_strides(stored), dtype, address


def arguments(launch: Launch | None) -> Any:
    assert launch is not None
    return launch.arguments


def kernel(launch: Launch | None) -> str:
    assert launch is not None
    return str(launch.kernel.fn.__name__)


def variant(launch: Launch | None) -> str:
    assert launch is not None
    return launch.variant


def masks_of_any_value(rows: int, columns: int, offset: int, device: str) -> torch.Tensor:
    """A mask of bytes, most of them 0. Its rows begin anywhere, and it ends where its storage ends."""
    values = torch.tensor([0, 0, 0, 1, 2, 128, 255], dtype=torch.uint8, device=device)
    step = columns + 1
    flat = values[torch.randint(0, 7, (offset + rows * step - 1,), device=device)]
    return flat.as_strided((rows, columns), (step, 1), offset)
