"""The kernel that adds up what the programs of conv-backward have summed for the gradient of
weight.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from warpcall_kernels._conv.filters import UNSPECIALIZED, softmax_terms
from warpcall_kernels.op.launch import Launch, multiprocessors, waiting

SUMS = 4096  # that a program loads at once
MOST_TAPS = 32  # of a program
# Least taps of a program, where programs are fewer than multiprocessors: it reads 16 or 32 bytes of each part.
LEAST_TAPS = 4
MAX_SOFTMAX_TAPS = 4096  # taps of the longest filter that the gradient of the softmax holds whole


@triton.jit
def begin_reduction(PDL: tl.constexpr, EARLY: tl.constexpr) -> None:
    """Wait for the sums. The kernel after this one may be launched then, or EARLY: at once."""
    if PDL:
        if EARLY:
            gdc_launch_dependents()
        gdc_wait()
        if not EARLY:
            gdc_launch_dependents()


@triton.jit
def add_parts(
    number: tl.tensor,
    sums_ptr: tl.tensor,
    w_ptr: tl.tensor,
    out_ptr: tl.tensor,
    taps: tl.tensor,
    blocks: tl.tensor,
    parts: tl.tensor,
    stride_wh: tl.tensor,
    stride_wk: tl.tensor,
    SOFTMAX: tl.constexpr,
    TAPS: tl.constexpr,
    AT_ONCE: tl.constexpr,
    ACC: tl.constexpr,
) -> None:
    """Add up the parts of TAPS taps of a head, of which each has `blocks` such. With SOFTMAX these
    are all taps, and its gradient follows.
    """
    head = (number // blocks).to(tl.int64)
    tap = number % blocks * TAPS + tl.arange(0, TAPS)
    in_filter = tap < taps
    sums_ptr += head * parts * taps
    total = tl.zeros((TAPS,), ACC)
    for first in range(0, parts, AT_ONCE):
        part = first + tl.arange(0, AT_ONCE)[:, None]
        at = part.to(tl.int64) * taps + tap[None, :]
        mask = (part < parts) & in_filter[None, :]
        total += tl.sum(tl.load(sums_ptr + at, mask=mask, other=0.0), axis=0)
    if SOFTMAX:
        w_ptr += head * stride_wh
        peak, scale = softmax_terms(w_ptr, taps, stride_wk, TAPS, ACC)
        w = tl.load(w_ptr + tap * stride_wk, mask=in_filter, other=float("-inf")).to(ACC)
        y = tl.exp(w - peak) * scale
        total = y * (total - tl.sum(tl.where(in_filter, y * total, 0.0)))
    tl.store(out_ptr + head * taps + tap, total.to(out_ptr.dtype.element_ty), mask=in_filter)


@triton.jit(do_not_specialize=(*UNSPECIALIZED, "blocks"))
def _reduce_kernel(
    sums_ptr: tl.tensor,
    w_ptr: tl.tensor,
    out_ptr: tl.tensor,
    taps: tl.tensor,
    blocks: tl.tensor,
    parts: tl.tensor,
    stride_wh: tl.int64,
    stride_wk: tl.int64,
    SOFTMAX: tl.constexpr,
    TAPS: tl.constexpr,
    AT_ONCE: tl.constexpr,
    ACC: tl.constexpr,
    PDL: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    begin_reduction(PDL, EARLY)
    add_parts(
        tl.program_id(0), sums_ptr, w_ptr, out_ptr, taps, blocks, parts, stride_wh, stride_wk,
        SOFTMAX, TAPS, AT_ONCE, ACC,
    )  # fmt: skip


def plan_reduce(
    shape: tuple[int, int],
    parts: int,
    strides: tuple[int, ...] = (0, 0),
    *,
    wide: bool,
    softmax: bool = False,
    early: bool = False,
) -> Launch | None:
    """The launch on (sums [H, parts, K], weight, gradient [H, K]); None if the filters are too long for it.

    Args:
        shape: H and K.
        strides: of weight, which is read for a softmax only.
        wide: whether the sums are fp64.
        early: whether the kernel after this one may be launched while the sums are computed.
    """
    heads, taps = shape
    block = triton.next_power_of_2(taps)
    if softmax and block > MAX_SOFTMAX_TAPS:
        return None
    if not softmax:
        block = min(block, MOST_TAPS)
        while block > LEAST_TAPS and heads * triton.cdiv(taps, block) < multiprocessors():
            block //= 2
    arguments: dict[str, Any] = {
        "taps": taps,
        "blocks": triton.cdiv(taps, block),
        "parts": parts,
        "stride_wh": strides[0],
        "stride_wk": strides[1],
        "SOFTMAX": softmax,
        "TAPS": block,
        "AT_ONCE": min(SUMS // block, triton.next_power_of_2(parts)),
        "ACC": tl.float64 if wide else tl.float32,
        "EARLY": early,
        **waiting(),
    }
    return Launch(_reduce_kernel, (heads * arguments["blocks"],), arguments)
