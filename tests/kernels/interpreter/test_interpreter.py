"""The interpreter that the other kernel tests lean on tells the truth."""

from __future__ import annotations

import ast
import gc
import traceback
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction, TensorHandle

from tests.kernels.interpreter import example_kernels as kernels


@pytest.fixture(autouse=True)
def _interpreted(device: str) -> None:
    if device != "cpu":
        pytest.skip("nothing is interpreted on a GPU")


@pytest.mark.parametrize("n", [1, 31, 32, 33, 64])
def test_a_masked_copy_stays_in_bounds_and_is_right(n: int) -> None:
    x = torch.randn(n)
    out = torch.empty(n)

    kernels.copy_kernel[(2,)](x, out, n, MASKED=True, BLOCK=32)

    assert torch.equal(out, x)


def test_a_load_past_the_end_is_an_index_error() -> None:
    x, out = torch.randn(30), torch.empty(32)

    with pytest.raises(IndexError, match="load of 4 bytes at byte 120 of x_ptr, which has 120"):
        kernels.copy_kernel[(1,)](x, out, 32, MASKED=True, BLOCK=32)


def test_an_error_in_a_kernel_ends_with_the_line_of_the_kernel() -> None:
    x, out = torch.randn(30), torch.empty(32)

    with pytest.raises(IndexError) as raised:
        kernels.copy_kernel[(1,)](x, out, 32, MASKED=True, BLOCK=32)

    last = traceback.extract_tb(raised.value.__traceback__)[-1]
    assert (last.name, last.line) == (
        "copy_kernel",
        "x = tl.load(x_ptr + offsets, mask=offsets < n)",
    )


def test_a_store_past_the_end_is_an_index_error_even_inside_a_larger_storage() -> None:
    x, storage = torch.randn(30), torch.zeros(64)

    with pytest.raises(IndexError, match="store of 4 bytes at byte 120 of out_ptr"):
        kernels.copy_kernel[(1,)](x, storage[:30], 30, MASKED=False, BLOCK=32)

    assert not storage.any()


def test_an_access_before_the_start_is_an_index_error() -> None:
    lock = torch.zeros(4, dtype=torch.int32)

    with pytest.raises(IndexError, match="byte -4 of lock_ptr"):
        kernels.swap_kernel[(1,)](lock, -1)


def test_an_empty_tensor_has_no_bytes_to_touch() -> None:
    with pytest.raises(IndexError, match="out of bounds in 32 lanes"):
        kernels.copy_kernel[(1,)](torch.empty(0), torch.empty(32), 32, MASKED=True, BLOCK=32)


def test_an_atomic_out_of_bounds_is_an_index_error() -> None:
    x = torch.tensor([0, 1, 5], dtype=torch.int32)

    with pytest.raises(IndexError, match="atomic of 4 bytes"):
        kernels.count_kernel[(1,)](x, torch.zeros(5, dtype=torch.int32), 3, BLOCK=4)


def test_atomics_count_equal_targets() -> None:
    x = torch.tensor([0, 1, 1, 4, 1], dtype=torch.int32)
    counts = torch.zeros(5, dtype=torch.int32)

    kernels.count_kernel[(1,)](x, counts, 5, BLOCK=8)

    assert counts.tolist() == [1, 3, 0, 0, 1]


def test_bf16_arithmetic_rounds_after_every_operation() -> None:
    a, b = torch.randn(2, 1024).bfloat16()
    out = torch.empty(1024, dtype=torch.bfloat16)

    kernels.multiply_add_kernel[(1,)](a, b, out, BLOCK=1024)

    assert torch.equal(out, a * b + a)


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2], ids=str
)
def test_a_cast_rounds_to_nearest_even(dtype: torch.dtype) -> None:
    ties = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-11, 2**-130, 0.0, -0.0, 1.0625, 1.125])
    x = torch.cat([torch.randn(1016), ties])
    out = torch.empty(1024, dtype=dtype)

    kernels.cast_kernel[(1,)](x, out, BLOCK=1024)

    assert torch.equal(out.view(torch.uint8), x.to(dtype).view(torch.uint8))


def test_bf16_survives_the_way_to_fp32_and_special_values_the_way_back() -> None:
    x = torch.tensor([float("inf"), -float("inf"), -0.0, 3.4e38, 1e-40, 1.0, 2.0, 3.0])
    narrow = torch.empty(8, dtype=torch.bfloat16)
    wide = torch.empty(8)

    kernels.cast_kernel[(1,)](x, narrow, BLOCK=8)
    kernels.cast_kernel[(1,)](narrow, wide, BLOCK=8)

    assert torch.equal(narrow.view(torch.int16), x.bfloat16().view(torch.int16))
    assert torch.equal(wide, narrow.float())


def test_minima_and_maxima_prefer_numbers_to_nan_as_a_gpu_does() -> None:
    x = torch.tensor([float("nan"), -1.0, 2.0, float("nan")])
    out = torch.empty(5)

    kernels.maximum_kernel[(1,)](x, out, BLOCK=4)

    assert out.tolist() == [0.0, 0.0, 2.0, 0.0, 2.0]


def test_a_reduction_of_nothing_but_nan_is_nan() -> None:
    out = torch.empty(5)

    kernels.maximum_kernel[(1,)](torch.full((4,), float("nan")), out, BLOCK=4)

    assert out[4].isnan()


def test_device_functions_and_reductions_run() -> None:
    out = torch.empty(1)

    kernels.row_sum_kernel[(1,)](torch.arange(64.0), out, BLOCK=64)

    assert out.item() == 2 * 63 * 32


@pytest.mark.parametrize(
    ("axis", "numbers"), [(0, [15, 26, 37, 48]), (1, [1234, 5678])], ids=["columns", "rows"]
)
def test_a_reduction_by_a_function_takes_each_number_once_and_in_order(
    axis: int, numbers: list[int]
) -> None:
    x, out = (
        torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]]),
        torch.zeros(len(numbers), dtype=torch.int64),
    )

    kernels.digits_kernel[(1,)](x, out, ROWS=2, COLUMNS=4, AXIS=axis)

    assert out.tolist() == numbers


def test_a_dot_of_fp32_rounds_to_tf32_unless_asked_otherwise() -> None:
    a, b = torch.randn(2, 16, 16)
    exact, rounded = torch.empty(16, 16), torch.empty(16, 16)

    kernels.dot_kernel[(1,)](a, b, exact, PRECISION="ieee")
    kernels.dot_kernel[(1,)](a, b, rounded, PRECISION="tf32")

    torch.testing.assert_close(exact, a @ b)
    assert 1e-5 < (rounded - exact).abs().max() < 2e-2


def test_a_dot_of_bf16_accumulates_in_fp32() -> None:
    a, b = torch.randn(2, 16, 16).bfloat16()
    out = torch.empty(16, 16)

    kernels.dot_kernel[(1,)](a, b, out, PRECISION="tf32")

    torch.testing.assert_close(out, a.float() @ b.float())


def test_a_device_assert_asserts() -> None:
    kernels.assert_kernel[(1,)](torch.tensor([0, 1]), BLOCK=2)

    with pytest.raises(AssertionError, match="x must not be negative"):
        kernels.assert_kernel[(1,)](torch.tensor([0, -1]), BLOCK=2)


def test_libdevice_functions_are_numpys() -> None:
    x = torch.randn(8)
    out = torch.empty(8)

    kernels.tanh_kernel[(1,)](x, out, BLOCK=8)

    torch.testing.assert_close(out, x.tanh())


def test_an_operation_on_one_tensor_is_not_replayed_for_two() -> None:
    a, b = torch.tensor([2.0, 3.0]), torch.tensor([5.0, 7.0])
    out = torch.empty(4)

    kernels.square_then_product_kernel[(1,)](a, b, out, BLOCK=2)

    assert out.tolist() == [4.0, 9.0, 10.0, 21.0]


@pytest.mark.parametrize(("addend", "total"), [(True, 1.0), (1, 2.0), (1.0, 2.0), (1.5, 2.5)])
def test_an_operation_with_a_constant_is_not_replayed_for_another(
    addend: float, total: float
) -> None:
    out = torch.empty(1)

    kernels.plus_kernel[(1,)](torch.ones(1), out, ADDEND=addend)

    assert out.item() == total


@pytest.mark.parametrize("other", [0, 7])
def test_an_operation_that_reads_a_value_is_not_replayed_for_another(other: int) -> None:
    out = torch.empty(1)

    kernels.load_or_kernel[(1,)](torch.ones(1), out, 0, other)

    assert out.item() == other


def test_what_is_added_to_the_language_after_a_launch_can_be_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, out = torch.full((1,), 3.0), torch.empty(1)
    kernels.plus_kernel[(1,)](x, out, ADDEND=1)

    @tl.core.builtin
    def twice(value: Any, _semantic: Any = None) -> Any:
        return _semantic.add(value, value, False)

    monkeypatch.setattr(tl, "twice", twice, raising=False)
    kernels.twice_kernel[(1,)](x, out)

    assert out.item() == 6.0


def test_the_language_is_afterwards_what_it_was() -> None:
    before = [vars(part).copy() for part in (tl, tl.core, tl.math, tl.tensor)]

    kernels.plus_kernel[(1,)](torch.ones(1), torch.empty(1), ADDEND=1)

    assert [vars(part).copy() for part in (tl, tl.core, tl.math, tl.tensor)] == before


def test_a_kernel_is_rewritten_while_garbage_is_collected_that_parses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A finalizer that reports an exception parses lines of its traceback."""
    monkeypatch.setattr(InterpretedFunction, "rewritten_fn", {})
    threshold = gc.get_threshold()
    out = torch.empty(1)

    def parse(phase: str, info: object) -> None:
        ast.parse("1")

    gc.callbacks.append(parse)
    gc.set_threshold(1)
    try:
        kernels.plus_kernel[(1,)](torch.ones(1), out, ADDEND=1)
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(parse)

    assert out.item() == 2.0
    assert gc.isenabled()


def test_an_array_is_no_wider_than_its_type() -> None:
    with pytest.raises(ValueError, match="an array of float64 is too wide for Triton's type fp32"):
        TensorHandle(np.zeros(1), tl.float32)


def test_uninitialised_memory_is_nan() -> None:
    assert torch.empty(64).isnan().all()


def test_there_is_an_active_driver() -> None:
    assert triton.runtime.driver.active.get_current_device() == 0
