"""Traps of isin: empty sets, NaN, -0.0, sentinels in the data, chosen collisions, mixed dtypes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from warpcall_kernels import InvalidInput
from warpcall_kernels import isin as module
from warpcall_kernels.isin import DTYPES, isin, isin_reference

quiet = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
MANY = 1100  # test elements that are more than are compared with
NAN = float("nan")


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
    x = torch.arange(0, 120, device=device).to(one)
    test = torch.arange(40, 90, 7, device=device).to(other)
    test = torch.cat([test] * 200)

    assert torch.equal(isin(x, test), isin_reference(x, test))


def test_integers_are_compared_with_floats_as_the_common_dtype_rounds(device: str) -> None:
    x = tensor([2**24, 2**24 + 1, 2**24 + 2], torch.int64, device)
    test = tensor([2.0**24], torch.float32, device)

    assert isin(x, test).tolist() == [True, True, False]
    assert isin(x, padded(test, test)).tolist() == [True, True, False]


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


@pytest.mark.parametrize(
    ("m", "n", "dtype", "kernels"),
    [
        (100, 7, torch.int32, {"compare_kernel"}),
        (100, 1000, torch.int32, {"compare_kernel"}),
        (100, 2000, torch.uint8, {"build_small_kernel", "probe_kernel"}),
        (100, 2000, torch.int64, {"build_small_kernel", "probe_kernel"}),
        (100, 5000, torch.int64, {"range_kernel", "build_kernel", "probe_kernel"}),
        (100, 5000, torch.float32, {"build_kernel", "probe_kernel"}),
    ],
)
def test_each_regime_runs_its_kernels(
    m: int,
    n: int,
    dtype: torch.dtype,
    kernels: set[str],
    device: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launched: set[str] = set()
    for name in (
        "compare_kernel",
        "build_small_kernel",
        "range_kernel",
        "build_kernel",
        "probe_kernel",
    ):
        monkeypatch.setattr(module, name, _Noting(name, getattr(module, name), launched))
    x = torch.arange(m, device=device).to(dtype)
    test = torch.arange(0, 3 * n, 3, device=device).to(dtype)

    out = isin(x, test)

    assert launched == kernels
    assert torch.equal(out, isin_reference(x, test))


class _Noting:
    """A kernel that notes its launches."""

    def __init__(self, name: str, kernel: object, launched: set[str]) -> None:
        self._name, self._kernel, self._launched = name, kernel, launched

    def __getitem__(self, grid: object) -> object:
        self._launched.add(self._name)
        return self._kernel[grid]  # type: ignore[index]


def test_complex_numbers_are_refused() -> None:
    x = torch.zeros(2, dtype=torch.complex64)

    with pytest.raises(InvalidInput, match=r"elements must be one of .* got complex64") as refused:
        isin(x, x)

    assert refused.value.argument == "elements"


def test_the_full_bitmap_of_a_32_bit_type(device: str) -> None:
    if device != "cuda":
        pytest.skip("needs the memory of a GPU")
    test = torch.randint(-(2**31), 2**31, (1 << 25,), dtype=torch.int32, device=device)
    x = torch.cat(
        [test[:1000], torch.randint(-(2**31), 2**31, (10_000,), dtype=torch.int32, device=device)]
    )

    assert torch.equal(isin(x, test), torch.isin(x, test))
