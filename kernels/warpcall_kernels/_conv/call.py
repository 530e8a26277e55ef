"""What a plan of conv-backward depends on."""

from __future__ import annotations

from typing import NamedTuple

import torch

from warpcall_kernels._conv.tiling import Alignment


class Call(NamedTuple):
    """A call of conv-backward.

    Args:
        dtype: that of all tensors.
        rows: rows of a head.
        group: channels of a head.
        length: positions of a row.
        heads, taps: the shape of the filters.
        padding: zeros before each row of x.
        softmax: whether the filters are normalised by softmax first.
        align: the alignment of the rows of x and g.
    """

    dtype: torch.dtype
    rows: int
    group: int
    length: int
    heads: int
    taps: int
    padding: int
    softmax: bool
    align: Alignment

    @property
    def mirrored(self) -> int:
        """The padding for grad_x, whose filters are reversed."""
        return self.taps - 1 - self.padding

    @property
    def whole(self) -> bool:
        """Whether rows are read 16 bytes at a time."""
        return self.align.whole(self.dtype)

    @property
    def centred(self) -> bool:
        """Whether filters reach to both sides of a position."""
        return self.padding > 0 and self.mirrored > 0
