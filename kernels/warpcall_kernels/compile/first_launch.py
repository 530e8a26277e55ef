"""What Triton does once in a process, before its first launch: do it ahead, or leave a part out."""

from __future__ import annotations

from triton.runtime import cache


def prepare_first_launch() -> None:
    """Hash Triton's own files, and load its module for the CUDA driver. A thread may do it ahead.

    The hash is part of every key of Triton's cache. It takes 0.3 s, and longer if the files are not
    in memory: they have 460 MB. The module is compiled with a C compiler if the cache lacks it.
    """
    from triton.backends.nvidia import driver

    cache.triton_key()
    driver.CudaUtils()


def skip_hash() -> None:
    """Leave Triton's own files out of the keys of its cache.

    Only for a process whose cache is a folder of its own, which no other version of Triton uses.
    """
    cache.triton_key = str
