"""Prints the dtype of each number that a kernel gets: python -m tests.kernels.interpreter.scalars

With TRITON_INTERPRET=1 it is interpreted, otherwise compiled for sm_90, without a GPU.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def plain(out_ptr: tl.tensor, number) -> None:  # type: ignore[no-untyped-def]  # as users write it
    tl.static_print(number.dtype, (tl.full([4], 1, tl.float16) * number).dtype)


@triton.jit
def fp64(out_ptr: tl.tensor, number: tl.float64) -> None:
    tl.static_print(number.dtype, (tl.full([4], 1, tl.float16) * number).dtype)


@triton.jit
def fp32(out_ptr: tl.tensor, number: tl.float32) -> None:
    tl.static_print(number.dtype, (tl.full([4], 1, tl.float16) * number).dtype)


@triton.jit
def fp16(out_ptr: tl.tensor, number: tl.float16) -> None:
    tl.static_print(number.dtype, (tl.full([4], 1, tl.float32) * number).dtype)


@triton.jit
def bf16(out_ptr: tl.tensor, number: tl.bfloat16) -> None:
    tl.static_print(number.dtype, (tl.full([4], 1, tl.float32) * number).dtype)


@triton.jit
def i64(out_ptr: tl.tensor, number: tl.int64) -> None:
    tl.static_print(number.dtype, (tl.arange(0, 4) * number).dtype)


@triton.jit
def i32(out_ptr: tl.tensor, number: tl.int32) -> None:
    tl.static_print(number.dtype, (tl.arange(0, 4) * number).dtype)


@triton.jit
def u32(out_ptr: tl.tensor, number: tl.uint32) -> None:
    tl.static_print(number.dtype, (tl.arange(0, 4) * number).dtype)


@triton.jit
def u64(out_ptr: tl.tensor, number: tl.uint64) -> None:
    tl.static_print(number.dtype, (tl.arange(0, 4) * number).dtype)


@triton.jit
def i16(out_ptr: tl.tensor, number: tl.int16) -> None:
    tl.static_print(number.dtype, (tl.arange(0, 4) * number).dtype)


@triton.jit
def u8(out_ptr: tl.tensor, number: tl.uint8) -> None:
    tl.static_print(number.dtype, (tl.arange(0, 4) * number).dtype)


# Each kernel gets one kind of number first: it is not compiled again for others of its annotation.
CALLS: tuple[tuple[Any, bool | int | float], ...] = (
    (plain, 7),
    (plain, 2**40),
    (plain, 2**63),
    (plain, 0.5),
    (plain, True),
    (fp64, 1),
    (fp32, 1),
    (fp16, 0.5),
    (bf16, 0.5),
    (i64, True),
    (i32, 1),
    (u32, 7),
    (u64, 1),
    (i16, 7),
    (u8, 7),
)


def main() -> None:
    """Launch each kernel."""
    if os.environ.get("TRITON_INTERPRET"):
        from warpcall_kernels import interpreter

        interpreter.mend()
        launch_all("cpu")
    else:
        from warpcall_kernels.compile.warm import compiling

        with compiling(lambda compiled: None, 90):
            launch_all("meta")


def launch_all(device: str) -> None:
    """Launch each kernel on a tensor of a device."""
    for kernel, number in CALLS:
        print(kernel.fn.__name__, repr(number), flush=True)  # noqa: T201  # the report
        kernel[(1,)](torch.empty(4, device=device), number)


if __name__ == "__main__":
    main()
