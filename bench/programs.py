"""Measure what a program of many steps costs beside one call: `python -m bench.programs`.

In each round, in one order and then in the other: a call of the identity permute, whose kernel is a
plain copy; a program of 20 such steps; one of 20 sums, which move every byte on any device; a put,
a program whose output is stored, and a get; and 20 calls between a put and a get, each on what the
one before it stored. The server says how long kernels ran. What is left of the time is the
overhead, and a program's should be one call's: it is sent once up and once down. The ratio of
overheads is taken within a round; beside it stands that of the shortest ones, which other work on
the machine spoils less.

On a cpu lane the steps of the program of permutes are views, which cost nothing; what a call stores
is a copy, which counts as its kernel. Stored tensors are deleted between the samples: a CPU gives
memory back to its system in that time, a GPU does not.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt

from bench.machine import describe
from demo.server import Server, running_server
from warpcall import Client

ALLOWED = 1.3  # overheads of one call
KERNELS = re.compile(r'^warpcall_stage_seconds_sum\{stage="kernel"\} (\S+)$', re.MULTILINE)
ONE = "one call"

Tensor = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Sample:
    """Seconds that something took, and those of them in which kernels ran."""

    total_s: float
    kernel_s: float

    @property
    def overhead_s(self) -> float:
        return self.total_s - self.kernel_s


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 if a program's overhead is longer than it may be."""
    parser = argparse.ArgumentParser(prog="python -m bench.programs", description=__doc__)
    parser.add_argument("--side", type=int, default=4096, help="of the square float32 tensor")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args(arguments)
    x = np.random.default_rng(0).random((given.side, given.side), np.float32)
    samples: dict[str, list[Sample]] = {}
    with (
        running_server() as server,
        Client(server.url, progress=False, timeout_s=120) as gpu,
    ):
        callers = _callers(gpu, x, given.steps)
        for call in callers.values():
            call()  # connections open, buffers touched, programs checked
        for i in range(given.rounds):
            for name in list(callers) if i % 2 == 0 else reversed(callers):
                samples.setdefault(name, []).append(_measure(server, gpu, callers[name]))
        about = describe(server)
    said = [f"{name}: {value}" for name, value in about.items()]
    said += [
        "",
        f"{x.nbytes / 2**20:g} MB, {given.steps} steps, {given.rounds} rounds; medians",
        _HEAD,
    ]
    overheads = {name: _ratios(found, samples[ONE]) for name, found in samples.items()}
    said += [_line(name, found, overheads[name], samples[ONE]) for name, found in samples.items()]
    sys.stdout.write("\n".join(said) + "\n")
    return int(max(map(median, overheads.values())) > ALLOWED)


def _callers(gpu: Client, x: Tensor, steps: int) -> dict[str, Callable[[], Tensor]]:
    copies = gpu.program()
    copy = copies.permute(x, dims=(0, 1))
    for _ in range(steps - 1):
        copy = copies.permute(copy, dims=(0, 1))
    sums = gpu.program()
    total = sums.transpose_add(x, x)
    for _ in range(steps - 1):
        total = sums.transpose_add(total, total)

    def through_program() -> Tensor:
        program = gpu.program()
        copy = program.permute(gpu.put(x), dims=(0, 1))
        for _ in range(steps - 1):
            copy = program.permute(copy, dims=(0, 1))
        result: Tensor = program.run(y=copy, store=["y"]).outputs["y"].get()
        return result

    def through_calls() -> Tensor:
        now = gpu.put(x)
        for _ in range(steps):
            now = gpu.stored.permute(now, dims=(0, 1))
        result: Tensor = now.get()
        return result

    def one() -> Tensor:
        result: Tensor = gpu.permute(x, dims=(0, 1))
        return result

    return {
        ONE: one,
        "program of permutes": lambda: copies.run(y=copy).outputs["y"],
        "program of sums": lambda: sums.run(y=total).outputs["y"],
        "put, program, get": through_program,
        f"put, {steps} calls, get": through_calls,
    }


def _measure(server: Server, gpu: Client, call: Callable[[], Tensor]) -> Sample:
    before = _kernel_s(server)
    began = time.perf_counter()
    call()
    total_s = time.perf_counter() - began
    for tensor in gpu.tensors():
        tensor.delete()
    return Sample(total_s, _kernel_s(server) - before)


def _kernel_s(server: Server) -> float:
    """How long kernels have run so far."""
    found = KERNELS.search(server.get("/metrics")[1])
    return float(found[1]) if found else 0.0


def _ratios(samples: Sequence[Sample], ones: Sequence[Sample]) -> list[float]:
    return [sample.overhead_s / one.overhead_s for sample, one in zip(samples, ones, strict=True)]


_HEAD = f"{'':22}{'total ms':>10}{'kernels ms':>12}{'overhead ms':>12}{'of one call':>13}{'p10 to p90':>16}"


def _line(
    name: str, samples: Sequence[Sample], ratios: Sequence[float], ones: Sequence[Sample]
) -> str:
    total, kernel, overhead = (
        median(getattr(sample, part) for sample in samples) * 1e3
        for part in ("total_s", "kernel_s", "overhead_s")
    )
    best = min(sample.overhead_s for sample in samples) / min(one.overhead_s for one in ones)
    low, high = np.percentile(ratios, (10, 90))
    return (
        f"{name:22}{total:10.1f}{kernel:12.1f}{overhead:12.1f}{median(ratios):13.2f}"
        f"{f'{low:.2f} to {high:.2f}':>16}{best:14.2f}"
    )


if __name__ == "__main__":
    sys.exit(main())
