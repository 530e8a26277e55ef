"""How long a server takes to be ready, and its first calls, with kernels compiled ahead and
without.

    python -m bench.warm

On a machine with a GPU. Each row is a new server; `first` is the first call of an op, `then` the
median of the next nine, as the caller sees them; the calls are the demo's, whose answers are
checked, and one matrix of a common size for each op that takes one. `compiled` counts the kernels
that calls had to wait for.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from demo.server import COMMAND, running_server
from demo.steps import Array, steps
from warpcall import Client

START_TIMEOUT_S = 900.0
AGAIN = 9
Calls = list[tuple[str, dict[str, Array], dict[str, Any]]]


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ahead = compile_ahead(folder / "ahead")
        print_line(f"compiled for this kind of GPU, without a GPU, in {ahead:.1f} s")
        for label, cache, warm in (
            ("nothing compiled, not warm", folder / "none", False),
            ("compiled ahead, not warm", folder / "ahead", False),
            ("compiled ahead, warm, first start", folder / "ahead", True),
            ("compiled ahead, warm, next start", folder / "ahead", True),
            ("nothing compiled, warm: a first start", folder / "fresh", True),
        ):
            serve(label, cache, warm)


def compile_ahead(cache: Path) -> float:
    """Fill a cache as an image's build does, for this machine's kind of GPU but without it;
    seconds.
    """
    import torch

    major, minor = torch.cuda.get_device_capability()
    began = time.monotonic()
    subprocess.run(
        [*COMMAND, "warm", "--gpu", f"sm_{major}{minor}"],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "TRITON_CACHE_DIR": str(cache)},
        check=True,
    )
    return time.monotonic() - began


def serve(label: str, cache: Path, warm: bool) -> None:
    """Start a server, call every op, and print how it went."""
    os.environ["TRITON_CACHE_DIR"] = str(cache)
    settings = {
        "WARPCALL_WARM": str(warm).lower(),
        "WARPCALL_START_TIMEOUT_S": str(START_TIMEOUT_S),
    }
    began = time.monotonic()
    with running_server(settings, start_timeout_s=START_TIMEOUT_S) as server:
        print_line(f"\n{label}: ready after {time.monotonic() - began:.1f} s")
        for line in server.log.read_text().splitlines():
            if "is warm" in line:
                print_line(f"  {line}")
        before = kernels(cache)
        with Client(server.url, progress=False) as gpu:
            gpu.kernels()  # the connection stands, and the ops are known
            for op, inputs, params in calls():
                first, *later = (timed(gpu, op, inputs, params) for _ in range(1 + AGAIN))
                shape = "x".join(map(str, next(iter(inputs.values())).shape))
                print_line(
                    f"  {op:24}{shape:16}first {first:8.1f} ms  then {median(later):7.1f} ms"
                )
            wrong = [s.op for s in steps() if s.wrong(gpu.call(s.op, s.inputs, s.params).outputs)]
        print_line(
            f"  compiled {kernels(cache) - before}; wrong answers: {', '.join(wrong) or 'none'}"
        )


def kernels(cache: Path) -> int:
    """How many Triton's cache has."""
    return sum(1 for _ in cache.rglob("*.cubin"))


def timed(gpu: Client, op: str, inputs: dict[str, Array], params: dict[str, Any]) -> float:
    """What one call takes, in ms."""
    began = time.perf_counter()
    gpu.call(op, inputs, params)
    return (time.perf_counter() - began) * 1e3


def calls() -> Calls:
    """The demo's, and matrices."""
    matrix = np.random.default_rng(1).standard_normal((1024, 1024)).astype(np.float32)
    half = matrix.astype(np.float16)
    rows = matrix[:64, :1000].reshape(1, 64, 1000).copy()
    return [
        *((step.op, dict(step.inputs), dict(step.params)) for step in steps()),
        ("permute", {"x": half}, {"dims": (1, 0)}),
        ("masked-softmax", {"x": half}, {}),
        ("masked-softmax-backward", {"grad_output": half, "output": half}, {}),
        (
            "masked-softmax-bias-backward",
            {"grad_output": half, "output": half, "bias": half[0].copy()},
            {},
        ),
        ("transpose-add", {"a": half, "b": half}, {}),
        ("conv", {"x": rows, "weight": matrix[:64, :7].copy()}, {}),
        ("conv-backward", {"grad_output": rows, "x": rows, "weight": matrix[:64, :7].copy()}, {}),
        ("isin", {"elements": half.view(np.int16), "test_elements": half[0].view(np.int16)}, {}),
    ]


def print_line(text: str) -> None:
    """At once, also into a file."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
