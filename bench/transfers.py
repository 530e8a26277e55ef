"""Measure a lane's copies to and from its GPU against pinned ones of the same size.

    python -m bench.transfers                 on a machine with a GPU

What the server says of its stages (Server-Timing) is compared with cudaMemcpyAsync from and to
page-locked memory, by CUDA events, in this process and alternately with the calls. It also reports
what a call takes as a whole: the transfer through the socket, not the GPU, is what a caller waits
for.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch

from bench.callers import RawClient
from bench.fairness import tensor_of
from bench.machine import describe
from demo.server import running_server

MB = 1 << 20
SIZES = (MB, 64 * MB, 512 * MB)
WANTED = 0.8  # of a pinned copy


@dataclass(frozen=True)
class Result:
    """One size of tensor: milliseconds of a call and its stages, and shares of a pinned copy."""

    nbytes: int
    call_ms: float
    queue_ms: float
    h2d_ms: float
    kernel_ms: float
    d2h_ms: float
    pinned_h2d_ms: float
    pinned_d2h_ms: float

    @property
    def shares(self) -> tuple[float, float]:
        """Of the speed of a pinned copy, to the device and back."""
        return self.pinned_h2d_ms / self.h2d_ms, self.pinned_d2h_ms / self.d2h_ms


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit status is 1 if a copy of 64 MB or more is slower than wanted."""
    parser = argparse.ArgumentParser(prog="python -m bench.transfers", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the results there")
    given = parser.parse_args(arguments)
    with running_server({"WARPCALL_DEVICES": "cuda:0"}) as server:
        machine = describe(server)
        results = [measure(server.port, nbytes) for nbytes in SIZES]
    for name, value in machine.items():
        sys.stdout.write(f"{name}: {value}\n")
    for r in results:
        to, back = r.shares
        sys.stdout.write(
            f"{r.nbytes // MB:4} MB: call {r.call_ms:8.3f} ms, queue {r.queue_ms:.3f}, "
            f"h2d {r.h2d_ms:.3f} ({r.nbytes / r.h2d_ms / 1e6:.1f} GB/s, {to:.2f} of pinned), "
            f"kernel {r.kernel_ms:.3f}, "
            f"d2h {r.d2h_ms:.3f} ({r.nbytes / r.d2h_ms / 1e6:.1f} GB/s, {back:.2f} of pinned)\n"
        )
    if given.json:
        report = {"machine": machine, "results": [asdict(r) for r in results]}
        given.json.write_text(json.dumps(report, indent=1))
    return int(any(min(r.shares) < WANTED for r in results if r.nbytes > MB))


def measure(port: int, nbytes: int) -> Result:
    """Calls and copies alternately; medians."""
    rounds = 30 if nbytes <= MB else 10
    client = RawClient(port, tensor_of(nbytes))
    pinned = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(nbytes, dtype=torch.uint8, device="cuda:0")
    calls: list[float] = []
    stages: list[dict[str, float]] = []
    copies: list[tuple[float, float]] = []
    for i in range(rounds + 2):
        began = time.perf_counter()
        client.call()
        took_ms = (time.perf_counter() - began) * 1e3
        copied = _copy_ms(device, pinned), _copy_ms(pinned, device)
        if i >= 2:  # after the first compile and the first touch
            calls.append(took_ms)
            stages.append(client.timing)
            copies.append(copied)
    client.close()
    return Result(
        nbytes=nbytes,
        call_ms=median(calls),
        pinned_h2d_ms=median(to for to, _ in copies),
        pinned_d2h_ms=median(back for _, back in copies),
        **{f"{name}_ms": median(s[name] for s in stages) for name in stages[0]},
    )


def _copy_ms(target: torch.Tensor, source: torch.Tensor) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # torch has no types here
    begin.record()
    target.copy_(source, non_blocking=True)
    end.record()
    end.synchronize()
    taken_ms: float = begin.elapsed_time(end)
    return taken_ms


if __name__ == "__main__":
    sys.exit(main())
