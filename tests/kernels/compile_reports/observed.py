"""Prints as JSON what a recorder notes of launches: python -m tests.kernels.compile_reports.observed.

There is no GPU here, so kernels are compiled for one, and a driver counts their launches.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import triton
import triton.language as tl

from warpcall_kernels.compile.architectures import ARCHITECTURES
from warpcall_kernels.compile.launches import LaunchRecorder
from warpcall_kernels.compile.warm import CompileOnlyDriver

launched: list[str] = []


class Launcher:
    """Counts launches."""

    def __init__(self, src: Any, metadata: Any) -> None:
        self._name = metadata.name

    def __call__(self, *args: Any) -> None:
        launched.append(self._name)


class Driver(CompileOnlyDriver):
    """A driver whose kernels can be launched and do nothing."""

    launcher_cls = Launcher
    utils: Any = SimpleNamespace(
        get_device_properties=lambda device: {"max_shared_mem": 1 << 17},
        load_binary=lambda name, kernel, shared, device: (None, 1, 32, 0, 1024),
    )

    def get_benchmarker(self) -> Callable[..., list[float]]:
        """Call a kernel once in place of timing it."""

        def benchmark(call: Callable[[], object], **_: object) -> list[float]:
            call()
            return [float(len(launched)), 1.0, 1.0]  # so that the first configuration is chosen

        return benchmark


@triton.jit
def _double(x_ptr, out_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n) * 2, mask=at < n)


tuned = triton.autotune(
    [triton.Config({"BLOCK": 128}, num_warps=2), triton.Config({"BLOCK": 256}, num_warps=4)],
    key=["n"],
)(_double)


def main() -> None:
    """Launch some kernels, and print the report and how often kernels were launched."""
    triton.runtime.driver.set_active(Driver(90))
    before = triton.knobs.compilation.always_compile
    x = torch.zeros(1000)
    recorder = LaunchRecorder(ARCHITECTURES["sm_90"])
    with recorder.observing():
        for _ in range(3):
            _double[(8,)](x, x, 1000, BLOCK=128)
        tuned[lambda meta: (triton.cdiv(1000, meta["BLOCK"]),)](x, x, 1000)
        _double.warmup(x, x, 1000, BLOCK=512, grid=(1,))
    _double[(1,)](x, x, 1000, BLOCK=1024)
    found = [
        {
            "name": one.name,
            "config": one.config,
            "launches": one.launches,
            "grid": one.grid,
            "warps": one.warps,
            "block": one.constants["BLOCK"],
            "registers": one.resources.registers,
            "texts": sorted(name for name, text in one.texts.items() if text.text),
        }
        for one in recorder.kernels()
    ]
    undone = triton.knobs.compilation.always_compile == before
    json.dump({"kernels": found, "launched": len(launched), "undone": undone}, sys.stdout)


if __name__ == "__main__":
    main()
