"""The interpreter computes as a GPU does, operation by operation."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.kernels.interpreter import arithmetic_kernels as kernels
from tests.kernels.interpreter import example_kernels
from warpcall_kernels.interpreter import CannotInterpret, libdevice

EXPECTED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add,
    "subtract": torch.sub,
    "multiply": torch.mul,
    "divide": torch.div,
    "less": lambda a, b: (a < b).to(a.dtype),
    "equal": lambda a, b: (a == b).to(a.dtype),
    "fma": lambda a, b: (a.double() * b.double() + a.double()).to(a.dtype),
    "maximum": torch.fmax,
    "where": lambda a, b: torch.where(a < b, a, torch.full_like(a, 1.5)),
}


@pytest.fixture(autouse=True)
def _interpreted(device: str) -> None:
    if device != "cpu":
        pytest.skip("nothing is interpreted on a GPU")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("name", kernels.OPERATIONS)
def test_an_operation_is_torchs_to_the_bit(name: str, dtype: torch.dtype) -> None:
    a, b = torch.randn(2, 512).to(dtype)
    b[::7] = a[::7]
    out = torch.empty_like(a)

    kernels.operation_kernel[(1,)](a, b, out, BLOCK=512, NAME=name)

    assert torch.equal(out, EXPECTED[name](a, b))


def test_constants_of_bf16_are_rounded() -> None:
    out = torch.empty(4, dtype=torch.bfloat16)

    kernels.constant_kernel[(1,)](out, BLOCK=4)

    assert torch.equal(out, -torch.full((4,), 1.7).bfloat16() * 2)


@pytest.mark.parametrize(
    ("dtype", "largest"), [(torch.float8_e4m3fn, 448), (torch.float8_e5m2, 57344)], ids=str
)
def test_a_cast_to_fp8_saturates_and_keeps_nan(dtype: torch.dtype, largest: int) -> None:
    x = torch.tensor([1e6, -1e6, math.inf, -math.inf, math.nan, 1.0, -0.0, 460.0])
    out = torch.empty(8, dtype=dtype)

    example_kernels.cast_kernel[(1,)](x, out, BLOCK=8)

    found = out.float().tolist()
    assert found[:4] == [largest, -largest, largest, -largest]
    assert math.isnan(found[4])
    assert found[5:7] == [1.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("keep_nan", [True, False])
def test_a_clamp_keeps_nan_only_if_it_is_asked_to(keep_nan: bool, dtype: torch.dtype) -> None:
    x = torch.tensor([-3.0, 0.5, 3.0, math.nan]).to(dtype)
    out = torch.empty_like(x)

    kernels.clamp_kernel[(1,)](x, out, BLOCK=4, KEEP_NAN=keep_nan)

    assert out[:3].tolist() == [-1.0, 0.5, 1.0]
    assert math.isnan(out[3]) if keep_nan else out[3] == -1


def test_arguments_may_be_booleans_numbers_and_none() -> None:
    out = torch.empty(2)

    kernels.scalars_kernel[(1,)](out, 0.25, True, None)

    assert out.tolist() == [-0.25, 0.75]


def test_numbers_have_the_types_that_the_kernel_annotates() -> None:
    """Others have 32 bits, as far as they fit."""
    floats, integers = torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.int64)

    kernels.annotated_kernel[(1,)](floats, integers, 0.1, 0.1, 1 << 20, 1 << 20)
    kernels.annotated_kernel[(1,)](
        fp_ptr=floats, int_ptr=integers, scale=0.3, plain=0.1, number=1 << 20, small=2
    )

    assert floats[0] == 0.3
    assert floats[1] == torch.tensor(0.1, dtype=torch.float32).double()
    assert integers.tolist() == [1 << 40, 4]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_the_upper_half_of_a_product_is_that_of_unsigned_numbers(dtype: torch.dtype) -> None:
    numbers = torch.randint(-(2**31), 2**31, (2, 16)).to(dtype)
    out = torch.empty(16, dtype=dtype)

    kernels.multiply_high_kernel[(1,)](numbers[0], numbers[1], out, BLOCK=16)

    size = 2 ** (8 * dtype.itemsize)
    for a, b, found in zip(*numbers.tolist(), out.tolist(), strict=True):
        assert found % size == (a % size) * (b % size) // size


def test_a_performance_model_chooses_among_configurations() -> None:
    out = torch.zeros(1, dtype=torch.int32)

    kernels.modelled_kernel[(1,)](out, 1)

    assert out.item() == 64


def test_the_hook_of_the_chosen_configuration_runs_once() -> None:
    out, notes = torch.zeros(1, dtype=torch.int32), list[int]()

    kernels.hooked_kernel[(1,)](out, notes)

    assert (out.item(), notes) == (16, [16])


@pytest.mark.parametrize(
    ("symbol", "x", "expected"),
    [
        ("__nv_expf", 0.5, math.exp(0.5)),
        ("__nv_fast_expf", 0.5, math.exp(0.5)),
        ("__nv_fast_fdividef", (3.0, 4.0), 0.75),
        ("__nv_acosf", 0.5, math.acos(0.5)),
        ("__nv_erff", 0.5, math.erf(0.5)),
        ("__nv_erfcf", 0.5, math.erfc(0.5)),
        ("__nv_lgammaf", 4.0, math.lgamma(4)),
        ("__nv_normcdff", 0.0, 0.5),
        ("__nv_fmaf", (2.0, 3.0, 4.0), 10.0),
        ("__nv_fdiv_rn", (1.0, 8.0), 0.125),
        ("__nv_rsqrtf", 4.0, 0.5),
        ("__nv_roundf", 2.5, 3.0),
        ("__nv_rintf", 2.5, 2.0),
        ("__nv_saturatef", 7.0, 1.0),
        ("__nv_powf", (2.0, 10.0), 1024.0),
        ("__nv_fdimf", (3.0, 5.0), 0.0),
        ("__nv_norm3df", (2.0, 3.0, 6.0), 7.0),
        ("__nv_cospif", 1.0, -1.0),
    ],
)
def test_functions_of_libdevice_are_right(
    symbol: str, x: float | tuple[float, ...], expected: float
) -> None:
    arguments = [np.array([value], np.float32) for value in (x if isinstance(x, tuple) else (x,))]

    found = libdevice.apply(symbol, arguments, np.dtype(np.float32))

    assert found.dtype == np.float32
    assert found.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("symbol", "x", "expected"),
    [
        ("__nv_clz", 1, 31),
        ("__nv_clz", -1, 0),
        ("__nv_clz", 0, 32),
        ("__nv_ffs", 8, 4),
        ("__nv_ffs", 0, 0),
        ("__nv_popc", -1, 32),
    ],
)
def test_functions_of_bits_are_right(symbol: str, x: int, expected: int) -> None:
    found = libdevice.apply(symbol, [np.array([x], np.int32)], np.dtype(np.int32))

    assert found.item() == expected


def test_the_bits_of_a_number_are_seen_as_another() -> None:
    one = np.array([1.0], np.float32)

    assert libdevice.apply("__nv_float_as_int", [one], np.dtype(np.int32)).item() == 0x3F800000


def test_a_function_that_is_not_computed_says_so() -> None:
    with pytest.raises(CannotInterpret, match="__nv_fadd_rz"):
        libdevice.function_of("__nv_fadd_rz")
