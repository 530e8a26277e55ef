"""Traps of isin: empty sets, NaN, -0.0, sentinels in the data, chosen collisions, mixed dtypes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
import triton.language as tl
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.kernels.isin.forced import by_comparison, leave_out_shared, planned_set
from warpcall_kernels import InvalidInput
from warpcall_kernels._isin import plan as module
from warpcall_kernels._isin import rule
from warpcall_kernels._isin.plan import DTYPES, TAKEN, launches
from warpcall_kernels._isin.rule import MOST_MARKED, Variant
from warpcall_kernels._isin.table import Table, factor_of
from warpcall_kernels.isin import isin, isin_reference, run_plan
from warpcall_kernels.op.launch import Launch

pytestmark = pytest.mark.slow

quiet = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
MANY = 1100  # test elements that are more than are compared with
NAN = float("nan")


@pytest.fixture(autouse=True, scope="module")
def _without_scan_and_shared(device: str) -> Iterator[None]:
    """The rule as it is for more of both: without SCAN and SHARED, which would take all calls of this file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rule, "SCANNED_PAIRS", 0)
        leave_out_shared(patch)
        if device == "cpu":  # the interpreter runs one program after the other
            patch.setattr(module, "PREPARING", 8)
            patch.setattr(module, "BUILT", ((rule.EVERY, 256, 1),))
        module.plan.cache_clear()
        yield
    module.plan.cache_clear()


def tensor(values: object, dtype: torch.dtype, device: str) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=device)


def padded(test: Tensor, filler: Tensor) -> Tensor:
    """The same set with so many members more that it becomes a bitmap or hash set."""
    return torch.cat([test, filler.expand(MANY)])


@pytest.mark.parametrize("invert", [False, True])
def test_nothing_is_in_an_empty_set_and_everything_is_not(invert: bool, device: str) -> None:
    x = torch.arange(5, device=device)

    out = isin(x, x[:0], invert=invert)

    assert torch.equal(out, torch.full_like(x, invert, dtype=torch.bool))


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_nan_is_in_nothing_and_minus_zero_is_zero(
    dtype: torch.dtype, many: bool, device: str
) -> None:
    x = tensor([NAN, -0.0, 0.0, 1.0, float("inf"), -float("inf")], dtype, device)
    test = tensor([NAN, 0.0, float("inf")], dtype, device)
    test = padded(test, test[:1]) if many else test

    assert isin(x, test).tolist() == [False, True, True, False, True, False]
    assert isin(x, -test).tolist() == [False, True, True, False, False, True]
    assert isin(x, test, invert=True).tolist() == [True, False, False, True, False, True]


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8])
@pytest.mark.parametrize("many", [False, True])
def test_extreme_values_are_as_any_other(dtype: torch.dtype, many: bool, device: str) -> None:
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    x = tensor([low, low + 1, 0, 1, high - 1, high], dtype, device)
    for members in ([low], [high], [low, high], [0], [1, high]):
        test = tensor(members, dtype, device)
        test = padded(test, test[:1]) if many else test

        assert torch.equal(isin(x, test).cpu(), torch.isin(x.cpu(), test.cpu()))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32, torch.float64])
def test_a_set_of_equal_members_is_found_and_built_in_time(dtype: torch.dtype, device: str) -> None:
    x = torch.arange(-3, 3, device=device).to(dtype)
    test = torch.full((5000,), -2, dtype=dtype, device=device)

    assert isin(x, test).tolist() == [False, True, False, False, False, False]


@pytest.mark.parametrize("step", [1 << 20, 1 << 12, 1 << 8, 3])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_members_that_agree_in_their_low_or_high_bits(
    step: int, dtype: torch.dtype, device: str
) -> None:
    test = (torch.arange(2000, dtype=torch.int64) * step).to(dtype).to(device)
    x = torch.arange(-500, 3000, dtype=torch.int64).mul(step).to(dtype).to(device)

    assert torch.equal(isin(x, test).cpu(), torch.isin(x.cpu(), test.cpu()))


@pytest.mark.parametrize("one", DTYPES, ids=str)
@pytest.mark.parametrize("other", DTYPES, ids=str)
def test_mixed_dtypes_are_compared_in_their_common_one(
    one: torch.dtype, other: torch.dtype, device: str
) -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(-70_000, 70_000, (400,), generator=generator, device="cpu")
    x = drawn[:300].to(one).to(device)
    test = drawn[200:].to(other).to(device)
    many = torch.cat([test] * 6)

    assert torch.equal(isin(x, test), by_comparison(x, test))
    assert torch.equal(isin(x, many), by_comparison(x, test))
    assert torch.equal(isin_reference(x, many), by_comparison(x, test))


def test_integers_are_compared_with_floats_as_the_common_dtype_rounds(device: str) -> None:
    x = tensor([2**24, 2**24 + 1, 2**24 + 2], torch.int64, device)
    test = tensor([2.0**24], torch.float32, device)

    assert isin(x, test).tolist() == [True, True, False]
    assert isin(x, padded(test, test)).tolist() == [True, True, False]


def test_integers_become_bf16_by_way_of_fp32_as_in_torch(device: str) -> None:
    x = tensor([2**31 + 2**23 + 1], torch.int64, device)  # fp32 loses the 1, bf16 then the tie
    test = tensor([2.0**31], torch.bfloat16, device)

    assert torch.equal(x.to(torch.bfloat16), test)
    assert isin(x, test).tolist() == [True]
    assert isin(x, padded(test, test)).tolist() == [True]


def _keys_of_one_bucket(count: int, table: Table, bits: int) -> list[int]:
    """Keys that the hash sends to the last bucket of the table: it is a bijection, here undone."""
    width, half = 1 << bits, bits // 2
    factor = factor_of(tl.uint32 if bits == 32 else tl.uint64)
    spread = 0x85EBCA6B if bits == 32 else 0x9E3779B97F4A7C15
    bucket = table.slots // table.bucket - 1
    keys = []
    for i in range(count):
        mixed = (((bucket << table.shift) << (bits - 32)) + i) * pow(spread, -1, width) % width
        keys.append((mixed ^ (mixed >> half)) * pow(factor, -1, width) % width)
    return keys


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_members_of_one_bucket_are_found_past_the_end_of_the_table(
    dtype: torch.dtype, device: str
) -> None:
    bits, count = 8 * dtype.itemsize, 50 * 90
    large = planned_set(Variant.LARGE, dtype, 100, count)
    slots = large.launches[-1][0].arguments["slots"]
    whole = Table.of(DTYPES[dtype], count)._replace(slots=slots)
    keys = _keys_of_one_bucket(100, whole, bits)
    values = torch.tensor([k - (1 << (bits - 1)) for k in keys], device=device).to(dtype)

    out = run_plan(large, values, values[:50].repeat(90))

    assert out.tolist() == [True] * 50 + [False] * 50


@pytest.mark.thinned
@pytest.mark.parametrize("variant", list(Variant))
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32, torch.float64])
@pytest.mark.parametrize("step", [3, 400_000], ids=["dense", "sparse"])
@pytest.mark.parametrize("n", [1, 2, 50])
def test_every_variant_says_the_same(
    n: int, step: int, dtype: torch.dtype, variant: Variant, device: str
) -> None:
    invert = n % 2 == 0
    whole = not dtype.is_floating_point
    low, high = (torch.iinfo(dtype).min, torch.iinfo(dtype).max) if whole else (-0.0, NAN)
    first = torch.arange(0, n * step, step, device=device).to(dtype)
    odd = tensor([low, high, 0], dtype, device)
    for test in (first, first.flip(0).repeat(2), odd.repeat(n)[: n + 2], first[:1].expand(n)):
        test = test.contiguous()
        x = torch.cat([test[: n // 2], first - 1, odd, first + 1, first * 2])
        x = x[-MOST_MARKED:] if variant is Variant.MARK else x
        planned = launches(variant, DTYPES[dtype], len(x), len(test), invert, (None, None))

        assert torch.equal(run_plan(planned, x, test), by_comparison(x, test) ^ invert)


def test_assume_unique_changes_nothing_where_it_is_not_so(device: str) -> None:
    x = tensor([3, 3, 4, 4, 5], torch.int32, device)
    test = tensor([5, 3, 3], torch.int32, device)

    assert isin(x, test, assume_unique=True).tolist() == [True, True, False, False, True]
    assert isin(x, padded(test, test[:1]), assume_unique=True, invert=True).tolist() == [
        *(False, False, True, True, False)
    ]


@pytest.mark.parametrize("value", [7, 8])
def test_both_may_have_no_dims(value: int, device: str) -> None:
    out = isin(tensor(value, torch.int64, device), tensor(7, torch.int32, device))

    assert out.shape == ()
    assert out.item() == (value == 7)


@pytest.mark.parametrize("shape", [(7, 300), (300, 7), (7, 300, 5)])
def test_what_only_repeats_itself_is_not_read(
    shape: tuple[int, ...], device: str, launched: list[Launch]
) -> None:
    members = torch.arange(0, 600, 2, device=device).view(*(n if n == 300 else 1 for n in shape))
    x = torch.arange(500, device=device)

    once, found = isin(x, members), isin(x, members.expand(shape))

    assert torch.equal(found, x % 2 == 0)
    assert torch.equal(found, once)
    half = len(launched) // 2
    assert [launch.arguments for launch in launched[half:]] == [
        launch.arguments for launch in launched[:half]
    ]


def test_any_strides_are_read_as_they_stand(device: str) -> None:
    stored = torch.arange(6000, dtype=torch.int32, device=device).mul(977).reshape(60, 100)
    x, test = stored.t()[3:, ::3], stored[1::2, :-1]

    assert torch.equal(isin(x, test), by_comparison(x, test))
    assert torch.equal(
        isin(x[:1].expand(5, 20), test.t()), by_comparison(x[:1], test).expand(5, 20)
    )


@given(
    members=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40),
    others=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40),
    dtype=st.sampled_from([torch.int8, torch.int16, torch.int32, torch.int64]),
    copies=st.sampled_from([1, 60, 300]),
    invert=st.booleans(),
)
@quiet
def test_any_members(
    members: list[int],
    others: list[int],
    dtype: torch.dtype,
    copies: int,
    invert: bool,
    device: str,
) -> None:
    test = torch.tensor(members * copies, dtype=torch.int64).to(dtype)
    x = torch.tensor(others + members, dtype=torch.int64).to(dtype)

    out = isin(x.to(device), test.to(device), invert=invert)

    assert torch.equal(out.cpu(), torch.isin(x, test, invert=invert))


@given(n=st.integers(1, 1 << 33), dtype=st.sampled_from(list(DTYPES)))
@example(n=1 << 31, dtype=torch.int64)  # as many buckets as the hash has values
@example(n=1 << 33, dtype=torch.int64)
@example(n=(1 << 12) + 1, dtype=torch.float64)
@example(n=(1 << 25) - 1, dtype=torch.float32)
@quiet
def test_a_table_is_mostly_empty_and_no_larger_than_the_limits_say(
    n: int, dtype: torch.dtype
) -> None:
    whole = Table.of(DTYPES[dtype], n)

    word = 8 if dtype.itemsize == 8 else 4
    workspace = whole.words * word
    assert 0 <= whole.shift <= 32
    assert (1 << (32 - whole.shift)) <= whole.slots // whole.bucket
    if dtype.itemsize <= 2:
        assert whole.slots * 32 >= 1 << (8 * dtype.itemsize)
        assert workspace <= 8300
    else:
        assert whole.slots >= 4 * n or (whole.kind == "bits" and whole.slots * 32 == 1 << 32)
        assert workspace <= max(32 * word, 8.5 * n * dtype.itemsize) + 128


UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)


@pytest.mark.parametrize("other", [d for d in TAKEN if d != torch.bfloat16])
@pytest.mark.parametrize("dtype", UNSIGNED)
def test_unsigned_integers_are_compared_in_the_common_dtype_of_numpy(
    dtype: torch.dtype, other: torch.dtype, device: str
) -> None:
    def extremes(dtype: torch.dtype) -> Tensor:
        if dtype == torch.bool:
            return torch.tensor([False, True], device=device)
        if dtype.is_floating_point:
            values = [-1.0, 0.0, 1.0, 65504.0, 2.0**32, 2.0**63, 2.0**64]
            return torch.tensor(values, dtype=torch.float64, device=device).to(dtype)
        limits = torch.iinfo(dtype)
        values = [
            limits.min,
            0,
            1,
            limits.max // 2,
            limits.max // 2 + 1,
            limits.max - 1,
            limits.max,
        ]
        return torch.tensor(values, dtype=dtype, device=device)

    for x, test in ((extremes(dtype), extremes(other)), (extremes(other), extremes(dtype))):
        found = isin(x, test)

        a, b = x.cpu().numpy(), test.cpu().numpy()
        common = np.promote_types(a.dtype, b.dtype)  # np.isin leaves it out for few test elements
        assert found.tolist() == np.isin(a.astype(common), b.astype(common)).tolist()
        assert torch.equal(isin_reference(x, test), found)


def test_bf16_becomes_as_wide_as_fp16_beside_unsigned_integers(device: str) -> None:
    x = torch.tensor([257, 256, 65535], dtype=torch.uint16, device=device)

    found = isin(x, torch.tensor([257.0, 65535.0], dtype=torch.bfloat16, device=device))

    assert found.tolist() == [False, True, False]  # they are 256 and 65536 in bf16


def test_complex_numbers_are_refused() -> None:
    x = torch.zeros(2, dtype=torch.complex64)

    with pytest.raises(InvalidInput, match=r"elements must be one of .* got complex64") as refused:
        isin(x, x)

    assert refused.value.argument == "elements"


def test_tensors_on_two_devices_are_refused(device: str) -> None:
    x = torch.zeros(2, device=device)

    with pytest.raises(InvalidInput, match=r"device of elements, .*, got meta") as refused:
        isin(x, x.to("meta"))

    assert refused.value.argument == "test_elements"


def test_the_full_bitmap_of_a_32_bit_type(device: str) -> None:
    if device != "cuda":
        pytest.skip("needs the memory of a GPU")
    test = torch.randint(-(2**31), 2**31, (1 << 25,), dtype=torch.int32, device=device)
    x = torch.cat(
        [test[:1000], torch.randint(-(2**31), 2**31, (10_000,), dtype=torch.int32, device=device)]
    )

    assert torch.equal(isin(x, test), torch.isin(x, test))
