"""Count what regression checks say of equal code, and of code that is slower by 3 %.

    .venv/bin/python -m bench.jobs.regression_checks --equal 200 --slower 100 --json checks.json
    .venv/bin/python -m bench.jobs.regression_checks --equal 20 --slower 20 --json gpu.json \
        --sides 1024:6144:256 --dtype BF16 --copies 33 --operator

The first command is for a CPU lane, and the second one for a GPU. All checks run through a real
server. They copy their input 330 times; the slower one copies it 3.03 % more often. A check has a
case for each side, and starts jobs of its own. Equal code has two names, so it is not recognised as
equal. Checks whose rows the file has from an earlier run are not repeated.

On a machine that others use, start it with `chrt --fifo 10`: the processes of the server inherit
that priority. `nice` does not help on Linux, where each session has its own share of the cores.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

from bench.jobs.identical_jobs import say
from bench.machine import describe
from demo.server import running_server
from warpcall import Client

COPIES = 330
UPLOAD = """
def {name}(x, dims):
    for _ in range({copies}):
        result = x.permute(dims).contiguous()
    return result
"""
MODULE = """
from warpcall_kernels.permute import permute
from warpcall_kernels.measuring import Implementation

def repeated(copies):
    def build(op, params):
        def compute(x):
            for _ in range(copies):
                result = permute(x, params["dims"])
            return result
        return compute
    return build

IMPLEMENTATIONS = tuple(
    Implementation(name, f"{{copies}} copies", repeated(copies), ("permute",))
    for name, copies in {copies}.items()
)
"""

Row = dict[str, Any]


def main() -> None:
    """Run the checks, and print what they say."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--equal", type=int, default=200, help="cases of equal code")
    parser.add_argument("--slower", type=int, default=100, help="cases of code slower by 3 %%")
    parser.add_argument(
        "--sides", type=sides, default=[128], help="of the squares: 128,256 or first:end:step"
    )
    parser.add_argument("--dtype", default="F32")
    parser.add_argument("--copies", type=int, default=COPIES, help="that one call makes")
    parser.add_argument(
        "--operator",
        action="store_true",
        help="with Warpcall's own permute in a module of the operator, instead of torch's in "
        "uploads, which need a sandbox",
    )
    parser.add_argument("--json", type=Path, help="file for the rows of all checks")
    args = parser.parse_args()
    rows: list[Row] = []
    if args.json and args.json.exists():
        rows = json.loads(args.json.read_text())
    copies = {"base": args.copies, "same": args.copies, "slower": round(args.copies * 34 / 33)}
    with tempfile.TemporaryDirectory() as folder:
        settings = {"WARPCALL_DATA_DIR": folder, "WARPCALL_UPLOADS": "sandboxed"}
        if args.operator:
            (Path(folder) / "copies.py").write_text(MODULE.format(copies=copies))
            path = os.pathsep.join([folder, *sys.path])
            settings |= {
                "WARPCALL_UPLOADS": "off",
                "WARPCALL_JOB_MODULES": "copies",
                "PYTHONPATH": path,
            }
        with running_server(settings) as server, Client(server.url) as gpu:
            say(json.dumps(describe(server)))
            names = {name: name if args.operator else add(gpu, name, copies) for name in copies}
            sweep = {
                "shapes": [[side, side] for side in args.sides],
                "dtypes": [args.dtype],
                "params": {"dims": [[1, 0]]},
            }
            while (
                head := next_head(rows, {"same": args.equal, "slower": args.slower})
            ) is not None:
                for row in check(gpu, names["base"], names[head], sweep):
                    rows.append({"head": head, **row})
                    say(line(rows[-1]))
                if args.json:
                    args.json.write_text(json.dumps(rows))
    for head in ("slower", "same"):
        report(head, [row for row in rows if row["head"] == head])


def sides(text: str) -> list[int]:
    """The sides that an argument gives."""
    if ":" in text:
        return list(range(*map(int, text.split(":"))))
    return [int(side) for side in text.split(",")]


def add(gpu: Client, name: str, copies: dict[str, int]) -> str:
    """Upload one of the implementations, and return its full name."""
    source = UPLOAD.format(name=name, copies=copies[name])
    return gpu.implementations.add("permute", source, function=name).name


def next_head(rows: list[Row], wanted: dict[str, int]) -> str | None:
    """What is checked next: both in turn, so that an interrupted run has both; None at the end."""
    done = Counter(row["head"] for row in rows)
    shares = {head: done[head] / count for head, count in wanted.items() if count}
    head = min(shares, key=shares.__getitem__, default=None)
    return None if head is None or shares[head] >= 1 else head


def check(gpu: Client, base: str, head: str, sweep: dict[str, Any]) -> list[Row]:
    """Check all cases at once; the seconds are those of the whole check."""
    begin = time.monotonic()
    found = gpu.regressions.check("permute", base=base, head=head, sweep=sweep)
    seconds = time.monotonic() - begin
    return [{**vars(row), "seconds": seconds} for row in found.rows]


def line(row: Row) -> str:
    """One case in words."""
    return (
        f"{row['head']} {row['outcome']}: {row['ratio']:.4f} ({row['ratio_low']:.4f} to "
        f"{row['ratio_high']:.4f}), {row['jobs']} jobs, {row['seconds']:.1f} s"
    )


def report(head: str, rows: list[Row]) -> None:
    """Print how often each outcome and number of jobs came, the median time and the worst."""
    if rows:
        seconds = sorted(row["seconds"] for row in rows)
        say(
            f"{head}: {len(rows)} cases, outcomes {dict(Counter(row['outcome'] for row in rows))}, "
            f"jobs {dict(Counter(row['jobs'] for row in rows))}, median ratio "
            f"{median(row['ratio'] for row in rows):.4f}, seconds: median {median(seconds):.1f}, "
            f"at most {seconds[-1]:.1f}"
        )


if __name__ == "__main__":
    main()
