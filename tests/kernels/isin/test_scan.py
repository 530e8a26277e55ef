"""SCAN of isin: elements as scalars, which are compared with all test elements."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.kernels.isin.forced import by_comparison, by_variant
from warpcall_kernels._isin import few_plan as module
from warpcall_kernels._isin.plan import DTYPES
from warpcall_kernels._isin.rule import SCANNED, SCANNED_PAIRS, Variant

pytestmark = pytest.mark.slow

NAN = float("nan")


def scan(
    x: Tensor, test: Tensor, invert: bool = False, constants: tuple[int, int, int] | None = None
) -> Tensor:
    """The result of SCAN, by (elements of a program, accesses, warps) if `constants` are given."""
    with pytest.MonkeyPatch.context() as patch:
        if constants:
            patch.setattr(module, "scanning", lambda *_: constants)
        return by_variant(Variant.SCAN, x, test, invert=invert)


SCANNED_TYPES = [dtype for dtype in DTYPES if dtype.itemsize > 2]


def some(count: int, dtype: torch.dtype, device: str, seed: int = 0) -> Tensor:
    """Values of which many are equal to others."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(-900, 900, (count,), generator=generator, device="cpu")
    return (drawn % 2 == 0 if dtype == torch.bool else drawn.to(dtype)).to(device)


@pytest.mark.thinned(together=1)
@pytest.mark.parametrize("dtype", SCANNED_TYPES, ids=str)
@pytest.mark.parametrize("sizes", [(1, 1), (3, 2), (17, 127), (16, 512), (9, 1025)])
def test_every_dtype_and_odd_sizes(sizes: tuple[int, int], dtype: torch.dtype, device: str) -> None:
    m, n = sizes
    x, test = some(m, dtype, device), some(n, dtype, device, seed=1)

    for invert in (False, True):
        assert torch.equal(scan(x, test, invert), by_comparison(x, test) ^ invert)


@pytest.mark.thinned
@pytest.mark.parametrize(
    "constants", [(1, 1, 1), (2, 2, 1), (4, 1, 2), (8, 2, 2), (16, 1, 4), (16, 2, 1)], ids=str
)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32, torch.float64])
@pytest.mark.parametrize("n", [1, 255, 256, 257, 1500, 2048])
def test_any_constants(
    n: int, dtype: torch.dtype, constants: tuple[int, int, int], device: str
) -> None:
    x, test = some(21, dtype, device), some(n, dtype, device, seed=1)

    assert torch.equal(scan(x, test, constants=constants), by_comparison(x, test))


@pytest.mark.parametrize("dtype", [torch.int32, torch.float32])
@pytest.mark.parametrize("m", [1, 31, 32, 33, 64])
def test_32_elements_of_a_program(m: int, dtype: torch.dtype, device: str) -> None:
    test = torch.arange(600, device=device).mul(7).to(dtype)
    x = torch.arange(-31, m - 31, device=device).neg().mul(7).to(dtype)

    assert torch.equal(scan(x, test, constants=(32, 1, 2)), by_comparison(x, test))


@pytest.mark.parametrize("place", ["first", "last", "of each chunk"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float64])
def test_each_test_element_is_compared(place: str, dtype: torch.dtype, device: str) -> None:
    n = 1400
    test = torch.full((n,), 7, dtype=dtype, device=device)
    at = {"first": [0], "last": [n - 1], "of each chunk": list(range(5, n, 100))}[place]
    test[at] = torch.arange(100, 100 + len(at), device=device).to(dtype)
    x = torch.arange(90, 120, device=device).to(dtype)

    assert torch.equal(scan(x, test, constants=(4, 1, 1)), by_comparison(x, test))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32])
def test_nothing_beyond_the_ends_is_compared(dtype: torch.dtype, device: str) -> None:
    stored = torch.arange(2000, device=device).to(dtype)
    stored[1000:] = 5  # beyond the test elements
    test, x = stored[10:1000], torch.full((13,), 5, dtype=dtype, device=device)
    room = torch.arange(1990, 2020, device=device).to(dtype)
    room[13:] = 500  # beyond the elements

    assert not scan(x, test).any()
    assert not scan(room[:13], test).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nan_is_in_nothing_and_minus_zero_is_zero(dtype: torch.dtype, device: str) -> None:
    x = torch.tensor([NAN, -0.0, 0.0, 1.0, float("inf"), -float("inf")], device=device).to(dtype)
    test = torch.tensor([NAN, 0.0, float("inf")] * 50, device=device).to(dtype)

    assert scan(x, test).tolist() == [False, True, True, False, True, False]
    assert scan(x, -test).tolist() == [False, True, True, False, False, True]
    assert scan(x, test, invert=True).tolist() == [True, False, False, True, False, True]


@pytest.mark.thinned(together=1)
@pytest.mark.parametrize("alike", ["all", "most", "elements", "none"])
@pytest.mark.parametrize("constants", [(4, 1, 1), (16, 2, 1)], ids=str)
def test_64_bits_that_agree_in_their_low_words(
    constants: tuple[int, int, int], alike: str, device: str
) -> None:
    low = torch.arange(-40, 300, device=device)  # negative ones, too: the high word is rounded
    high = {"all": 3, "most": 3, "elements": 0, "none": 1}[alike]
    test = low + (high << 32)
    if alike == "most":
        test[200] = 0
    if alike == "none":
        test = low + (torch.arange(len(low), device=device) << 32)
    x = torch.cat([low[:50], test[30:80], low[:60] + (3 << 32), test[-5:] ^ (1 << 63)])
    x = torch.cat([x, torch.tensor([-(2**63), 2**63 - 1, 2**31, -(2**31)], device=device)])
    expected = by_comparison(x, test)

    assert 0 < expected.sum() < len(x)
    assert torch.equal(scan(x, test, constants=constants), expected)
    assert torch.equal(scan(x, test, invert=True, constants=constants), ~expected)


def test_the_ends_of_64_bits(device: str) -> None:
    ends = [-(2**63), -(2**63) + 1, -(2**32), -(2**31) - 1, -(2**31), -1, 0, 1]
    ends += [2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1]
    x = torch.tensor(ends, device=device)
    for i in range(len(ends)):
        assert torch.equal(scan(x, x[i : i + 1]), by_comparison(x, x[i : i + 1]))
        assert torch.equal(scan(x, x[i : i + 2]), by_comparison(x, x[i : i + 2]))


@pytest.mark.thinned(together=1)
@pytest.mark.parametrize("one", [torch.int8, torch.int64, torch.float32, torch.bool])
@pytest.mark.parametrize("other", [torch.int32, torch.float32, torch.float64])
def test_mixed_dtypes(one: torch.dtype, other: torch.dtype, device: str) -> None:
    x, test = some(40, one, device), some(300, other, device, seed=1)

    assert torch.equal(scan(x, test), by_comparison(x, test))
    assert torch.equal(scan(test, x), by_comparison(test, x))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_unaligned_inputs(dtype: torch.dtype, device: str) -> None:
    x, test = some(50, dtype, device), some(1100, dtype, device, seed=1)

    assert torch.equal(scan(x[1:], test[3:]), by_comparison(x[1:], test[3:]))


@given(m=st.integers(1, 1 << 16), n=st.integers(1, 1 << 16), dtype=st.sampled_from(SCANNED_TYPES))
def test_constants_fit_the_kernel_wherever_it_may_be_taken(
    m: int, n: int, dtype: torch.dtype
) -> None:
    elements, loads, warps = module.scanning(DTYPES[dtype], m, n)

    assert elements <= (16 if dtype.itemsize == 8 else 32)  # as many bits as a word has beside one
    assert warps <= 16
    assert elements * warps <= module.SCAN_LIMIT
    assert all(number & (number - 1) == 0 for number in (elements, loads, warps))


@pytest.mark.parametrize(
    ("dtype", "m", "expected"),
    [
        (torch.int64, 1 << 10, 4),
        (torch.int64, (1 << 10) + 1, 16),
        (torch.int64, 1 << 13, 16),
        (torch.int32, 1 << 11, 8),
        (torch.int32, 1 << 14, 32),
    ],
)
def test_many_elements_of_64_bits_are_scanned_by_half_as_many_programs(
    dtype: torch.dtype, m: int, expected: int
) -> None:
    assert module.scanning(DTYPES[dtype], m, 1 << 12)[0] == expected


def test_the_most_pairs_are_far_fewer_than_a_32_bit_offset_can_say() -> None:
    assert all(most < 1 << 17 for pairs in SCANNED.values() for pair in pairs for most in pair)
    assert SCANNED_PAIRS < 1 << 31
