"""Compare the shipped kernels with themselves as verified kernels, and time the way to a verdict.

    .venv/bin/python -m bench.jobs.verified_kernels --jobs 20

Each op gets a verified upload that calls the shipped op, so that both rows of a job launch the same
kernels. A row is flagged if it has no time, or a tag that says its time may be wrong.
A new source is then uploaded and timed at `quick` precision, from the upload to its verdict.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from typing import Any

from bench.jobs.calls_beside_jobs import ask, say
from bench.machine import describe
from demo.server import running_server
from warpcall.jobs import UNFINISHED
from warpcall_kernels import ops

FLAGS = frozenset({"suspect", "unconfirmed", "not captured", "wrong in odd cases"})
# Shapes as the specs of cases have them, by op. They are large enough for the GPU's memory to decide.
CASES: dict[str, list[dict[str, Any]]] = {
    "permute": [
        {"shape": [4096, 4096], "dtype": "BF16", "params": {"dims": [1, 0]}},
        {"shape": [64, 197, 12, 64], "dtype": "F16", "params": {"dims": [0, 2, 1, 3]}},
    ],
    "transpose-add": [{"shape": [64, 512, 512], "dtype": "F32"}],
    "masked-softmax": [{"shape": [8, 16, 512, 512], "dtype": "F16", "params": {"causal": True}}],
    "masked-softmax-backward": [{"shape": [8, 16, 512, 512], "dtype": "BF16"}],
    "masked-softmax-bias-backward": [{"shape": [8, 16, 512, 512], "dtype": "BF16"}],
    "conv": [{"shape": [16, 512, 2048], "dtype": "F16"}],
    "conv-backward": [{"shape": [16, 512, 2048], "dtype": "F16"}],
    "isin": [{"shape": [4_000_000], "dtype": "I64"}],
}
SOURCE = '''
"""The shipped op, number {number}."""
import warpcall_kernels

def {function}({arguments}):
    return warpcall_kernels.ops()["{op}"].function({passed})
'''
FRESH = """
import torch, triton
import triton.language as tl

@triton.jit
def kernel_{number}(x, y, rows, columns, SIDE: tl.constexpr):
    i = tl.program_id(0) * SIDE + tl.arange(0, SIDE)[:, None]
    j = tl.program_id(1) * SIDE + tl.arange(0, SIDE)[None, :]
    inside = (i < rows) & (j < columns)
    tl.store(y + i + j * rows, tl.load(x + i * columns + j, mask=inside) , mask=inside)

def permute(x, dims):
    rows, columns = x.shape
    y = torch.empty((columns, rows), dtype=x.dtype, device=x.device)
    kernel_{number}[(triton.cdiv(rows, 64), triton.cdiv(columns, 64))](x, y, rows, columns, 64, num_warps=8)
    return y
"""
CUDA = """
extern "C" __global__ void transpose_{number}(const unsigned short* x, unsigned short* y, int rows, int columns) {{
    __shared__ unsigned short tile[32][33];
    int i = blockIdx.y * 32 + threadIdx.y, j = blockIdx.x * 32 + threadIdx.x;
    for (int k = 0; k < 32; k += 8)
        if (i + k < rows && j < columns) tile[threadIdx.y + k][threadIdx.x] = x[(size_t)(i + k) * columns + j];
    __syncthreads();
    i = blockIdx.y * 32 + threadIdx.x, j = blockIdx.x * 32 + threadIdx.y;
    for (int k = 0; k < 32; k += 8)
        if (i < rows && j + k < columns) y[(size_t)(j + k) * rows + i] = tile[threadIdx.x][threadIdx.y + k];
}}
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--fresh", type=int, default=3, help="new sources of each language")
    parser.add_argument("--devices", default="auto")
    parser.add_argument("--precision", default="quick")
    args = parser.parse_args()
    settings = {
        "WARPCALL_DEVICES": args.devices,
        "WARPCALL_ARENA_BYTES": "256MiB",
        "WARPCALL_UPLOADS": "sandboxed",
    }
    with running_server(settings) as server:
        say(json.dumps(describe(server)))
        while ask(server.url, "/readyz")["uploads"] != "sandboxed":
            time.sleep(0.1)
        for language in ("python", "cuda"):
            took = [first_verdict(server.url, number, language) for number in range(args.fresh)]
            say(f"{language}: upload to first verdict {[round(one, 1) for one in took]} s")
        compare(server.url, args.jobs, args.precision)


def compare(url: str, jobs: int, precision: str) -> None:
    """Run jobs over the ops in turn, and print the ratios."""
    ratios: dict[str, list[float]] = {}
    rows = flagged = 0
    for number in range(jobs):
        op = [*CASES][number % len(CASES)]
        name = upload_of_op(url, op, number)
        asked = {"op": op, "cases": CASES[op], "implementations": ["warpcall", name, "copy"]}
        for row in run(url, {**asked, "precision": precision}):
            if row["implementation"] != name:
                continue
            rows += 1
            flags = FLAGS.intersection(row["tags"])
            if row["status"] != "ok" or flags or not row["verified"]:
                flagged += 1
                say(f"  flagged: {row['case']} {row['status']} {row['tags']} {row['error']}")
            elif row["ratio"] is not None:
                ratios.setdefault(row["case"], []).append(row["ratio"])
                say(f"  {row['case']} {row['ratio']:.4f} {row['verdict']}")
    for case, found in ratios.items():
        low, high = min(found), max(found)
        say(
            f"{case}: {len(found)} jobs, ratio {statistics.median(found):.4f} ({low:.4f} to {high:.4f})"
        )
    say(f"{jobs} jobs, {rows} rows, {flagged} flagged")


def upload_of_op(url: str, op: str, number: int) -> str:
    """Upload the shipped op as a verified kernel, and return its name."""
    declared, function = ops()[op], op.replace("-", "_")
    named = [*(one.name for one in declared.inputs), *(one.name for one in declared.params)]
    optional = {one.name for one in declared.inputs if one.optional}
    arguments = ["*", *(f"{n}=None" if n in optional else n for n in named)]
    source = SOURCE.format(
        number=number,
        op=op,
        function=function,
        arguments=", ".join(arguments),
        passed=", ".join(f"{n}={n}" for n in named),
    )
    body = {"op": op, "source": source, "name": f"shipped-{op}", "verified": True}
    return str(ask(url, "/v1/implementations", body)["name"])


def first_verdict(url: str, number: int, language: str) -> float:
    """Seconds from the upload of a new source to the verdict on it."""
    begin = time.monotonic()
    body: dict[str, Any] = {"op": "permute", "name": f"fresh-{language}", "verified": True}
    unique = f"{number}_{random.getrandbits(30)}"
    if language == "cuda":
        launch = {
            "kernel": f"transpose_{unique}",
            "grid": ["cdiv(columns, 32)", "cdiv(rows, 32)"],
            "block": [32, 8],
            "arguments": ["x", "out", {"i32": "rows"}, {"i32": "columns"}],
        }
        sizes = {"rows": "x.shape[0]", "columns": "x.shape[1]"}
        body |= {"language": "cuda", "launches": {"sizes": sizes, "launches": [launch]}}
        body["source"] = CUDA.format(number=unique)
    else:
        body["source"] = FRESH.format(number=unique)
    name = ask(url, "/v1/implementations", body)["name"]
    uploaded_s = time.monotonic() - begin
    asked = {"op": "permute", "cases": CASES["permute"][:1], "precision": "quick"}
    rows = run(url, {**asked, "implementations": ["warpcall", name, "copy"]})
    (row,) = (row for row in rows if row["implementation"] == name)
    took_s = time.monotonic() - begin
    say(
        f"  {language}: {row['status']}, {row['verdict']}, upload {uploaded_s:.1f} s, {row['error']}"
    )
    return took_s


def run(url: str, asked: dict[str, Any]) -> list[dict[str, Any]]:
    """Submit a job, and return its rows once it has ended."""
    job = ask(url, "/v1/jobs", asked)
    path = f"/v1/jobs/{job['id']}"
    while ask(url, path)["state"] in UNFINISHED:
        time.sleep(0.05)
    rows: list[dict[str, Any]] = ask(url, f"{path}/results")["measurements"]
    return rows


if __name__ == "__main__":
    main()
