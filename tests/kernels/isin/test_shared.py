"""The shared variant of isin: each program makes a set of the test elements in shared memory.

Triton's interpreter compares with all test elements instead, so that it checks the launches and what they load and
store. The sets are checked on a GPU.
"""

from __future__ import annotations

import functools

import pytest
import torch
import triton.language as tl
from torch import Tensor

from tests.kernels.isin.forced import by_comparison, by_variant, planned
from warpcall_kernels._isin import few_plan as module
from warpcall_kernels._isin.few_plan import shared_set
from warpcall_kernels._isin.plan import DTYPES
from warpcall_kernels._isin.rule import MOST_SHARED, Variant, value_bytes
from warpcall_kernels._isin.shared import MOST_DECLARED
from warpcall_kernels._isin.table import Kind
from warpcall_kernels.compile.architectures import ARCHITECTURES, RESERVED_SHARED
from warpcall_kernels.op.launch import Launch, shared_bytes

pytestmark = pytest.mark.slow

WHOLE = [torch.int32, torch.int64]
FLOATS = [torch.float32, torch.float64]
SHORT = [torch.uint8, torch.int8, torch.int16, torch.float16, torch.bfloat16]
NAN = float("nan")
DECLARED = (
    48 << 10
)  # bytes of shared memory that a kernel may declare, with what Triton needs for itself
RESERVED = 1 << 10  # bytes of these that Triton may need
MOST_COMPARED = 1 << 22  # pairs of elements that Triton's interpreter compares in a second


def planned_shared(x: Tensor, test: Tensor) -> Launch:
    plan = planned(Variant.SHARED, x, test)
    assert isinstance(plan, Launch)
    return plan


by_shared = functools.partial(by_variant, Variant.SHARED)


@pytest.mark.thinned
@pytest.mark.parametrize("dtype", [*WHOLE, *FLOATS])
@pytest.mark.parametrize("n", [1, 2, 3, 8, 31, 129, 513, 1500, 4095])
@pytest.mark.parametrize("step", [3, 400_009], ids=["dense", "sparse"])
def test_any_number_of_test_elements_in_any_order(
    step: int, n: int, dtype: torch.dtype, device: str
) -> None:
    order = torch.randperm(n, device=device)
    test = (torch.arange(-(n // 2), n - n // 2, device=device) * step)[order].to(dtype)
    x = torch.cat([test, test + 1, test - 1, -test, test + 1024, test - 1024])[: 2 * n + 1500]

    assert torch.equal(by_shared(x, test), by_comparison(x, test))
    assert torch.equal(by_shared(x, test, invert=True), ~by_comparison(x, test))


@pytest.mark.thinned(together=1)
@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("n", [1, 40, 300, 30_000])
def test_every_value_of_a_short_type(n: int, dtype: torch.dtype, device: str) -> None:
    words = torch.arange(1 << 8 * min(dtype.itemsize, 2), device=device)
    every = words.to(torch.uint8 if dtype.itemsize == 1 else torch.int16).view(dtype)
    test = every[torch.randint(0, len(every), (n,), device=device)]
    # The interpreter would take minutes for every value.
    x = every[::61].contiguous() if device == "cpu" and len(every) * n > MOST_COMPARED else every

    assert torch.equal(by_shared(x, test), torch.isin(x, test) & ~torch.isnan(x))
    assert torch.equal(by_shared(x, test, invert=True), ~torch.isin(x, test) | torch.isnan(x))


@pytest.mark.thinned
@pytest.mark.parametrize("dtype", WHOLE)
@pytest.mark.parametrize("n", [2, 40, 1025, 4096])
@pytest.mark.parametrize("beyond", [-1, 0], ids=["fits", "does not fit"])
@pytest.mark.parametrize("end", ["least", "middle", "greatest"])
def test_the_bitmap_may_lie_anywhere_and_be_full(
    end: str,
    beyond: int,
    n: int,
    dtype: torch.dtype,
    device: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # There may be a bitmap for any number of elements.
    for name in ("MANY_ELEMENTS", "SOME_ELEMENTS"):
        monkeypatch.setattr(module, name, 0)
    info = torch.iinfo(dtype)
    arguments = planned_shared(*(torch.zeros(n, dtype=dtype),) * 2).arguments
    assert arguments["SET"] == "either"
    span = arguments["BITS"] + beyond
    low = {"least": info.min, "middle": -7, "greatest": info.max - span}[end]
    apart = torch.randint(0, span + 1, (n,), device=device).to(dtype)
    apart[0], apart[-1] = span, 0
    test = apart + low
    near = torch.cat([torch.arange(-40, 40, device=device).to(dtype) + e for e in (0, span)]) + low
    x = torch.cat([near, test, test + 1])  # it may wrap around

    assert torch.equal(by_shared(x, test), by_comparison(x, test))


@pytest.mark.parametrize("dtype", WHOLE)
@pytest.mark.parametrize("first", [0, -1])
@pytest.mark.parametrize("n", [3, 1600])
def test_the_least_and_the_greatest_integer_are_not_neighbours(
    n: int, first: int, dtype: torch.dtype, device: str
) -> None:
    info = torch.iinfo(dtype)
    ends = torch.tensor([info.min, info.max, info.min + 3], dtype=dtype, device=device)
    test = ends.roll(first).repeat(n)[:n]
    x = torch.cat([ends, ends + 1, ends - 1, torch.zeros_like(ends)])

    assert torch.equal(by_shared(x, test), by_comparison(x, test))


@pytest.mark.thinned
@pytest.mark.parametrize("apart", [1 << 30, 1 << 31, 1 << 32, 1 << 33, 1 << 62])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("n", [3, 1600])
def test_integers_that_differ_in_high_bits_only_differ(
    n: int, sign: int, apart: int, device: str
) -> None:
    test = torch.tensor([5, 7, 5 + sign * apart], device=device).repeat(n)[:n]
    x = torch.cat([test[:3], test[:3] + apart, test[:3] - apart, test[:3] + 2])

    assert torch.equal(by_shared(x, test), by_comparison(x, test))
    assert torch.equal(by_shared(x, test[:2]), by_comparison(x, test[:2]))


@pytest.mark.parametrize("dtype", [*WHOLE, *FLOATS])
def test_equal_test_elements(dtype: torch.dtype, device: str) -> None:
    x = torch.arange(-6, 6, device=device).to(dtype)
    for n in (1, 2, 33, 4096):
        test = torch.full((n,), -5, dtype=dtype, device=device)
        assert torch.equal(by_shared(x, test), by_comparison(x, test))
        test[n // 2] = 3
        assert torch.equal(by_shared(x, test), by_comparison(x, test))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [4, 5, 100, 4095])
def test_nan_is_in_no_set_and_minus_zero_is_zero(n: int, dtype: torch.dtype, device: str) -> None:
    for members in ([NAN, -0.0, float("-inf"), 1.5], [0.0, NAN], [1.5, NAN, -NAN], [NAN]):
        test = torch.tensor(members, dtype=dtype, device=device)
        x = torch.cat([test, -test, test + 1])
        repeated = test.repeat(n)[:n]

        assert torch.equal(by_shared(x, repeated), by_comparison(x, repeated))
        assert torch.equal(by_shared(x, repeated, invert=True), ~by_comparison(x, repeated))


@pytest.mark.thinned
@pytest.mark.parametrize("dtype", [*WHOLE, *FLOATS, torch.int16])
@pytest.mark.parametrize("step", [3, 400_009], ids=["dense", "sparse"])
@pytest.mark.parametrize("m", [3 * 1024, 4 * 1024 - 5, 5 * 1024 + 1])
@pytest.mark.parametrize("n", [20, 1500])
def test_a_program_looks_up_several_blocks(
    n: int, m: int, step: int, dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "multiprocessors", lambda: 1)
    monkeypatch.setattr(module, "OF_THREAD", ((m, 1, 32),))
    test = (torch.arange(n, device=device) * step).to(dtype)
    x = (torch.arange(m, device=device) * (step // 3)).to(dtype)

    assert planned_shared(x, test).arguments["blocks"] > 1
    assert torch.equal(by_shared(x, test), by_comparison(x, test))


@pytest.mark.parametrize("step", [1, 100], ids=["dense", "sparse"])
@pytest.mark.parametrize("n", [50, 1500])
def test_dtypes_may_differ(n: int, step: int, device: str) -> None:
    test = torch.arange(0, n * step, step, device=device)
    x = torch.tensor([0, 1, 49, 50, 100, -1, -128], dtype=torch.int8, device=device)
    truths = torch.tensor([True, False], device=device)

    for elements in (x, truths, x.int(), x.to(torch.uint8), x.half(), x.double()):
        assert torch.equal(by_shared(elements, test), by_comparison(elements, test))
    assert torch.equal(by_shared(test.int(), x.int()), by_comparison(test.int(), x.int()))


@pytest.mark.parametrize("dtype", [torch.int32, torch.float64])
@pytest.mark.parametrize("offset", [1, 2, 3])
def test_tensors_that_begin_anywhere(offset: int, dtype: torch.dtype, device: str) -> None:
    stored = torch.arange(3000, device=device).mul(977).to(dtype)
    x, test = stored[offset:1500], stored[offset + 700 : 2001]

    assert torch.equal(by_shared(x, test), by_comparison(x, test))


def check_fits(common: tl.dtype, m: int, n: int, room: int) -> None:
    """A set and what Triton needs fit into so many bytes, and slots stay empty."""
    size = 8 if common.primitive_bitwidth == 64 else 4
    kind, bits, slots = shared_set(common, m, n)
    declared = slots * size if slots * size <= MOST_DECLARED.value else 0

    assert bits // 8 + declared + RESERVED <= DECLARED
    assert bits // 8 + slots * size + RESERVED <= room
    assert kind is Kind.BITMAP or slots >= 2 * n
    assert kind is not Kind.BITMAP or bits == 1 << common.primitive_bitwidth


@pytest.mark.parametrize(
    "compiles_for", [one.capability for one in ARCHITECTURES.values()], indirect=True
)
def test_a_set_fits_into_shared_memory_and_half_of_its_slots_stay_empty(compiles_for: int) -> None:
    room = shared_bytes()
    assert room == ARCHITECTURES[f"sm_{compiles_for}"].shared_bytes - RESERVED_SHARED
    for common in dict.fromkeys(DTYPES.values()):
        most = MOST_SHARED[value_bytes(common)]
        for n in {1, most} | {
            (1 << k) + d for k in range(1, most.bit_length() - 1) for d in (0, 1)
        }:
            for m in (1, 1 << 18, 1 << 26):
                check_fits(common, m, n, room)


def test_what_the_set_is() -> None:
    assert shared_set(tl.int16, 1 << 26, 5) == (Kind.BITMAP, 1 << 16, 0)
    assert shared_set(tl.int64, 1 << 20, 1 << 8) == (Kind.HASH, 0, 1 << 12)
    assert shared_set(tl.int64, 1 << 20, (1 << 8) + 1) == (Kind.HASH, 0, 1 << 12)
    assert shared_set(tl.int64, 1 << 20, 1 << 10) == (Kind.HASH, 0, 1 << 13)
    assert shared_set(tl.int64, (1 << 20) + 1, 1 << 10) == (Kind.EITHER, 1 << 16, 1 << 13)
    assert shared_set(tl.float64, (1 << 20) + 1, 1 << 10) == (Kind.HASH, 0, 1 << 13)
    assert shared_set(tl.int64, 1 << 16, 1 << 12) == (Kind.HASH, 0, 1 << 14)
    assert shared_set(tl.int64, (1 << 16) + 1, 1 << 12) == (Kind.EITHER, 1 << 16, 1 << 14)
    assert shared_set(tl.int32, 1 << 20, 1 << 12) == (Kind.HASH, 0, 1 << 15)
