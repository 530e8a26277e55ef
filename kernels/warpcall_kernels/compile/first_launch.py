"""What Triton does once in a process, before its first launch: do it ahead, or leave a part out."""

from __future__ import annotations

import functools
import tempfile
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime import cache
from triton.runtime.jit import JITFunction

TARGET = GPUTarget("cuda", 90, 32)  # of a kernel that is compiled only for what this needs once


def prepare_first_launch() -> None:
    """Hash Triton's own files, and load its module for the CUDA driver. A thread may do it ahead.

    The hash is part of every key of Triton's cache. It takes 0.3 s, and longer if the files are not
    in memory: they have 460 MB. The module is compiled with a C compiler if the cache lacks it.
    """
    from triton.backends.nvidia import driver

    cache.triton_key()
    driver.CudaUtils()


@functools.cache
def prepare_first_compilation() -> None:
    """Do what `prepare_first_launch` does, and compile a small kernel: together 1 s. Idempotent.

    It needs no GPU and touches none. What is written on the disk for it is deleted again, so that an
    account that this process takes later finds no files of another one in its cache.
    """
    with tempfile.TemporaryDirectory() as folder, triton.knobs.cache.scope():
        triton.knobs.cache.dir = folder
        prepare_first_launch()
        pointer: Any = "*fp32"
        source = ASTSource(
            JITFunction(_copy),
            {"x": pointer, "y": pointer, "n": "i32", "BLOCK": "constexpr"},
            {"BLOCK": 128},
        )
        triton.compile(source, target=TARGET)


def _copy(x, y, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)


def skip_hash() -> None:
    """Leave Triton's own files out of the keys of its cache.

    Only for a process whose cache is a folder of its own, which no other version of Triton uses.
    """
    cache.triton_key = str
