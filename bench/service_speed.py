"""Measure the service against a bare socket loop that moves the same bytes, in the same run.

    make bench                              some minutes
    make bench ARGS=--quick                 a look, in well under one
    make bench ARGS="--json speed.json"     every sample, for later

Each round takes one sample of every caller, in one order and then in the other (ABBA), so that a
machine that slows down slows all alike; the ratio is taken within a round. The op is the identity
permute (dims 0,1): its kernel is a plain copy, so what is measured is the service around it. A real
transposition on a CPU lane would measure torch.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
import psutil

from bench.callers import AsyncRaw, AsyncSdk, Caller, Curl, Sdk, Tensor, loop, raw
from bench.loop import running_loop
from bench.machine import Memory, describe, memory_of
from demo.server import Server, running_server

KB, MB = 1 << 10, 1 << 20
ROW = 256  # elements of the tensor's inner dim
LOOP = "bare loop"
RESERVE_BYTES = 2 << 30  # left to the rest of the machine
UNIX_BYTES = 1 << 30  # of all tensors: above it the Unix socket is left out, for want of memory


@dataclass(frozen=True)
class Cell:
    """One size of tensor and number of clients.

    Attributes:
        calls: by each client, in a sample: enough to last some 50 ms.
        rounds: samples of each caller.
    """

    nbytes: int
    clients: int
    calls: int
    rounds: int

    @property
    def label(self) -> str:
        size = f"{self.nbytes // MB} MB" if self.nbytes >= MB else f"{self.nbytes // KB} KB"
        return f"{size} x {self.clients}"


@dataclass(frozen=True)
class Result:
    """What one caller reached in one cell; a ratio is to the loop in the same round.

    Attributes:
        cpu_ms: milliseconds of CPU that a call took in this process: of the client, without the
            server, and for curl without its processes.
    """

    cell: str
    caller: str
    requests_per_s: float
    gb_per_s: float
    cpu_ms: float
    ratio: float
    ratio_p10: float
    ratio_p90: float
    samples_s: list[float]


FULL = (
    Cell(4 * KB, 1, 300, 40),
    Cell(4 * KB, 8, 100, 40),
    Cell(MB, 1, 60, 40),
    Cell(MB, 8, 16, 40),
    Cell(64 * MB, 1, 2, 40),
    Cell(64 * MB, 8, 1, 10),
    Cell(512 * MB, 1, 1, 6),
    Cell(512 * MB, 8, 1, 2),
)
QUICK = (
    Cell(4 * KB, 1, 300, 4),
    Cell(4 * KB, 8, 60, 4),
    Cell(MB, 1, 20, 4),
    Cell(MB, 8, 4, 4),
    Cell(64 * MB, 1, 1, 4),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer sizes, fewer rounds")
    parser.add_argument("--json", type=Path, help="write all results there")
    given = parser.parse_args(arguments)
    cells = QUICK if given.quick else FULL
    results: list[Result] = []
    memory = Memory()
    with running_loop(max(cell.nbytes for cell in cells)) as loop_port, running_server() as server:
        machine = describe(server)
        _print(*(f"{name}: {value}" for name, value in machine.items()), "", _HEAD)
        for cell in cells:
            lacking = _lacking_bytes(cell)
            if lacking > 0:
                _print(f"{cell.label:12}skipped: {lacking / 2**30:.1f} GiB of memory are missing")
                continue
            found = measure(cell, server, loop_port, memory)
            _print(*map(_line, found))
            results += found
        _print("", str(memory))
    if given.json:
        report = {
            "machine": machine,
            "memory": asdict(memory),
            "results": list(map(asdict, results)),
        }
        given.json.write_text(json.dumps(report, indent=1))
    return 0


def measure(cell: Cell, server: Server, loop_port: int, memory: Memory) -> list[Result]:
    """All callers in this cell; `memory` learns what the server holds meanwhile.

    Raises:
        ValueError: an answer that is not the tensor that was sent.
    """
    random = np.random.default_rng(0)
    tensor = random.random(cell.nbytes // 4, np.float32).reshape(-1, ROW)
    samples: dict[str, list[float]] = {}
    cpu: dict[str, list[float]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        callers = _callers(server, loop_port, cell.clients, tensor, folder)
        made: dict[str, Caller] = {}
        for name, make in callers.items():
            made[name] = make()
            stack.callback(made[name].close)
            made[name].check()
            made[name].run(1)  # every connection open, every buffer touched
        for i in range(cell.rounds):
            for name in list(made) if i % 2 == 0 else reversed(made):
                begin = time.process_time()
                samples.setdefault(name, []).append(made[name].run(cell.calls))
                cpu.setdefault(name, []).append(time.process_time() - begin)
                memory.note(memory_of(server.process.pid))
    return [_result(cell, name, times, cpu[name], samples[LOOP]) for name, times in samples.items()]


def _callers(
    server: Server, loop_port: int, clients: int, tensor: Tensor, folder: Path
) -> Mapping[str, Callable[[], Caller]]:
    port, uds = server.port, server.uds
    callers: dict[str, Callable[[], Caller]] = {
        LOOP: lambda: loop(loop_port, clients, tensor),
        "raw socket": lambda: raw(port, clients, tensor),
        "SDK": lambda: Sdk(port, clients, tensor),
        "raw, async": lambda: AsyncRaw(port, clients, tensor),
        "SDK, async": lambda: AsyncSdk(port, clients, tensor),
        "curl": lambda: Curl(port, clients, tensor, folder),
    }
    if clients * tensor.nbytes <= UNIX_BYTES:
        callers["raw, unix"] = lambda: raw(uds, clients, tensor)
        callers["SDK, unix"] = lambda: Sdk(uds, clients, tensor)
    return callers


def _lacking_bytes(cell: Cell) -> int:
    """How much more memory this cell needs than there is.

    A client of each kind keeps its answer, the loop's server has a buffer for each of its
    connections, and curl holds nothing; the server's arena is already there.
    """
    kinds = 7 if cell.nbytes * cell.clients <= UNIX_BYTES else 5
    held = cell.nbytes * (1 + cell.clients * kinds)
    free: int = psutil.virtual_memory().available
    return held + RESERVE_BYTES - free


def _result(
    cell: Cell, name: str, times: list[float], cpu: list[float], yardstick: list[float]
) -> Result:
    calls = cell.calls * cell.clients
    ratios = np.array(yardstick) / np.array(times)
    return Result(
        cell=cell.label,
        caller=name,
        requests_per_s=calls / median(times),
        gb_per_s=2 * cell.nbytes * calls / median(times) / 1e9,
        cpu_ms=median(cpu) / calls * 1e3,
        ratio=float(np.median(ratios)),
        ratio_p10=float(np.percentile(ratios, 10)),
        ratio_p90=float(np.percentile(ratios, 90)),
        samples_s=times,
    )


_HEAD = (
    f"{'size x clients':16}{'caller':14}{'requests/s':>12}{'GB/s in+out':>13}{'CPU ms':>9}{'of loop':>9}"
    f"{'p10 to p90':>16}"
)


def _line(result: Result) -> str:
    spread = f"{result.ratio_p10:.2f} to {result.ratio_p90:.2f}"
    return (
        f"{result.cell:16}{result.caller:14}{result.requests_per_s:12,.1f}{result.gb_per_s:13.3f}"
        f"{result.cpu_ms:9.3f}"
        f"{result.ratio:9.2f}{spread if result.caller != LOOP else '':>16}"
    )


def _print(*lines: str) -> None:
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
