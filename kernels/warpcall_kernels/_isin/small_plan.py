"""How SMALL of isin is launched: one launch builds the set, and the lookup overlaps with it.

| set | taken when | why |
| --- | --- | --- |
| bitmap | types of 1 or 2 bytes; other integers if the device finds that their range fits into the table | one access for each element |
| search tree | all others of more than 2 bytes | many programs find the places of test elements by comparing each with all; nothing is zeroed |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import triton

from warpcall_kernels._isin.hash_set import HEADER
from warpcall_kernels._isin.small import (
    build_bits_kernel,
    build_tree_kernel,
    probe_bits_kernel,
    probe_tree_kernel,
)
from warpcall_kernels._isin.table import MIN_SLOTS, Kind, SetPlan, Table
from warpcall_kernels.op.launch import Launch, overlaps_launches

# Times are from an H100.

# Words of the bitmap for each test element, where the set may be a tree. A tree takes 1 of them.
TREE_SLOTS = 4
# Test elements whose numbers in the tree a program finds, how many it compares with these at once, and
# its warps; and those for up to FEWER_RANKED test elements. 2^16 sparse int64 in 2^9 on an H200: 7.5 us,
# 8.1 with 4 warps.
RANKED, RANK_PART, RANKING_WARPS = 8, 512, 4
FEWER_RANKED, RANKING_WARPS_OF_FEWER = 1 << 10, 8
# Elements of a program that looks up in a tree, and its warps; and its warps for up to FEW keys of 32 bits
# and MANY elements or more. 2^26 sparse int32 in 2^4: 122 us, 130 with 8 warps.
TREE_BLOCK, TREE_WARPS, TREE_WARPS_OF_MANY = 1024, 8, 4
FEW, MANY = 1 << 10, 1 << 23
# Elements and warps of such a program for at least LARGE_TREE keys of 64 bits and SOME elements. With fewer
# programs, the tree is loaded less often. 2^20 sparse int64 in 2^11 on an H200: 18.4 us, 19.3 with TREE_BLOCK.
LARGE_TREE_BLOCK, LARGE_TREE_WARPS, LARGE_TREE, SOME = 2048, 16, 1 << 9, 1 << 19
BITS_BLOCK, BITS_WARPS = 1024, 4  # the same for a bitmap of all values of a type
BUILDING, BUILD_WARPS = 2048, 16  # least room for members, and warps, of the program that builds
ZEROED = 1024  # words of a bitmap that the first program zeroes at once


def plan_small(call: Mapping[str, Any], table: Table, key: Any, words: Sequence[Any]) -> SetPlan:
    """The launches of SMALL.

    Args:
        call: m and n, INVERT and COMMON.
        table: that of LARGE, which says whether the set is a bitmap of all values of a type.
        key: the Triton dtype of a key.
        words: as for `launches` of plan.py.
    """
    if table.kind is not Kind.BITMAP:
        return _tree(call, table, key, words)
    m, n = call["m"], call["n"]
    shared = {"COMMON": call["COMMON"], "KEY": key}
    build = {**shared, "n": n, "words": table.words, "num_warps": BUILD_WARPS}
    build["BLOCK"] = max(BUILDING, triton.next_power_of_2(n))
    probe = {**shared, "m": m, "INVERT": call["INVERT"]}
    probe |= {"BLOCK": BITS_BLOCK, "num_warps": BITS_WARPS}
    kernels = build_bits_kernel, probe_bits_kernel
    return _overlapping(kernels, 1, build, probe, table.words, table.word, words)


def _tree(call: Mapping[str, Any], table: Table, key: Any, words: Sequence[Any]) -> SetPlan:
    m, n, common = call["m"], call["n"], call["COMMON"]
    levels = max(1, (n - 1).bit_length())
    slots = max(MIN_SLOTS, TREE_SLOTS << levels)
    shared = {"slots": slots, "COMMON": common, "KEY": key, "LEVELS": levels}
    shared["SET"] = table.kind.value if table.kind is Kind.EITHER else "tree"
    ranked = min(1 << levels, RANKED)
    build = {**shared, "n": n, "RANKED": ranked, "PART": min(1 << levels, RANK_PART)}
    build |= {"BLOCK": ZEROED, "num_warps": RANKING_WARPS}
    if n <= FEWER_RANKED:
        build["num_warps"] = RANKING_WARPS_OF_FEWER
    many = m >= MANY and n <= FEW and common.primitive_bitwidth == 32
    probe = {**shared, "m": m, "INVERT": call["INVERT"], "BLOCK": TREE_BLOCK}
    probe["num_warps"] = TREE_WARPS_OF_MANY if many else TREE_WARPS
    if common.primitive_bitwidth == 64 and n >= LARGE_TREE and m >= SOME:
        probe |= {"BLOCK": LARGE_TREE_BLOCK, "num_warps": LARGE_TREE_WARPS}
    kernels = build_tree_kernel, probe_tree_kernel
    programs = (1 << levels) // ranked
    return _overlapping(kernels, programs, build, probe, HEADER + slots, table.word, words)


def _overlapping(
    kernels: tuple[Any, Any],
    programs: int,
    build: Mapping[str, Any],
    probe: Mapping[str, Any],
    total: int,
    word: torch.dtype,
    words: Sequence[Any],
) -> SetPlan:
    """Both launches. Where a device can, the second begins while the first runs."""
    overlaps = overlaps_launches()
    first, second = ({**arguments, "PDL": overlaps} for arguments in (build, probe))
    if overlaps:
        second["launch_pdl"] = True
    grid = (triton.cdiv(second["m"], second["BLOCK"]),)
    steps = (
        (Launch(kernels[0], (programs,), first, (words[1], None)), "tw"),
        (Launch(kernels[1], grid, second, (words[0], None, None)), "xwo"),
    )
    return SetPlan(total, word, steps)
