"""out[i] = whether elements[i] equals any of the test elements.

Few test elements are held in registers, and each element is compared with all of them. The same is done
with more test elements if there are few elements. Otherwise, some thousand test elements become a set
in the shared memory of each program: a hash set, or a bitmap if they lie close together. More become a
set in device memory, a bitmap or a hash set, which is built and then probed. If the elements are not
more than the test elements, a Bloom filter of them rejects most test elements, and the others become
the set. If the L2 does not hold the set of the test elements, a filter of these rejects most elements
first. The variants are in `_isin/plan.py`. They depend on shapes and dtypes alone, so that nothing
waits for the GPU.

Bytes: elements are read once, and test elements once or, where programs have sets of their own, once by
each program, from the L2 mostly. One byte is written for each element. A set in device memory comes on
top, with a header of 16 words and a table:

- 128 B for 8-bit types, 8 KB for 16-bit types, 512 MiB for the full bitmap of a 32-bit type;
- for others, 4 to 8 slots of 4 or 8 bytes for each member, or up to 32 for each of few members;
- if the elements become the filter, as many slots as if they were the members, but at least one for every 8
  test elements if there are up to 2^20 of these; and for each slot another byte for the filter, or 4 to 8
  bytes for a second bitmap;
- if there is a filter of the test elements, up to 5.5 words more for each of them.

Source: FlagGems' isin (https://github.com/flagos-ai/FlagGems) for the comparison and its limits. It
continues with a binary search in sorted test elements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from warpcall_kernels._isin.plan import TAKEN, UNSIGNED, check_dtypes, plan
from warpcall_kernels._isin.rule import NARROW, WIDE
from warpcall_kernels._isin.table import SetPlan
from warpcall_kernels._transpose.contiguous import contiguous
from warpcall_kernels.op.cases import SHORT_DTYPES, Case, Sample, Values
from warpcall_kernels.op.declaration import (
    Input,
    Meta,
    Op,
    Output,
    Param,
    Size,
    TensorLike,
    TunedConstants,
    dtype_name,
)
from warpcall_kernels.op.errors import InvalidInput
from warpcall_kernels.op.launch import Launch, layout_key, runs_kernel
from warpcall_kernels.op.registration import may_skip_dispatcher, register


def isin_reference(
    elements: Tensor, test_elements: Tensor, assume_unique: bool = False, invert: bool = False
) -> Tensor:
    """What isin computes, in plain torch. `torch.isin` takes no bool and, before 2.12, no bf16.

    Both inputs are promoted before the call, because `torch.isin` removes equal elements before it
    promotes. Two integers that round to the same float would then be found in any set that is large
    enough to be sorted.
    """
    elements, test_elements = _without_unsigned(elements, test_elements)
    common = torch.promote_types(elements.dtype, test_elements.dtype)
    exact = torch.float32 if common.itemsize == 2 and common.is_floating_point else common
    exact = torch.uint8 if common == torch.bool else exact
    a, b = (t.to(common).to(exact) for t in (elements, test_elements))
    return torch.isin(a, b.reshape(-1), invert=invert)


def _without_unsigned(elements: Tensor, test_elements: Tensor) -> tuple[Tensor, Tensor]:
    """Tensors of the `DTYPES` that are equal where these are, in the common dtype that numpy has for
    uint16, uint32 and uint64: torch has none.
    """
    dtypes = elements.dtype, test_elements.dtype
    if UNSIGNED.keys().isdisjoint(dtypes):
        return elements, test_elements
    check_dtypes(elements, test_elements)
    # numpy has no bfloat16. With these integers it would become as wide as float16 does.
    names = (dtype_name(d).replace("bfloat16", "float16") for d in dtypes)
    common = getattr(torch, np.promote_types(*names).name)
    same_bits = UNSIGNED.get(common, common)
    return elements.to(common).view(same_bits), test_elements.to(common).view(same_bits)


def _launch(
    elements: Tensor, test_elements: Tensor, assume_unique: bool = False, invert: bool = False
) -> Tensor:
    elements, test_elements = _without_unsigned(elements, _without_repeats(test_elements))
    elements, test_elements = contiguous(elements), contiguous(test_elements)
    planned = plan(layout_key(elements), layout_key(test_elements), invert)
    if elements.device != test_elements.device:
        raise InvalidInput(
            "test_elements",
            f"test_elements must be on the device of elements, {elements.device}, "
            f"got {test_elements.device}",
        )
    if planned is None:  # an empty set has no members
        return elements.new_full(elements.shape, invert, dtype=torch.bool)
    if not runs_kernel(elements):
        return isin_reference(elements, test_elements, invert=invert)
    return run_plan(planned, elements, test_elements)


def _without_repeats(t: Tensor) -> Tensor:
    """The tensor without the dims along which it only repeats itself: they add nothing to a set."""
    if 0 not in t.stride():
        return t
    for dim, (size, stride) in enumerate(zip(t.shape, t.stride(), strict=True)):
        if size > 1 and stride == 0:
            t = t.narrow(dim, 0, 1)
    return t


def run_plan(planned: Launch | SetPlan, elements: Tensor, test_elements: Tensor) -> Tensor:
    """Launch what was planned for two contiguous tensors."""
    out = torch.empty_like(elements, dtype=torch.bool)
    if isinstance(planned, Launch):
        planned(elements, test_elements, out)
        return out
    ws = elements.new_empty(planned.words, dtype=planned.word)
    tensors = {"x": elements, "t": test_elements, "w": ws, "o": out}
    for launch, takes in planned.launches:
        launch(*[tensors[name] for name in takes])
    return out


def _infer(
    elements: TensorLike,
    test_elements: TensorLike,
    assume_unique: bool = False,
    invert: bool = False,
) -> dict[str, Meta]:
    check_dtypes(elements, test_elements)
    return {"out": Meta(tuple(elements.shape), torch.bool)}


_op = register("isin", _launch, _infer)


def isin(
    elements: Tensor, test_elements: Tensor, assume_unique: bool = False, invert: bool = False
) -> Tensor:
    """Say of each element whether it is among the test elements.

    Both are promoted to their common dtype first (`torch.promote_types`, or `numpy.promote_types`
    with uint16, uint32 or uint64), so int64 against fp32 compares what the integers round to. NaN is in nothing, -0.0 equals 0.0, and nothing is in an
    empty set. Nothing here waits for the GPU, so that it can be captured in a CUDA graph. Beside
    the result, many test elements need device memory for a set: see the limits of `OP`.

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
    if may_skip_dispatcher(elements, test_elements):
        return _launch(elements, test_elements, assume_unique, invert)
    result: Tensor = _op(elements, test_elements, assume_unique, invert)
    return result


def _bytes_moved(
    elements: Meta, test_elements: Meta, assume_unique: bool = False, invert: bool = False
) -> int:
    out = Meta(tuple(elements.shape), torch.bool)
    return elements.nbytes + test_elements.nbytes + out.nbytes


def _derive(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    params: Mapping[str, Any],
    test_elements: int,
    values: Values,
) -> dict[str, Sample]:
    high = 4 * max(1, test_elements)  # of "integers": one element in five is found, or so
    return {
        "elements": Sample(shape, dtype, values, 0, high),
        "test_elements": Sample((test_elements,), dtype, values, 0, high),
    }


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
    values: Values = "integers" if kind == "dense" else "normal"
    return Case(
        f"M={m} N={n} {SHORT_DTYPES[dtype]} {kind}",
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
    _small("a few hundred i32, dense", (66_000,), 300, torch.int32, high=1000),
    _small("300 i32, few elements", (1000,), 300, torch.int32, high=1000),
    _small("2000 i64, few elements", (999,), 2000, torch.int64, values="normal"),
    _small("5000 fp32, few elements", (501,), 5000, torch.float32, values="special"),
    _small("300 fp64, few elements", (51,), 300, torch.float64, high=400, invert=True),
    _small("2000 i32, sparse", (17_000,), 2000, torch.int32, values="normal"),
    _small("2000 i64, dense", (16_999,), 2000, torch.int64, high=10_000, invert=True),
    _small("2000 fp32, special", (17_000,), 2000, torch.float32, values="special"),
    _small("2000 fp64", (17_001,), 2000, torch.float64, high=3000),
    _small("2000 fp16", (2001,), 2000, torch.float16, values="special"),
    _small("2000 bf16 in i16", (2001,), 2000, torch.bfloat16, torch.int16),
    _small("2000 u8 in i8", (2001,), 2000, torch.uint8, torch.int8),
    _small("2000 u16", (2001,), 2000, torch.uint16, high=1 << 16),
    _small("300 u32", (1000,), 300, torch.uint32, high=1 << 31),
    _small("2000 u64 in i64", (501,), 2000, torch.uint64, torch.int64, high=10_000),
    _small("2000 bool", (1200,), 1100, torch.bool, values="normal"),
    _small("5000 i32, several programs", (17_500,), 5000, torch.int32, high=40_000),
    _small("5000 i64, several programs", (17_500,), 5000, torch.int64, values="normal"),
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

# Sizes that no kernel was tuned for.
SWEEP = tuple(
    _large(*call)
    for call in (
        (10_000_019, 0, torch.int32, "sparse"),
        (10_000_019, 1, torch.int64, "sparse"),
        (10_000_019, 33, torch.int32, "sparse"),
        (10_000_019, 4_099, torch.float32, "sparse"),
        (10_000_019, 70_001, torch.int64, "dense"),
        (10_000_019, 1 << 24, torch.int64, "sparse"),
        (1_000_003, 1 << 24, torch.float64, "sparse"),
        (10_000_019, 100_003, torch.float16, "sparse"),
        (10_000_019, 1 << 22, torch.uint8, "sparse"),
        (101, 1 << 22, torch.int32, "dense"),
    )
)

COMMON = tuple(
    _small("common", (m,), n, dtype)
    for m in (100, 1000, 1 << 20)
    for n in (1, 3, 10, 16, 100, 1000, 10_000, 1 << 16, 1 << 20)
    for dtype in (torch.float32, torch.int32, torch.int16, torch.uint8)
)

TUNING = (
    TunedConstants(
        "_isin.table",
        ("LARGE_SLOTS", "FILTER_SLOTS"),
        [(4, 32), (4, 16), (4, 64), (2, 16)],
        ("M=67108864 N=16777216 i64",),
    ),
    TunedConstants(
        "_isin.table",
        ("BLOOM_BYTES", "SECOND_BYTES"),
        [(6, 2), (5, 2), (8, 2), (6, 1), (6, 4)],
        ("M=67108864 N=16777216 i32 sparse", "M=67108864 N=16777216 i64 sparse"),
    ),
    TunedConstants(
        "_isin.plan",
        ("BUILT",),
        [
            (((1 << 15, 32, 1), (1 << 62, 64, 1)),),
            (((1 << 15, 32, 1), (1 << 62, 128, 4)),),
            (((1 << 62, 32, 1),),),
        ],
        ("M=16777216 N=1048576 i32 sparse", "M=67108864 N=16777216 i64 sparse"),
    ),
    TunedConstants(
        "_isin.few_plan",
        ("SLOTS_OF_TEST", "OF_MORE"),
        [(16, 8), (16, 4), (8, 8), (32, 8)],
        ("M=16777216 N=256 i32 sparse", "M=1048576 N=1024 i32 sparse", "M=1048576 N=1024 i64"),
    ),
    TunedConstants(
        "_isin.few_plan",
        ("MANY_BYTES", "WARPS_OF_MANY"),
        [(32, 32), (16, 32), (64, 32), (32, 64)],
        ("M=16777216 N=256 i64 sparse",),
    ),
)

OP = Op(
    name="isin",
    function=isin,
    reference=isin_reference,
    infer=_infer,
    bytes_moved=_bytes_moved,
    inputs=(
        Input("elements", TAKEN, "[...]", "what is looked for"),
        Input("test_elements", TAKEN, "[...]", "the set it is looked for in"),
    ),
    outputs=(
        Output("out", "as elements", "bool: whether each element is in the set", dtype=torch.bool),
    ),
    equivalent="torch.isin(elements, test_elements, invert=invert)",
    cases=CASES,
    common=COMMON,
    sweep=SWEEP,
    tuning=TUNING,
    params=(
        Param("assume_unique", "bool", "accepted for torch's sake, without effect", default=False),
        Param("invert", "bool", "say whether each element is not in the set", default=False),
    ),
    limits=(
        "many test elements take device memory for a set: 8.3 KB at most for types of 1 or 2 "
        "bytes; for others 8.5 times the test elements (13.5 times if they are more than "
        f"{NARROW.unfiltered:,} integers of 32 bits, or {WIDE.unfiltered:,} values of 64 bits), or "
        "up to 32 times if this is at most 4 MiB, or 16.5 times if this is at most 8 MiB; "
        "or 10 times the elements, or up to 4 MiB, if these become the set: "
        "if there are at least 32,768 to 131,072 test elements, by the dtype, and 1 to 4 times as many "
        "as elements; and 5 KB at most"
    ),
    derive=_derive,
    sizes=(
        Size("test_elements", "how many test elements", 1024),
        Size(
            "values",
            "normal (of integers, any) are rarely found, integers often",
            "normal",
            choices=("normal", "integers"),
        ),
    ),
)
