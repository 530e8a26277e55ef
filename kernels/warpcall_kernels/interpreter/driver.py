"""What a launcher may ask of Triton's active driver and of its timing functions without a GPU."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase

from warpcall_kernels.op.launch import MULTIPROCESSORS, SHARED_BYTES

PRETENDED_MS = 1.0  # the time of every call: times on the CPU would say nothing about a GPU


class CpuDriver(DriverBase):  # type: ignore[misc]  # triton has no types
    """Answers for an H200, which most kernels are written for. Its tensors are on the CPU."""

    utils: ClassVar[Any] = types.SimpleNamespace(
        get_device_properties=lambda device: {
            "max_shared_mem": SHARED_BYTES,
            "max_num_regs": 65_536,
            "multiprocessor_count": MULTIPROCESSORS,
            "warpSize": 32,
            "sm_clock_rate": 1_980_000,  # kHz
            "mem_clock_rate": 3_201_000,  # kHz
            "mem_bus_width": 6_016,  # bits
        }
    )

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        raise NotImplementedError("nothing is compiled under the interpreter")

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_device_capability(self, device: Any = None) -> tuple[int, int]:
        return 9, 0

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None: ...

    def get_current_stream(self, device: Any = None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        return torch.cpu

    def get_benchmarker(self) -> Any:
        return do_bench

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        return torch.empty(0)

    def clear_cache(self, cache: torch.Tensor) -> None: ...


def do_bench(
    fn: Callable[[], Any],
    warmup: int = 25,
    rep: int = 100,
    grad_to_none: Sequence[torch.Tensor] | None = None,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "mean",
) -> Any:
    """Call a function once, and say that it takes `PRETENDED_MS`, as `triton.testing.do_bench`.

    A launcher that chooses the fastest of several variants so always takes the first.
    """
    fn()
    if quantiles is not None:
        return PRETENDED_MS if len(quantiles) == 1 else [PRETENDED_MS] * len(quantiles)
    return [PRETENDED_MS] if return_mode == "all" else PRETENDED_MS


def do_bench_cudagraph(
    fn: Callable[[], Any],
    rep: int = 20,
    grad_to_none: Sequence[torch.Tensor] | None = None,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "mean",
) -> Any:
    """As `do_bench`."""
    return do_bench(fn, quantiles=quantiles, return_mode=return_mode)
