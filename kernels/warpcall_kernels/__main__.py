"""`python -m warpcall_kernels`: list the ops, or benchmark them on this machine's GPU."""

from __future__ import annotations

import argparse
import sys

import torch

from warpcall_kernels import ops
from warpcall_kernels._bench import run


def main(arguments: list[str] | None = None) -> int:
    """Return the process's exit status."""
    parser = argparse.ArgumentParser(prog="python -m warpcall_kernels", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="the ops, with the line of torch that each equals")
    bench = commands.add_parser("bench", help="check, then time each large case with a cold L2")
    bench.add_argument("op", nargs="*", choices=[*ops(), []], help="all when none is named")
    bench.add_argument("--match", default="", help="only the cases whose name holds this")
    bench.add_argument("--rounds", type=int, default=30, help="samples a measurement")
    bench.add_argument("--compile", action="store_true", help="time torch.compile too (slow)")
    bench.add_argument("--peers", help="a JSON file of others' times, shown beside ours")
    bench.add_argument("--json", help="write all results there")
    given = parser.parse_args(arguments)
    if given.command == "list":
        for op in ops().values():
            sys.stdout.write(f"{op.name:26}{op.equivalent}\n")
        return 0
    if not torch.cuda.is_available():
        sys.stderr.write("bench needs a CUDA GPU; none is visible to torch\n")
        return 1
    return run(given)


if __name__ == "__main__":
    sys.exit(main())
