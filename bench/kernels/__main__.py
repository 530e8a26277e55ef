"""`python -m bench.kernels`: list the ops, benchmark or explore them, report that, or tune for a GPU."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch

from bench.kernels import explore, explore_page, grid, grid_page, run
from bench.kernels import tune as _tune
from bench.kernels.page import families, markdown
from warpcall_kernels import ops


def main(arguments: list[str] | None = None) -> int:
    """Return the process's exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.kernels", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="the ops, with the line of torch that each equals")

    bench = commands.add_parser("bench", help="check, then time each large case with a cold L2")
    bench.add_argument("op", nargs="*", choices=[*ops(), []], help="all when none is named")
    bench.add_argument("--match", default="", help="only cases whose name contains this text")
    bench.add_argument(
        "--group",
        choices=["all", "recorded", "sweep"],
        default="all",
        help="recorded: cases that other implementations were measured on; sweep: further sizes",
    )
    bench.add_argument(
        "--rounds", type=int, help="samples of each measurement, by default 30, or 8 with --short"
    )
    bench.add_argument(
        "--short", action="store_true", help="fewer rounds and a shorter warm-up for each case"
    )
    bench.add_argument(
        "--seconds", type=float, help="begin no further case when so many seconds have passed"
    )
    bench.add_argument(
        "--ahead",
        type=int,
        default=0,
        help="processes that compile for all cases at once, and then measure one case at a time",
    )
    bench.add_argument(
        "--no-compile",
        dest="compile",
        action="store_false",
        help="do not measure torch.compile, which takes most of the time",
    )
    bench.add_argument(
        "--peers", help="a JSON file of recorded times of other implementations, shown beside ours"
    )
    bench.add_argument("--json", help="a file to write all results to, after each case")
    bench.add_argument(
        "--resume",
        action="store_true",
        help="keep the rows of the file of --json, and measure only what it lacks",
    )

    report = commands.add_parser(
        "report",
        help="print tables in Markdown from a file that bench, grid or explore --json wrote",
    )
    report.add_argument("file", nargs="+", help="one, or several that explore wrote")
    report.add_argument(
        "--families",
        action="store_true",
        help="only the table of the ops that docs/benchmarks/h200.md has",
    )

    tune = commands.add_parser(
        "tune", help="time the candidates for the constants that an op declares"
    )
    tune.add_argument(
        "op",
        nargs="*",
        choices=[*(op.name for op in _tune.tunable()), []],
        help="all when none is named",
    )
    tune.add_argument("--rounds", type=int, default=10, help="samples of each measurement")

    cells = commands.add_parser(
        "grid", help="time isin and its variants on a grid of sizes, against torch"
    )
    cells.add_argument("--rounds", type=int, default=9, help="samples of each measurement")
    cells.add_argument(
        "--ahead",
        type=int,
        default=1,
        help="processes that compile for all cells at once, and then measure one after the other",
    )
    cells.add_argument(
        "--no-compile", dest="compile", action="store_false", help="do not measure torch.compile"
    )
    cells.add_argument("--json", help="a file to write all results to")

    explore.add_command(commands)

    given = parser.parse_args(arguments)
    if given.command == "list":
        for op in ops().values():
            sys.stdout.write(f"{op.name:26}{op.equivalent}\n")
        return 0
    if given.command == "report":
        return _report(given.file, families_only=given.families)
    needs_gpu = given.command != "explore" or not given.check
    if needs_gpu and not torch.cuda.is_available():
        unless = ", unless with --check" if given.command == "explore" else ""
        sys.stderr.write(f"{given.command} needs a CUDA GPU{unless}; none is visible to torch\n")
        return 1
    measuring = {"bench": run.run, "tune": _tune.run, "grid": grid.run, "explore": explore.run}
    return measuring[given.command](given)


def _report(names: list[str], *, families_only: bool) -> int:
    """Print the page of result files."""
    files = [json.loads(Path(name).read_text()) for name in names]
    first, *others = files
    if all("explore" in results for results in files):
        sys.stdout.write(explore_page.markdown(files))
        return 0
    if others:
        sys.stderr.write("only files that explore wrote can be reported together\n")
        return 1
    if families_only:
        sys.stdout.write(families(first["rows"]))
        return 0
    sys.stdout.write((grid_page.markdown if "cells" in first else markdown)(first))
    return 0


if __name__ == "__main__":
    sys.exit(main())
