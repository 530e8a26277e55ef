"""Kernels as users write them: right ones are right without a GPU, and others say what they need."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.kernels.interpreter import uploads
from warpcall_kernels import interpreter
from warpcall_kernels.interpreter import CannotInterpret

DTYPES = [torch.bfloat16, torch.float16, torch.float32]


@pytest.fixture(autouse=True)
def _interpreted(device: str) -> None:
    if device != "cpu":
        pytest.skip("nothing is interpreted on a GPU")


def rounded_once(found: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether each element is within one unit in the last place of the exact result."""
    unit = torch.finfo(found.dtype).eps * exact.abs().clamp(min=torch.finfo(found.dtype).tiny)
    return bool(((found.double() - exact).abs() <= unit).all())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("columns", [1, 33, 1000])
def test_a_softmax_is_right_to_the_last_place(columns: int, dtype: torch.dtype) -> None:
    x = (4 * torch.randn(5, columns)).to(dtype)

    found = uploads.softmax(x)

    if dtype == torch.float32:
        torch.testing.assert_close(found, x.softmax(1), rtol=2e-6, atol=1e-9)
    else:
        assert rounded_once(found, x.double().softmax(1))


def test_a_softmax_in_bf16_has_the_errors_of_bf16_and_no_others() -> None:
    x = torch.randn(3, 2048).bfloat16()

    found = uploads.short_softmax(x)

    ratio = found.double() / x.double().softmax(1)
    assert (ratio - 1).abs().max() < 0.04  # ten roundings of 2^-8 in the tree of the sum
    assert not rounded_once(found, x.double().softmax(1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_layer_norm_is_right(dtype: torch.dtype) -> None:
    x = (torch.randn(7, 300) * 3 + 1).to(dtype)
    weight, bias = torch.randn(2, 300).to(dtype)

    found = uploads.layer_norm(x, weight, bias)

    wide = torch.nn.functional.layer_norm(x.double(), (300,), weight.double(), bias.double())
    margin = 4e-6 if dtype == torch.float32 else torch.finfo(dtype).eps
    assert ((found.double() - wide).abs() <= margin * (wide.abs() + 1)).all()


@pytest.mark.parametrize("shape", [(1, 1), (31, 33), (70, 128)])
def test_an_autotuned_transpose_takes_the_first_configuration_that_is_left(
    shape: tuple[int, int],
) -> None:
    x = torch.randn(shape).bfloat16()

    found = uploads.transpose(x)

    assert torch.equal(found, x.T)
    assert uploads._transpose_kernel.best_config.kwargs == {"TILE": 32}


def test_autotuning_leaves_no_trace_in_what_it_resets_and_restores() -> None:
    x = torch.rand(200)
    before = x.clone()

    halved, total = uploads.halve_and_sum(x)

    assert torch.equal(halved, before / 2)
    torch.testing.assert_close(total, (before / 2).sum()[None])


@pytest.mark.filterwarnings("ignore:tl.make_block_ptr is deprecated")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_product_with_block_pointers_and_tanh_is_right(dtype: torch.dtype) -> None:
    a, b = torch.randn(40, 50).to(dtype), torch.randn(50, 33).to(dtype)

    found = uploads.matmul_gelu(a, b)

    exact = torch.nn.functional.gelu(a.double() @ b.double(), approximate="tanh")
    margin = 2**-9 if dtype == torch.float32 else torch.finfo(dtype).eps  # fp32 is rounded to tf32
    assert ((found.double() - exact).abs() <= margin * (exact.abs() + 5)).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_atomic_additions_to_one_address_all_count(dtype: torch.dtype) -> None:
    x = (torch.arange(64) % 16).to(dtype)

    found = uploads.sum_of_even_and_odd(x)

    assert torch.equal(found, torch.stack([x[::2].float().sum(), x[1::2].float().sum()]).to(dtype))


def test_a_launcher_may_ask_the_driver_and_choose_by_time() -> None:
    x = torch.randn(1000)

    assert torch.equal(uploads.persistent_copy(x), x)


def test_tensor_descriptors_are_read_and_written() -> None:
    x = torch.randn(20, 40).bfloat16()

    assert torch.equal(uploads.doubled(x), x * 2)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", [torch.int32, torch.float16, torch.bfloat16], ids=str)
def test_a_cumulative_sum_is_right(dtype: torch.dtype, reverse: bool) -> None:
    x = torch.randint(0, 3, (64,)).to(dtype)

    found = uploads.cumulative_sum(x, reverse)

    exact = x.flip(0).cumsum(0).flip(0) if reverse else x.cumsum(0)
    assert torch.equal(found, exact.to(dtype))


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (uploads.clock, "inline assembly: mov.u64 .0, %globaltimer"),
        (uploads.scaled_dot, "interpreter has no dot_scaled"),
        (lambda: uploads.through_a_table(torch.ones(1)), "pointer that the kernel made"),
        (lambda: uploads.registers(torch.ones(1, 4)), "n_regs of a compiled kernel"),
    ],
)
def test_what_only_a_gpu_can_run_says_so(call: Callable[[], Any], what: str) -> None:
    with pytest.raises(CannotInterpret, match=what) as raised:
        call()

    assert interpreter.needs_gpu(raised.value)


@pytest.mark.parametrize("call", [uploads.for_gpus_only, uploads.on_the_gpu])
def test_the_error_of_a_launcher_that_looks_for_a_gpu_is_recognised(
    call: Callable[[torch.Tensor], Any],
) -> None:
    with pytest.raises((AssertionError, RuntimeError)) as raised:
        call(torch.ones(2, 2))

    assert interpreter.needs_gpu(raised.value)


@pytest.mark.parametrize(
    "error", [IndexError("load of 4 bytes at byte 120 of x_ptr"), AssertionError(), ValueError("x")]
)
def test_other_errors_need_no_gpu(error: Exception) -> None:
    assert not interpreter.needs_gpu(error)


PROGRAM = """
import os, sys
os.environ["TRITON_INTERPRET"] = "1"
import torch, triton
from warpcall_kernels import interpreter
interpreter.mend()
interpreter.mend()
from tests.kernels.interpreter import uploads
x = torch.randn(4, 100).bfloat16()
assert torch.allclose(uploads.softmax(x), x.softmax(1), atol=0, rtol=2**-7)
assert torch.equal(uploads.transpose(x), x.T)
assert "pytest" not in sys.modules
"""


def test_a_process_without_pytest_can_mend_its_interpreter() -> None:
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert (done.returncode, done.stderr) == (0, "")


def test_a_process_that_interprets_nothing_is_refused() -> None:
    program = "import triton; from warpcall_kernels import interpreter; interpreter.mend()"
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env={"PATH": ""}
    )

    assert "RuntimeError: Triton was imported without TRITON_INTERPRET=1" in done.stderr
