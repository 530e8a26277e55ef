"""How FILTERED of isin is launched (`filtered.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import triton

from warpcall_kernels._isin.bloom import begin_kernel, fill_kernel, judge_kernel
from warpcall_kernels._isin.filtered import (
    add_candidates_kernel,
    keep_tests_kernel,
    settle_kernel,
    sift_kernel,
)
from warpcall_kernels._isin.table import (
    FIRST_SHARE,
    JUDGED,
    RANGES,
    SEGMENTS,
    CandidateSet,
    SetPlan,
    Table,
    taken_by,
)
from warpcall_kernels.op.launch import Launch

# Times are from an H200.

FILL_BLOCK, FILL_WARPS = 512, 8  # elements and warps of a program that fills the filter
# Programs that sample it, and their warps. 2^22 int32 in 2^22, before there was a second filter: 160 us with
# half as many, 217 with one program of 16 warps.
JUDGING, JUDGE_WARPS = 64, 4
# By the bytes of a key, elements of a program that looks up in the filter. 2^26 int64 in 2^24: 537 us,
# 585 with 1,024 elements.
SIFT_BLOCK, SIFT_WARPS = {4: 1024, 8: 512}, 4
# Elements of the block of a program that works on the list or keeps test elements, and its warps. There are
# as many programs as a GPU of 132 multiprocessors holds, or nearly: SHARING for each segment of the list.
KEEP_BLOCK, KEEP_WARPS = 128, 4
KEEPING, SHARING = 132 * 16, 16
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
    every |= {"ZEROED": ZEROED, "FILL_BLOCK": FILL_BLOCK, "FILTER": table.filter_words > 0}

    def step(kernel: Any, takes: str, programs: int, block: int, warps: int) -> None:
        arguments = taken_by(kernel, {**every, "BLOCK": block, "num_warps": warps})
        types = {"x": words[0], "t": words[1], "w": None, "o": None}
        read_as = tuple(types[name] for name in takes)
        steps.append((Launch(kernel, (programs,), arguments, read_as), takes))

    steps = [(prepare, "tw")]
    blocks = triton.cdiv(n, FILL_BLOCK)
    first = triton.cdiv(blocks, FIRST_SHARE)
    step(begin_kernel, "tw", first, FILL_BLOCK, FILL_WARPS)
    step(judge_kernel, "xtw", JUDGING, JUDGED // JUDGING, JUDGE_WARPS)
    step(fill_kernel, "tw", max(1, blocks - first), FILL_BLOCK, FILL_WARPS)
    sifted = SIFT_BLOCK[table.itemsize]
    step(sift_kernel, "xwo", triton.cdiv(m, sifted), sifted, SIFT_WARPS)
    listing = SEGMENTS * min(SHARING, triton.cdiv(kept.room, KEEP_BLOCK))
    step(add_candidates_kernel, "w", listing, KEEP_BLOCK, KEEP_WARPS)
    step(keep_tests_kernel, "tw", min(KEEPING, triton.cdiv(n, KEEP_BLOCK)), KEEP_BLOCK, KEEP_WARPS)
    step(settle_kernel, "xtwo", listing, KEEP_BLOCK, KEEP_WARPS)
    return SetPlan(kept.words, table.word, tuple(steps))
