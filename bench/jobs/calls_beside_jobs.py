"""Measure what a benchmark job costs the calls on its device.

    .venv/bin/python -m bench.jobs.calls_beside_jobs

One client makes small calls, first alone, then while a job runs, and checks every answer. A call
may have to wait for one timed block of the job; how long these were, the job's device time and the
number of its samples tell.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from typing import Any
from urllib.request import Request, urlopen

import numpy as np

from bench.machine import describe
from demo.server import running_server
from warpcall import Client

PAUSE_S = 0.01  # between two calls, at most: they come at any moment of a block
SIDE = 32  # 4 KB


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20, help="of calls alone")
    parser.add_argument("--cases", type=int, default=6, help="of the job, some 7 s each on a CPU")
    parser.add_argument(
        "--side", type=int, default=2048, help="of the square that the job permutes"
    )
    parser.add_argument("--devices", default="auto")
    args = parser.parse_args()
    settings = {"WARPCALL_DEVICES": args.devices, "WARPCALL_ARENA_BYTES": "256MiB"}
    with running_server(settings) as server, Client(server.url) as gpu:
        say(json.dumps(describe(server)))
        end = time.monotonic() + args.seconds
        report("alone", calls(gpu, lambda: time.monotonic() < end))
        cases = [
            {"shape": [args.side, args.side + n], "dtype": "F32", "params": {"dims": [1, 0]}}
            for n in range(args.cases)
        ]
        asked = {"op": "permute", "cases": cases, "precision": "quick"}
        asked["implementations"] = ["warpcall", "torch"]
        job = ask(server.url, "/v1/jobs", asked)
        path = f"/v1/jobs/{job['id']}"
        while ask(server.url, path)["state"] not in ("running", "failed"):
            time.sleep(0.05)
        looked = [time.monotonic(), True]

        def runs() -> bool:
            if time.monotonic() > looked[0] + 0.5:
                looked[:] = [time.monotonic(), ask(server.url, path)["state"] == "running"]
            return bool(looked[1])

        report("beside a job", calls(gpu, runs))
        while (done := ask(server.url, path))["exit_class"] is None:
            time.sleep(0.05)
        found = ask(server.url, f"{path}/results")
        say(f"the job: {done['state']}, {done['cases_done']} cases in {done['took_s']:.1f} s")
        for row in found["measurements"]:
            say(f"  {row['case']} {row['implementation']}: {row['median_us']:.1f} us, n {row['n']}")


def calls(gpu: Client, more: Any) -> list[float]:
    """Seconds that calls took, each checked."""
    drawn = random.Random(1)
    took = []
    while more():
        x = np.full((SIDE, SIDE), drawn.random(), np.float32)
        x[0] = range(SIDE)
        begin = time.perf_counter()
        y = gpu.permute(x, dims=(1, 0))
        took.append(time.perf_counter() - begin)
        if not np.array_equal(y, x.T):
            raise SystemExit("a wrong answer")
        time.sleep(drawn.uniform(0, PAUSE_S))
    return took


def ask(url: str, path: str, body: Any = None) -> Any:
    """A JSON answer."""
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(url + path, data, {"Content-Type": "application/json"})) as answer:
        return json.load(answer)


def report(what: str, took_s: list[float]) -> None:
    """Percentiles of latencies."""
    p50, p99, most = np.percentile(took_s, [50, 99, 100]) * 1e3
    say(
        f"{what}: {len(took_s)} calls, all right; median {p50:.1f} ms, p99 {p99:.1f} ms, "
        f"slowest {most:.1f} ms"
    )


def say(text: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
