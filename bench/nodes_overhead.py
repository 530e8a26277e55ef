"""Compare a server with a nodes table with one without, in the same run: calls a second of 4 KB.

    WARPCALL_DATABASE_URL=postgresql://... python -m bench.nodes_overhead

Both servers run all the time: one on SQLite, which writes no heartbeats, and one on PostgreSQL, which
writes one each second and reads those of the others. Samples alternate (ABBA); each ratio is of two
samples that follow each other. A second comparison, of the first server with itself, says what the
noise is.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from statistics import median, quantiles

import numpy as np

from bench.callers import Caller, Tensor, raw
from bench.machine import describe
from demo.server import running_server

NBYTES, ROW = 4 << 10, 256


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.nodes_overhead", description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--calls", type=int, default=1500, help="of each client in a sample")
    parser.add_argument("--clients", type=int, default=4)
    given = parser.parse_args(arguments)
    url = os.environ.get("WARPCALL_DATABASE_URL")
    if url is None:
        parser.error("WARPCALL_DATABASE_URL must name an empty PostgreSQL database")
    tensor: Tensor = np.random.default_rng(0).random(NBYTES // 4, np.float32).reshape(-1, ROW)
    with ExitStack() as stack:
        without = stack.enter_context(running_server())
        shared = stack.enter_context(running_server({"WARPCALL_DATABASE_URL": url}))
        callers = [raw(s.port, given.clients, tensor) for s in (without, shared, without)]
        for caller in callers:
            caller.check()
            stack.callback(caller.close)
        for name, value in describe(without).items():
            print(f"{name}: {value}")  # noqa: T201
        rates: list[list[float]] = [[], [], []]
        for i in range(given.rounds):
            for which in (0, 1, 2) if i % 2 == 0 else (2, 1, 0):
                rates[which].append(_rate(callers[which], given.calls, given.clients))
    names = ("without a nodes table", "with a nodes table", "without, again")
    for name, found in zip(names, rates, strict=True):
        ratios = [mine / first for mine, first in zip(found, rates[0], strict=True)]
        low, _, high = quantiles(ratios, n=4)
        print(  # noqa: T201
            f"{name}: {median(found):,.0f} calls/s; ratio {median(ratios):.3f} ({low:.3f} to {high:.3f})"
        )
    return 0


def _rate(caller: Caller, calls: int, clients: int) -> float:
    """Calls a second of all clients together."""
    return calls * clients / caller.run(calls)


if __name__ == "__main__":
    sys.exit(main())
