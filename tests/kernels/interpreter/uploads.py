"""Functions with Triton kernels as users upload them, which the tests compare with torch."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice
from triton.language.extra.libdevice import rsqrt
from triton.language.math import exp as exponential


@triton.jit
def _softmax_kernel(x_ptr: Any, out_ptr: Any, columns: Any, BLOCK: tl.constexpr) -> None:
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * columns + at, mask=at < columns, other=-float("inf")).to(tl.float32)
    e = exponential(x - tl.max(x, axis=0))
    y = e / tl.sum(e, axis=0)
    tl.store(out_ptr + row * columns + at, y.to(out_ptr.dtype.element_ty), mask=at < columns)


def softmax(x: Tensor) -> Tensor:
    """Softmax of the rows."""
    out = torch.empty_like(x)
    rows, columns = x.shape
    _softmax_kernel[(rows,)](x, out, columns, BLOCK=triton.next_power_of_2(columns))
    return out


@triton.jit
def _short_softmax_kernel(x_ptr: Any, out_ptr: Any, columns: Any, BLOCK: tl.constexpr) -> None:
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * columns + at, mask=at < columns, other=-float("inf"))
    e = tl.exp((x - tl.max(x, axis=0).to(x.dtype)).to(tl.float32)).to(x.dtype)
    tl.store(out_ptr + row * columns + at, e / tl.sum(e, axis=0), mask=at < columns)


def short_softmax(x: Tensor) -> Tensor:
    """Softmax of the rows that computes in the dtype of its input."""
    out = torch.empty_like(x)
    rows, columns = x.shape
    _short_softmax_kernel[(rows,)](x, out, columns, BLOCK=triton.next_power_of_2(columns))
    return out


@triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["columns"])})
@triton.jit
def _layer_norm_kernel(
    x_ptr: Any,
    weight_ptr: Any,
    bias_ptr: Any,
    out_ptr: Any,
    columns: Any,
    eps: Any,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    mask = at < columns
    x = tl.load(x_ptr + row * columns + at, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / columns
    centered = tl.where(mask, x - mean, 0.0)
    inverse = rsqrt(tl.sum(centered * centered, axis=0) / columns + eps)
    weight = tl.load(weight_ptr + at, mask=mask)
    bias = tl.load(bias_ptr + at, mask=mask)
    tl.store(out_ptr + row * columns + at, centered * inverse * weight + bias, mask=mask)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """Layer normalisation of the rows."""
    out = torch.empty_like(x)
    _layer_norm_kernel[(x.shape[0],)](x, weight, bias, out, x.shape[1], eps)
    return out


def _small_tiles(configs: Any, named: Any, **others: Any) -> Any:
    return [config for config in configs if config.kwargs["TILE"] <= 32]


@triton.autotune(
    configs=[triton.Config({"TILE": tile}, num_warps=4) for tile in (64, 32, 16)],
    key=["height", "width"],
    prune_configs_by={"early_config_prune": _small_tiles},
)
@triton.jit
def _transpose_kernel(
    x_ptr: Any, out_ptr: Any, height: Any, width: Any, TILE: tl.constexpr
) -> None:
    rows = tl.program_id(0) * TILE + tl.arange(0, TILE)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = (rows[:, None] < height) & (columns[None, :] < width)
    tile = tl.load(x_ptr + rows[:, None] * width + columns[None, :], mask=inside)
    place = columns[:, None] * height + rows[None, :]
    tl.store(out_ptr + place, tile.trans(1, 0), mask=inside.trans(1, 0))


def transpose(x: Tensor) -> Tensor:
    """The transpose of a matrix."""
    height, width = x.shape
    out = torch.empty(width, height, dtype=x.dtype, device=x.device)

    def grid(meta: Any) -> tuple[int, int]:
        return triton.cdiv(height, meta["TILE"]), triton.cdiv(meta["width"], meta["TILE"])

    _transpose_kernel[grid](x, out, height, width)
    return out


@triton.autotune(
    configs=[triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})],
    key=["n"],
    reset_to_zero=["total_ptr"],
    restore_value=["x_ptr"],
)
@triton.jit
def _halve_and_sum_kernel(x_ptr: Any, total_ptr: Any, n: Any, BLOCK: tl.constexpr) -> None:
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0) / 2
    tl.store(x_ptr + at, x, mask=at < n)
    tl.atomic_add(total_ptr, tl.sum(x))


def halve_and_sum(x: Tensor) -> tuple[Tensor, Tensor]:
    """Half of a vector, in place, and the sum of that."""
    total = torch.zeros(1, dtype=x.dtype)
    _halve_and_sum_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](
        x, total, x.numel()
    )
    return x, total


@triton.jit
def _gelu(x: Any) -> Any:
    return 0.5 * x * (1 + libdevice.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


@triton.jit
def _matmul_gelu_kernel(
    a_ptr: Any, b_ptr: Any, out_ptr: Any, m: Any, n: Any, k: Any, BLOCK: tl.constexpr
) -> None:
    a_tile = tl.make_block_ptr(
        a_ptr, (m, k), (k, 1), (tl.program_id(0) * BLOCK, 0), (BLOCK, BLOCK), (1, 0)
    )
    b_tile = tl.make_block_ptr(
        b_ptr, (k, n), (n, 1), (0, tl.program_id(1) * BLOCK), (BLOCK, BLOCK), (1, 0)
    )
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for _ in tl.range(0, tl.cdiv(k, BLOCK), num_stages=2):
        a = tl.load(a_tile, boundary_check=(0, 1), padding_option="zero")
        b = tl.load(b_tile, boundary_check=(0, 1), padding_option="zero")
        total = tl.dot(a, b, total)
        a_tile = tl.advance(a_tile, (0, BLOCK))
        b_tile = tl.advance(b_tile, (BLOCK, 0))
    out_tile = tl.make_block_ptr(
        out_ptr,
        (m, n),
        (n, 1),
        (tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK),
        (BLOCK, BLOCK),
        (1, 0),
    )
    tl.store(out_tile, _gelu(total).to(out_ptr.dtype.element_ty), boundary_check=(0, 1))


def matmul_gelu(a: Tensor, b: Tensor) -> Tensor:
    """The tanh form of GELU of a matrix product."""
    (m, k), n = a.shape, b.shape[1]
    out = torch.empty(m, n, dtype=a.dtype, device=a.device)
    _matmul_gelu_kernel[triton.cdiv(m, 32), triton.cdiv(n, 32)](a, b, out, m, n, k, BLOCK=32)
    return out


@triton.jit
def _add_all_kernel(x_ptr: Any, total_ptr: Any, BLOCK: tl.constexpr) -> None:
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(total_ptr + at % 2, tl.load(x_ptr + at))


def sum_of_even_and_odd(x: Tensor) -> Tensor:
    """The sums of the elements at even places and at odd ones, by atomic additions."""
    total = torch.zeros(2, dtype=x.dtype)
    _add_all_kernel[(x.numel() // 16,)](x, total, BLOCK=16)
    return total


@triton.jit
def _persistent_copy_kernel(x_ptr: Any, out_ptr: Any, n: Any, BLOCK: tl.constexpr) -> None:
    for block in range(tl.program_id(0), tl.cdiv(n, BLOCK), tl.num_programs(0)):
        at = block * BLOCK + tl.arange(0, BLOCK)
        tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n), mask=at < n)


def persistent_copy(x: Tensor) -> Tensor:
    """A copy by as many programs as the device has multiprocessors, with a block chosen by time."""
    driver: Any = triton.runtime.driver.active
    assert driver.get_current_target().backend == "cuda"
    properties = driver.utils.get_device_properties(driver.get_current_device())
    out = torch.empty_like(x)
    grid = (min(properties["multiprocessor_count"], triton.cdiv(x.numel(), 64)),)

    def launch(block: int) -> None:
        _persistent_copy_kernel[grid](x, out, x.numel(), BLOCK=block)

    times = {b: triton.testing.do_bench(lambda b=b: launch(b), warmup=1) for b in (64, 128)}
    launch(min(times, key=lambda block: float(times[block])))
    return out


@triton.jit
def _descriptor_copy_kernel(
    x_ptr: Any, out_ptr: Any, height: Any, width: Any, TILE: tl.constexpr
) -> None:
    x = tl.make_tensor_descriptor(x_ptr, [height, width], [width, 1], [TILE, TILE])
    out = tl.make_tensor_descriptor(out_ptr, [height, width], [width, 1], [TILE, TILE])
    row, column = tl.program_id(0) * TILE, tl.program_id(1) * TILE
    out.store([row, column], x.load([row, column]) * 2)


def doubled(x: Tensor) -> Tensor:
    """Twice a matrix, read and written through tensor descriptors."""
    height, width = x.shape
    out = torch.empty_like(x)
    grid = triton.cdiv(height, 16), triton.cdiv(width, 16)
    _descriptor_copy_kernel[grid](x, out, height, width, TILE=16)
    return out


@triton.jit
def _scan_kernel(x_ptr: Any, out_ptr: Any, BLOCK: tl.constexpr, REVERSE: tl.constexpr) -> None:
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.cumsum(tl.load(x_ptr + at), axis=0, reverse=REVERSE))


def cumulative_sum(x: Tensor, reverse: bool = False) -> Tensor:
    """The cumulative sum of a vector whose length is a power of two."""
    out = torch.empty_like(x)
    _scan_kernel[(1,)](x, out, BLOCK=x.numel(), REVERSE=reverse)
    return out


@triton.jit
def _clock_kernel(out_ptr: Any) -> None:
    tl.store(out_ptr, tl.extra.cuda.globaltimer())


def clock() -> Tensor:
    """The clock of the GPU."""
    out = torch.zeros(1, dtype=torch.int64)
    _clock_kernel[(1,)](out)
    return out


@triton.jit
def _scaled_dot_kernel(a_ptr: Any, scale_ptr: Any, out_ptr: Any) -> None:
    at = tl.arange(0, 32)[:, None] * 32 + tl.arange(0, 32)[None, :]
    a = tl.load(a_ptr + at)
    scale = tl.load(scale_ptr + tl.arange(0, 32)[:, None])
    tl.store(out_ptr + at, tl.dot_scaled(a, scale, "e5m2", a, scale, "e5m2"))


def scaled_dot() -> Tensor:
    """A product of matrices with a scale for each block."""
    out = torch.empty(32, 32)
    a, scale = torch.zeros(32, 32, dtype=torch.uint8), torch.zeros(32, 1, dtype=torch.uint8)
    _scaled_dot_kernel[(1,)](a, scale, out)
    return out


@triton.jit
def _table_kernel(addresses_ptr: Any, out_ptr: Any) -> None:
    x_ptr = tl.load(addresses_ptr).to(tl.pointer_type(tl.float32))
    tl.store(out_ptr, tl.load(x_ptr))


def through_a_table(x: Tensor) -> Tensor:
    """The first element, through a tensor with its address."""
    out = torch.empty(1)
    _table_kernel[(1,)](torch.tensor([x.data_ptr()]), out)
    return out


def registers(x: Tensor) -> Tensor:
    """A launcher that asks how many registers its kernel has."""
    compiled = _softmax_kernel.warmup(x, x, 4, BLOCK=4, grid=(1,))
    return torch.empty(compiled.n_regs)


def for_gpus_only(x: Tensor) -> Tensor:
    """A launcher that refuses tensors on the CPU."""
    assert x.is_cuda
    return softmax(x)


def on_the_gpu(x: Tensor) -> Tensor:
    """A launcher that allocates on the GPU."""
    return torch.empty_like(x, device="cuda")
