"""Runs beside a server: calls that are under way when it is stopped must still be answered.

Prints "in flight" once they are, and "answered" once all have come and are right.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from urllib.request import urlopen

import numpy as np

from warpcall import Client

URL = "http://127.0.0.1:8000"
CALLS = 3  # one that runs and two that wait; each takes some 0.6 s on one CPU


def in_flight() -> int:
    with urlopen(f"{URL}/readyz", timeout=10) as answer:
        lanes = json.load(answer)["lanes"]
    return sum(lane["in_flight"] + lane["queued"] for lane in lanes)


def main() -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((4, 64, 16384), dtype=np.float32)
    weight = rng.standard_normal((64, 512), dtype=np.float32)
    with Client(URL, progress=False, retries=0) as gpu, ThreadPoolExecutor(CALLS) as pool:
        wanted = gpu.conv(x, weight)
        calls = [pool.submit(gpu.conv, x, weight) for _ in range(CALLS)]
        while in_flight() < CALLS:  # on a busy machine, one may end before the last one has come
            for i, call in enumerate(calls):
                if call.done():
                    np.testing.assert_array_equal(call.result(), wanted)
                    calls[i] = pool.submit(gpu.conv, x, weight)
        sys.stdout.write("in flight\n")
        sys.stdout.flush()
        for call in calls:
            np.testing.assert_array_equal(call.result(), wanted)
    sys.stdout.write("answered\n")


if __name__ == "__main__":
    main()
