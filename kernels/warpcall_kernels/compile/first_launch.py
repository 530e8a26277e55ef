"""What Triton does once in a process, before its first launch. A thread may do it ahead."""

from __future__ import annotations

from triton.backends.nvidia import driver
from triton.runtime.cache import triton_key


def prepare_first_launch() -> None:
    """Hash Triton's own files, and load its module for the CUDA driver.

    The hash is part of every key of Triton's cache. It takes 0.3 s, and longer if the files are not
    in memory: they have 460 MB. The module is compiled with a C compiler if the cache lacks it.
    """
    triton_key()
    driver.CudaUtils()
