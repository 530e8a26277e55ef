"""Whether torch gives cached memory of the GPU back."""

from __future__ import annotations

import torch

CACHED_BYTES = 64 << 20


def given_back() -> int:
    """Bytes that `torch.cuda.empty_cache` gives back once a tensor of CACHED_BYTES is freed."""
    torch.empty(CACHED_BYTES, dtype=torch.uint8, device="cuda")  # freed at once
    reserved = torch.cuda.memory_reserved()
    torch.cuda.empty_cache()
    return reserved - torch.cuda.memory_reserved()
