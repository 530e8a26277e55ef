"""Compares the ways of tritonclient to a running server: HTTP, gRPC, and each with shared memory.

    python bench/oip_clients.py HTTP_ADDRESS GRPC_ADDRESS

It needs `tritonclient[all]`, in an environment of its own, and nothing of Warpcall. The server needs
`--grpc-port` and, for shared memory, `WARPCALL_USER_MAX_SHARED_BYTES`. Each round calls a transposition in all
ways, one after the other; the table has the medians over the rounds, and ratios within a round.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
from tritonclient.utils import shared_memory

SIZES = {"4 KB": 1 << 12, "1 MB": 1 << 20, "64 MB": 64 << 20}
SECONDS = 1.0  # of calls in one way and round


def caller(
    api: Any, address: str, x: Any, region: tuple[str, Any, int] | None
) -> Callable[[], Any]:
    """A function that makes one call and returns its output."""
    client = api.InferenceServerClient(address)
    given = api.InferInput("x", x.shape, "FP32")
    outputs = None
    if region is None:
        given.set_data_from_numpy(x)
    else:
        name, memory, at = region
        given.set_shared_memory(name, x.nbytes, offset=0)
        outputs = [api.InferRequestedOutput("out")]
        outputs[0].set_shared_memory(name, x.nbytes, offset=at)

    def call() -> Any:
        result = client.infer("permute", [given], outputs=outputs, parameters={"dims": "1,0"})
        if region is None:
            return result.as_numpy("out")
        return shared_memory.get_contents_as_numpy(memory, x.dtype, x.T.shape, offset=at)

    return call


def per_second(call: Callable[[], Any]) -> float:
    count, began = 0, time.perf_counter()
    while (passed := time.perf_counter() - began) < SECONDS or not count:
        call()
        count += 1
    return count / passed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("http")
    parser.add_argument("grpc")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    nbytes = 2 * max(SIZES.values())
    memory = shared_memory.create_shared_memory_region("bench", "/warpcall-bench", nbytes)
    registering = over_http.InferenceServerClient(args.http)
    registering.register_system_shared_memory("bench", "/warpcall-bench", nbytes)
    try:
        for size, octets in SIZES.items():
            x = np.random.default_rng(1).random((octets // 256, 64), np.float32)
            shared_memory.set_shared_memory_region(memory, [x])
            region = ("bench", memory, nbytes // 2)
            calls = {
                "http": caller(over_http, args.http, x, None),
                "grpc": caller(over_grpc, args.grpc, x, None),
                "http, shared memory": caller(over_http, args.http, x, region),
                "grpc, shared memory": caller(over_grpc, args.grpc, x, region),
            }
            for name, call in calls.items():
                if not np.array_equal(call(), x.T):
                    raise SystemExit(f"{name} has answered with something else")
            rates: dict[str, list[float]] = {name: [] for name in calls}
            for _ in range(args.rounds):
                for name, call in calls.items():
                    rates[name].append(per_second(call))
            for name, found in rates.items():
                ratio = statistics.median(b / a for a, b in zip(rates["http"], found, strict=True))
                median = statistics.median(found)
                sys.stdout.write(f"{size:6}{name:22}{median:10.1f} calls/s {ratio:6.2f} of http\n")
    finally:
        registering.unregister_system_shared_memory("bench")
        shared_memory.destroy_shared_memory_region(memory)


if __name__ == "__main__":
    main()
