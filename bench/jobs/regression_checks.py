"""Count what regression checks say of equal code, and of code that is slower by 3 %.

    .venv/bin/python -m bench.jobs.regression_checks --equal 200 --slower 100 --json checks.json

All checks run through a real server, in its sandbox, with uploaded implementations. They copy their
input 330 times; the slower one copies it 340 times, which is 3.03 % more. Each check has one case
and starts jobs of its own. Equal code is uploaded under two names, so it is not recognised as equal.
Checks whose rows the file has from an earlier run are not repeated.

On a machine that others use, start it with `chrt --fifo 10`: the processes of the server inherit
that priority. `nice` does not help on Linux, where each session has its own share of the cores.
"""

from __future__ import annotations

import argparse
import json
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
SOURCE = """
def {name}(x, dims):
    for _ in range({copies}):
        result = x.permute(dims).contiguous()
    return result
"""
IMPLEMENTATIONS = {"base": COPIES, "same": COPIES, "slower": COPIES + 10}

Row = dict[str, Any]


def main() -> None:
    """Run the checks, and print what they say."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--equal", type=int, default=200, help="checks of equal code")
    parser.add_argument("--slower", type=int, default=100, help="checks of code slower by 3 %%")
    parser.add_argument("--side", type=int, default=128, help="of the squares that are copied")
    parser.add_argument("--json", type=Path, help="file for the rows of all checks")
    args = parser.parse_args()
    rows: list[Row] = []
    if args.json and args.json.exists():
        rows = json.loads(args.json.read_text())
    with tempfile.TemporaryDirectory() as folder:
        settings = {"WARPCALL_DATA_DIR": folder, "WARPCALL_UPLOADS": "sandboxed"}
        with running_server(settings) as server, Client(server.url) as gpu:
            say(json.dumps(describe(server)))
            names = {
                name: gpu.implementations.add(
                    "permute", SOURCE.format(name=name, copies=copies), function=name
                ).name
                for name, copies in IMPLEMENTATIONS.items()
            }
            case = {"shapes": [[args.side] * 2], "dtypes": ["F32"], "params": {"dims": [[1, 0]]}}
            while (
                head := next_head(rows, {"same": args.equal, "slower": args.slower})
            ) is not None:
                rows.append({"head": head, **check(gpu, names["base"], names[head], case)})
                say(line(rows[-1]))
                if args.json:
                    args.json.write_text(json.dumps(rows))
    for head in ("slower", "same"):
        report(head, [row for row in rows if row["head"] == head])


def next_head(rows: list[Row], wanted: dict[str, int]) -> str | None:
    """What is checked next: both in turn, so that an interrupted run has both; None at the end."""
    done = Counter(row["head"] for row in rows)
    shares = {head: done[head] / count for head, count in wanted.items() if count}
    head = min(shares, key=shares.__getitem__, default=None)
    return None if head is None or shares[head] >= 1 else head


def check(gpu: Client, base: str, head: str, case: dict[str, Any]) -> Row:
    """Check one case; the seconds are those of the whole check."""
    begin = time.monotonic()
    found = gpu.regressions.check("permute", base=base, head=head, sweep=case)
    (row,) = found.rows
    return {**vars(row), "seconds": time.monotonic() - begin}


def line(row: Row) -> str:
    """One check in words."""
    return (
        f"{row['head']} {row['outcome']}: {row['ratio']:.4f} ({row['ratio_low']:.4f} to "
        f"{row['ratio_high']:.4f}), {row['jobs']} jobs, {row['seconds']:.1f} s"
    )


def report(head: str, rows: list[Row]) -> None:
    """Print how often each outcome and number of jobs came, the median time and the worst."""
    if rows:
        seconds = sorted(row["seconds"] for row in rows)
        say(
            f"{head}: {len(rows)} checks, outcomes {dict(Counter(row['outcome'] for row in rows))}, "
            f"jobs {dict(Counter(row['jobs'] for row in rows))}, median ratio "
            f"{median(row['ratio'] for row in rows):.4f}, seconds: median {median(seconds):.1f}, "
            f"at most {seconds[-1]:.1f}"
        )


if __name__ == "__main__":
    main()
