"""Measure how often the comparison of two jobs finds a difference between equal code.

    .venv/bin/python -m bench.jobs.identical_jobs --jobs 44 --data-dir /tmp/identical

It runs the same quick job again and again through a real server, and compares all pairs of these
jobs through its API. Each comparison leaves out the two jobs, so the margin comes from the others.
Pairs that share a job are not independent: the pairs of the first and the second job, of the third
and the fourth and so on are counted separately. Jobs that are in the data folder from an earlier
run are compared, too.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.machine import describe
from demo.server import running_server
from warpcall import Client

TAG = "identical"
DIFFERENT = ("faster", "slower")


def main() -> None:
    """Measure, compare and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=44, help="identical jobs in all")
    parser.add_argument("--sides", default="256,1024", help="of the squares that are permuted")
    parser.add_argument("--vs", default="warpcall,torch,copy", help="implementations")
    parser.add_argument("--data-dir", type=Path, required=True, help="of the server")
    parser.add_argument("--json", type=Path, help="file for the rows of all comparisons")
    args = parser.parse_args()
    settings = {"WARPCALL_DATA_DIR": str(args.data_dir), "WARPCALL_ARENA_BYTES": "64MiB"}
    with running_server(settings) as server, Client(server.url) as gpu:
        say(json.dumps(describe(server)))
        known = [job.id for job in gpu.jobs.list(tag=TAG, state="succeeded", limit=500)][::-1]
        sweep = {
            "shapes": [[int(side), int(side)] for side in args.sides.split(",")],
            "dtypes": ["F32"],
            "params": {"dims": [[1, 0]]},
        }
        for number in range(len(known), args.jobs):
            begin = time.monotonic()
            job = gpu.jobs.submit(
                "permute",
                implementations=args.vs.split(","),
                sweep=sweep,
                precision="quick",
                tags=[TAG],
                fresh=True,
            )
            rows = job.wait().measurements
            known.append(job.id)
            times = ", ".join(f"{row.median_us:.0f}" for row in rows if row.median_us)
            say(f"job {number + 1}: {time.monotonic() - begin:.0f} s; medians in us: {times}")
        found = {
            (a, b): [vars(row) for row in gpu.jobs.compare(known[a], known[b]).rows]
            for a, b in itertools.combinations(range(len(known)), 2)
        }
    if args.json:
        args.json.write_text(json.dumps([[*pair, rows] for pair, rows in found.items()]))
    report("all pairs", found.values())
    disjoint = [rows for (a, b), rows in found.items() if a % 2 == 0 and b == a + 1]
    report("pairs that share no job", disjoint)


def report(name: str, comparisons: Iterable[Sequence[dict[str, Any]]]) -> None:
    """Print how often two equal jobs, and each implementation in them, came out as different."""
    pairs = list(comparisons)
    wrong = sum(any(row["verdict"] in DIFFERENT for row in rows) for rows in pairs)
    rows = [row for rows in pairs for row in rows]
    say(f"{name}: {len(pairs)}; in {wrong} ({wrong / len(pairs):.1%}) some row is different")
    for (case, implementation), group in itertools.groupby(sorted(rows, key=_of), key=_of):
        same = list(group)
        verdicts = Counter(row["verdict"] or "none" for row in same)
        share = sum(verdicts[one] for one in DIFFERENT) / len(same)
        margins = sorted(row["margin"] for row in same if row["margin"] is not None)
        middle = f"{margins[len(margins) // 2]:.3f}" if margins else "none"
        counts = ", ".join(f"{verdict} {count}" for verdict, count in sorted(verdicts.items()))
        say(f"  {case} {implementation}: {share:.1%} different ({counts}); margin {middle}")
    share = sum(row["verdict"] in DIFFERENT for row in rows) / len(rows)
    say(f"  all {len(rows)} rows: {share:.1%} different")


def _of(row: dict[str, Any]) -> tuple[str, str]:
    return row["case"], row["implementation"]


def say(text: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
