"""How FILTERED of isin is launched (`filtered.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import triton

from warpcall_kernels._isin.bloom import fill_kernel, judge_kernel, zero_bitmap_kernel
from warpcall_kernels._isin.filtered import (
    keep_candidates_kernel,
    mark_candidates_kernel,
    settle_kernel,
    sift_kernel,
)
from warpcall_kernels._isin.table import (
    FIRST_SHARE,
    JUDGED,
    RANGES,
    CandidateSet,
    Kind,
    SetPlan,
    Table,
)
from warpcall_kernels.op.launch import Launch

# Times are from an H200.

ZEROING = 264  # programs that zero a bitmap
FILL_BLOCK, FILL_WARPS = 512, 4  # elements and warps of a program that fills the filter
# Programs that sample it, and their warps. 2^22 int32 in 2^22: 160 us, 217 with one program of 16 warps.
JUDGING, JUDGE_WARPS = 32, 4
# By the bytes of a key, elements of a program that looks up in the filter. 2^26 int64 in 2^24: 537 us,
# 585 with 1,024 elements.
SIFT_BLOCK, SIFT_WARPS = {4: 1024, 8: 512}, 4
# By the same, elements and warps of a program that makes candidates the set, marks them, or settles
# their results. To mark these: 200 us, 270 with 128 elements and 2 warps.
LISTING = {4: (128, 2), 8: (64, 1)}
# Blocks of test elements that a program takes to mark candidates. On an H100, 2^22 dense int32 in 2^22, which
# have no candidates: 174 us, 192 with one block; sparse ones: 215 with both.
MARK_BLOCKS = 8
ZEROED = 1024  # words that a program zeroes at once


def plan_filtered(
    call: Mapping[str, Any],
    table: Table,
    kept: CandidateSet,
    shared: Mapping[str, Any],
    prepare: Launch,
    words: Sequence[Any],
) -> SetPlan:
    """The launches of FILTERED.

    Args:
        call: m and n, INVERT and COMMON.
        table: that of all test elements.
        kept: how the workspace lies in memory.
        shared: the arguments that kernels of this table take.
        prepare: the first launch, on test elements and the workspace.
        words: as for `launches` of plan.py.
    """
    m, n = call["m"], call["n"]
    every = {**shared, **call, **kept.arguments(table.bucket), "PROGRAMS": RANGES}
    every |= {"ZEROED": ZEROED, "FILL_BLOCK": FILL_BLOCK, "BLOCKS": MARK_BLOCKS}

    def step(
        kernel: Any, takes: str, programs: int, block: int, warps: int = 4, *, first: bool = False
    ) -> None:
        given = {**every, "FIRST": first}
        arguments = {key: given[key] for key in kernel.arg_names if key in given}
        arguments |= {"BLOCK": block, "num_warps": warps}
        types = {"x": words[0], "t": words[1], "w": None, "o": None}
        read_as = tuple(types[name] for name in takes)
        steps.append((Launch(kernel, (programs,), arguments, read_as), takes))

    steps = [(prepare, "tw")]
    if table.kind is Kind.EITHER:
        step(zero_bitmap_kernel, "w", ZEROING, 2 * ZEROED)
    blocks = triton.cdiv(n, FILL_BLOCK)
    first = triton.cdiv(blocks, FIRST_SHARE)
    step(fill_kernel, "tw", first, FILL_BLOCK, FILL_WARPS, first=True)
    step(judge_kernel, "xtw", JUDGING, JUDGED // JUDGING, JUDGE_WARPS)
    if blocks > first:
        step(fill_kernel, "tw", blocks - first, FILL_BLOCK, FILL_WARPS)
    sifted, (block, warps) = SIFT_BLOCK[table.itemsize], LISTING[table.itemsize]
    step(sift_kernel, "xwo", triton.cdiv(m, sifted), sifted, SIFT_WARPS)
    lists = kept.blocks(block)
    step(keep_candidates_kernel, "w", lists, block, warps)
    step(mark_candidates_kernel, "tw", triton.cdiv(n, block * MARK_BLOCKS), block, warps)
    step(settle_kernel, "xwo", lists, block, warps)
    return SetPlan(kept.words, table.word, tuple(steps))
