"""out[i] = whether elements[i] equals any of the test elements, without sorting.

Three ways, chosen from shapes and dtypes alone, so that nothing waits for the GPU:

- few test elements: a block of elements stays in registers and is compared with each of them;
- 8- and 16-bit types, and 32-bit ones with very many test elements: a bitmap of all values;
- otherwise a set in device memory that is built, then asked: a bitmap if the test elements are
  integers that span no more values than it has bits (the device decides), else a hash set of
  buckets of one 8-byte access each. Up to SMALL_N test elements, one program builds it.

Bytes: elements and test elements read once, one byte written per element. The set comes on top, a
header of 16 words and: 8-bit types 128 B, 16-bit 8 KB; 16 to 32 slots per test element up to SMALL_N,
then 4 to 8, of 4 or 8 bytes; the full bitmap of a 32-bit type 512 MiB.
Compare-all and its limits: FlagGems' isin (https://github.com/flagos-ai/FlagGems), which goes on to a
binary search in sorted test elements.
"""

from __future__ import annotations

import functools
import math
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from warpcall_kernels._cases import Case, Sample, Values
from warpcall_kernels._errors import InvalidInput
from warpcall_kernels._isin_kernels import (
    HEADER,
    build_kernel,
    build_small_kernel,
    compare_kernel,
    probe_kernel,
    range_kernel,
)
from warpcall_kernels._op import Input, Meta, Op, Output, Param, TensorLike
from warpcall_kernels._torch import Launch, Layout, direct, layout, meta, register, runs_kernel

# Crossovers. A comparison costs an H200 one instruction, 1.5e13 of them a second; building the
# smallest set costs some 5 us.
COMPARE_N = 32  # test elements that are compared with whatever the number of elements
COMPARE_PAIRS = 1 << 26  # comparisons that cost less than a set
COMPARE_MAX_N = 1 << 10  # beyond it the loop of a block is longer than building a set
SMALL_N = 1 << 12  # test elements that one program inserts
SMALL_SLOTS = 16  # slots a test element then: nearly every key is alone; 2000 int32 fit into an L1
LARGE_SLOTS = 4  # slots a test element otherwise: a load of 1/8 to 1/4
MIN_SLOTS = 32
FULL_BITMAP_N = (
    1 << 25
)  # test elements of 32-bit types from which all 2^32 bits are the smaller set
ACCESS_BYTES = 8  # of a bucket: what one thread reads at once
# Elements of a program that builds or asks a large set: few wait for the last of them. 2^24 int32 in
# 2^20 on an H200: 200 us; 240 with 512 elements; 985 with 1024 and 4 warps.
SET_BLOCK = 128
SET_WARPS = 2
UNROLL = 8  # test elements compared between two branches of the loop
FILTERED_BYTES = 1 << 26  # of a hash set, from which most of it is not in the L2
FILTER_SLOTS = 16  # for each word of its filter
SHORT_BLOCK = 128  # elements of a program, one a thread, where there are fewer than SOME
SOME = 1 << 17
BLOCK = 1024  # elements of a program, 8 for each thread of 4 warps
LONG_BLOCK = 2048  # of a program of the compare kernel when there are many
MANY = 1 << 20  # elements that keep every multiprocessor busy in long blocks

# Multipliers of the hash, new in every process: test elements cannot be made to collide on purpose.
_FACTOR_32 = 2 * secrets.randbits(30) + 1
_FACTOR_64 = 2 * secrets.randbits(61) + (1 << 62) + 1

DTYPES = {
    torch.bool: tl.uint8,
    torch.uint8: tl.uint8,
    torch.int8: tl.int8,
    torch.int16: tl.int16,
    torch.int32: tl.int32,
    torch.int64: tl.int64,
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
    torch.float64: tl.float64,
}


def isin_reference(
    elements: Tensor, test_elements: Tensor, assume_unique: bool = False, invert: bool = False
) -> Tensor:
    """What isin computes, in plain torch, which itself takes neither bool nor, before 2.12, bf16.

    Both are promoted beforehand: `torch.isin` drops equal elements first and promotes then, so that
    two integers that round to the same float are found in any set that is large enough to sort.
    """
    common = torch.promote_types(elements.dtype, test_elements.dtype)
    exact = torch.float32 if common.itemsize == 2 and common.is_floating_point else common
    exact = torch.uint8 if common == torch.bool else exact
    a, b = (t.to(common).to(exact) for t in (elements, test_elements))
    return torch.isin(a, b.reshape(-1), invert=invert)


def _launch(
    elements: Tensor, test_elements: Tensor, assume_unique: bool = False, invert: bool = False
) -> Tensor:
    elements, test_elements = elements.contiguous(), test_elements.contiguous()
    plan = _plan(layout(elements), layout(test_elements), invert)
    if elements.device != test_elements.device:
        raise InvalidInput(
            "test_elements",
            f"test_elements must be on the device of elements, {elements.device}, "
            f"got {test_elements.device}",
        )
    if plan is None:  # nothing is in an empty set
        return elements.new_full(elements.shape, invert, dtype=torch.bool)
    if not runs_kernel(elements):
        return isin_reference(elements, test_elements, invert=invert)
    out = elements.new_empty(elements.shape, dtype=torch.bool)
    if isinstance(plan, Launch):
        plan(elements, test_elements, out)
        return out
    make = elements.new_zeros if plan.zeroed else elements.new_empty
    ws = make(plan.words, dtype=plan.word)
    if plan.find_range is not None:
        plan.find_range(test_elements, ws)
    plan.build(test_elements, ws)
    plan.probe(elements, ws, out)
    return out


class SetPlan(NamedTuple):
    """The launches that build a set in a workspace and ask it.

    Args:
        words: of type `word`, which the workspace holds; `zeroed` beforehand or not.
        find_range: on (test elements, workspace), where the device decides what kind of set it is.
        build: on (test elements, workspace).
        probe: on (elements, workspace, out).
    """

    words: int
    word: torch.dtype
    zeroed: bool
    find_range: Launch | None
    build: Launch
    probe: Launch


@functools.lru_cache(maxsize=4096)
def _plan(elements: Layout, test_elements: Layout, invert: bool) -> Launch | SetPlan | None:
    """For contiguous tensors: compare all with all, on (elements, test elements, out), or a set.

    None if one of them is empty.
    """
    _infer(meta(elements), meta(test_elements))
    dtypes = elements[2], test_elements[2]
    m, n = math.prod(elements[0]), math.prod(test_elements[0])
    if m == 0 or n == 0:
        return None
    common = DTYPES[torch.promote_types(*dtypes)]
    words = [tl.uint8 if d == torch.bool else None for d in dtypes]
    if n <= COMPARE_N or (n <= COMPARE_MAX_N and m * n <= COMPARE_PAIRS):
        block = LONG_BLOCK if m >= MANY else BLOCK if m >= SOME else SHORT_BLOCK
        arguments = {"m": m, "n": n, "INVERT": invert, "COMMON": common}
        arguments |= {"UNROLL": UNROLL, "BLOCK": block}
        return Launch(compare_kernel, (triton.cdiv(m, block),), arguments, (*words, None))
    return _set_plan(Table.of(common, n), common, m, n, invert, words)


def _set_plan(
    table: Table, common: Any, m: int, n: int, invert: bool, words: Sequence[Any]
) -> SetPlan:
    wide = common.primitive_bitwidth == 64
    filtered = table.filter_words > 0
    shared = {
        "slots": table.slots,
        "factor": _FACTOR_64 if wide else _FACTOR_32,
        "shift": table.shift,
        "SET": table.kind,
        "BUCKET": table.bucket,
        "COMMON": common,
        "KEY": tl.uint64 if wide else tl.uint32,
    }
    block, warps = (BLOCK, 4) if table.small else (SET_BLOCK, SET_WARPS)
    filter_shift = 33 - table.filter_words.bit_length() if filtered else 0
    how = {"filter_shift": filter_shift, "FILTER": filtered, "BLOCK": block, "num_warps": warps}
    probe = {**shared, **how, "m": m, "INVERT": invert}
    find_range = None
    if table.small:
        small = {**shared, "n": n, "BLOCK": 2 * BLOCK, "num_warps": 16}
        build = Launch(build_small_kernel, (1,), small, (words[1], None))
    else:
        if table.kind == "either":
            arguments = {"n": n, "COMMON": common, "KEY": shared["KEY"], "BLOCK": BLOCK}
            find_range = Launch(range_kernel, (triton.cdiv(n, BLOCK),), arguments, (words[1], None))
        build = Launch(
            build_kernel, (triton.cdiv(n, block),), {**shared, **how, "n": n}, (words[1], None)
        )
    return SetPlan(
        words=table.words,
        word=torch.uint64 if wide else torch.uint32,
        zeroed=not table.small,
        find_range=find_range,
        build=build,
        probe=Launch(probe_kernel, (triton.cdiv(m, block),), probe, (words[0], None, None)),
    )


class Table(NamedTuple):
    """How a set lies in memory."""

    kind: str  # "bits", "hash", or "either", where the device decides
    slots: int  # words of the table, a power of two
    bucket: int  # slots that are read at once
    small: bool  # whether one program builds it
    itemsize: int  # bytes of a word

    @classmethod
    def of(cls, common: Any, n: int) -> Table:
        """The table for n test elements of the Triton dtype `common`."""
        bits, small = common.primitive_bitwidth, n <= SMALL_N
        bucket = 1 if small or bits == 64 else ACCESS_BYTES // 4
        if bits <= 16 or (bits == 32 and n >= FULL_BITMAP_N):
            return cls("bits", max(MIN_SLOTS, (1 << bits) // 32), bucket, small, 4)
        slots = triton.next_power_of_2(n * (SMALL_SLOTS if small else LARGE_SLOTS))
        kind = "hash" if common.is_floating() else "either"
        return cls(kind, max(MIN_SLOTS, slots), bucket, small, 8 if bits == 64 else 4)

    @property
    def filter_words(self) -> int:
        """32-bit words of the filter, a power of two: 8 to 16 bits a test element; 0 for none."""
        large = self.kind != "bits" and self.slots * self.itemsize > FILTERED_BYTES
        return self.slots // FILTER_SLOTS if large else 0

    @property
    def words(self) -> int:
        """Words of the workspace."""
        return HEADER + self.slots + self.filter_words * 4 // self.itemsize

    @property
    def shift(self) -> int:
        """What leaves, of 32 bits of hash, as many as number the buckets; all for 2^32 and more."""
        return max(0, 33 - (self.slots // self.bucket).bit_length())


def _infer(
    elements: TensorLike,
    test_elements: TensorLike,
    assume_unique: bool = False,
    invert: bool = False,
) -> dict[str, Meta]:
    for name, t in (("elements", elements), ("test_elements", test_elements)):
        if t.dtype not in DTYPES:
            allowed = ", ".join(str(d).removeprefix("torch.") for d in DTYPES)
            got = str(t.dtype).removeprefix("torch.")
            raise InvalidInput(name, f"{name} must be one of {allowed}, got {got}")
    return {"out": Meta(tuple(elements.shape), torch.bool)}


_op = register("isin", _launch, _infer)


def isin(
    elements: Tensor, test_elements: Tensor, assume_unique: bool = False, invert: bool = False
) -> Tensor:
    """Say of each element whether it is among the test elements.

    Both are promoted to their common dtype first (`torch.promote_types`), so int64 against fp32
    compares what the integers round to. NaN is in nothing, -0.0 equals 0.0, and nothing is in an
    empty set. Nothing here waits for the GPU, so that it can be captured in a CUDA graph. Beside the
    result, more than 32 test elements need device memory for a set: see the limits of `OP`.

    Args:
        elements: [...], bool, integer or float; copied if not contiguous.
        test_elements: [...], the same device; copied if not contiguous.
        assume_unique: accepted as `torch.isin` does; it changes neither result nor speed.
        invert: say whether it is not among them.

    Returns:
        bool of the shape of `elements`, contiguous.

    Raises:
        InvalidInput: another dtype, or tensors on different devices.
    """
    if direct(elements, test_elements):
        return _launch(elements, test_elements, assume_unique, invert)
    result: Tensor = _op(elements, test_elements, assume_unique, invert)
    return result


def _bytes_moved(
    elements: Meta, test_elements: Meta, assume_unique: bool = False, invert: bool = False
) -> int:
    out = Meta(tuple(elements.shape), torch.bool)
    return elements.nbytes + test_elements.nbytes + out.nbytes


def _small(
    name: str,
    shape: Sequence[int],
    n: int,
    dtype: torch.dtype,
    test_dtype: torch.dtype | None = None,
    values: Values = "integers",
    high: int = 100,
    invert: bool = False,
) -> Case:
    return Case(
        name,
        {
            "elements": Sample(tuple(shape), dtype, values, 0, high),
            "test_elements": Sample((n,), test_dtype or dtype, values, 0, high),
        },
        {"invert": invert},
    )


def _large(m: int, n: int, dtype: torch.dtype, kind: str) -> Case:
    names = {torch.int32: "i32", torch.int64: "i64", torch.float32: "fp32"}
    values: Values = "integers" if kind == "dense" else "normal"
    return Case(
        f"M={m} N={n} {names[dtype]} {kind}",
        {
            "elements": Sample((m,), dtype, values, 0, 4 * n),
            "test_elements": Sample((n,), dtype, values, 0, 4 * n),
        },
        {"invert": "invert" in kind, "assume_unique": "assume_unique" in kind},
        size="large",
    )


_SIZES = [(1 << 10, 1 << 6), (1 << 20, 1 << 4), (1 << 20, 1 << 10), (1 << 20, 1 << 16)]
_SIZES += [(1 << 24, 1 << 6), (1 << 24, 1 << 8), (1 << 24, 1 << 20), (1 << 26, 1 << 24)]
_STRIDED = Case(
    "strided against transposed",
    {
        "elements": Sample((31, 33), torch.int32, "integers", layout="strided"),
        "test_elements": Sample((5, 9), torch.int32, "integers", layout="transposed"),
    },
)

CASES = (
    _small("few i32", (33, 31), 7, torch.int32),
    _small("few fp32", (4, 5, 6), 20, torch.float32, values="special"),
    _small("a few hundred i32, dense", (1000,), 300, torch.int32, high=1000),
    _small("2000 i32, sparse", (3000,), 2000, torch.int32, values="normal"),
    _small("2000 i64, dense", (2999,), 2000, torch.int64, high=10_000, invert=True),
    _small("2000 fp32, special", (3000,), 2000, torch.float32, values="special"),
    _small("2000 fp64", (2001,), 2000, torch.float64, high=3000),
    _small("2000 fp16", (2001,), 2000, torch.float16, values="special"),
    _small("2000 bf16 in i16", (2001,), 2000, torch.bfloat16, torch.int16),
    _small("2000 u8 in i8", (2001,), 2000, torch.uint8, torch.int8),
    _small("2000 bool", (1200,), 1100, torch.bool, values="normal"),
    _small("5000 i32, several programs", (1500,), 5000, torch.int32, high=40_000),
    _small("5000 i64, several programs", (1500,), 5000, torch.int64, values="normal"),
    _small("no test elements", (5, 7), 0, torch.int32),
    _small("no test elements, inverted", (5, 7), 0, torch.int32, invert=True),
    _small("no elements", (0, 3), 5, torch.float32),
    _small("one element", (), 1, torch.int64),
    _STRIDED,
    *(_large(m, n, torch.int32, "sparse") for m, n in _SIZES),
    *(_large(m, n, torch.int32, "dense") for m, n in _SIZES),
    *(_large(m, n, torch.int64, "sparse") for m, n in _SIZES),
    *(_large(m, n, torch.float32, "sparse") for m, n in _SIZES),
    _large(1 << 20, 1 << 16, torch.int64, "sparse,invert"),
    _large(589_808, 65_536, torch.int64, "sparse,assume_unique"),
    _large(589_751, 65_534, torch.int32, "sparse,assume_unique"),
    _large(1 << 24, 1 << 20, torch.int64, "sparse,invert"),
    _large(9_436_839, 1 << 20, torch.int64, "sparse,assume_unique"),
)

OP = Op(
    name="isin",
    function=isin,
    reference=isin_reference,
    infer=_infer,
    bytes_moved=_bytes_moved,
    inputs=(
        Input("elements", tuple(DTYPES), "[...]", "what is looked for"),
        Input("test_elements", tuple(DTYPES), "[...]", "the set it is looked for in"),
    ),
    outputs=(Output("out", "as elements", "bool: whether each element is in the set"),),
    equivalent="torch.isin(elements, test_elements, invert=invert)",
    cases=CASES,
    params=(
        Param("assume_unique", "bool", "accepted for torch's sake, without effect", default=False),
        Param("invert", "bool", "say whether each element is not in the set", default=False),
    ),
    limits=(
        "more than 32 test elements take device memory for a set: 8.3 KB at most for types of 1 or 2 "
        "bytes; for others 8.5 times the test elements (32 times if these are up to "
        f"{SMALL_N:,}) and 128 bytes at most"
    ),
)
