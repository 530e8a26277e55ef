"""A cache manager for Triton that also finds the kernels that a container image was shipped with.

The image sets `TRITON_CACHE_MANAGER=warpcall_kernels.compile.cache:ShippedCache`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from triton.runtime.cache import FileCacheManager

SHIPPED = Path(sys.prefix, "share/warpcall/triton")  # written once, by `warpcall-server warm`


class ShippedCache(FileCacheManager):  # type: ignore[misc]  # triton has no types
    """Reads entries that were shipped from the image, and keeps all others in TRITON_CACHE_DIR.

    A shipped entry is complete, so nothing is ever written to it: an image may be read-only.
    """

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        shipped = SHIPPED / key
        if override or dump or not shipped.is_dir():
            super().__init__(key, override, dump)
        else:
            self.key, self.cache_dir, self.lock_path = key, str(shipped), None
