"""Triton's cache where some of it was shipped: what an image has compiled, below what it compiles.

`TRITON_CACHE_MANAGER=warpcall_kernels.compile.cache:ShippedCache` chooses it; the image does.
"""

from __future__ import annotations

import sys
from pathlib import Path

from triton.runtime.cache import FileCacheManager

SHIPPED = Path(sys.prefix, "share/warpcall/triton")  # written once, by `warpcall-server warm`


class ShippedCache(FileCacheManager):  # type: ignore[misc]  # triton has no types
    """An entry that was shipped is whole and only read; all others are in TRITON_CACHE_DIR."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        shipped = SHIPPED / key
        if override or dump or not shipped.is_dir():
            super().__init__(key, override, dump)
        else:
            self.key, self.cache_dir, self.lock_path = key, str(shipped), None
