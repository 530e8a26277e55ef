"""All seven ops on real input: through a real server, each result checked, shown in one table.

    make demo
    make demo ARGS="--url http://gpu-box:8000"

The picture, the text and the melody lie in demo/data. Each op is called through the SDK, two of
them through curl as well, as docs/calls.md shows, and every answer is compared with numpy.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from demo.server import running_server
from demo.steps import Array, Step, steps
from warpcall import Client

STAGES = ("queue", "h2d", "kernel", "d2h")
CALLS = 9  # of each op; times are medians
CURL_TIMEOUT_S = 20
ROOT = Path(__file__).parents[1]
SHOWN_URL = "http://127.0.0.1:8000"
SHORT = {"float32": "f32", "uint8": "u8", "int32": "i32", "bool": "bool"}


@dataclass(frozen=True)
class Row:
    """The result of one op.

    Attributes:
        stages_ms: the server's own account of a call.
        latency_ms: what the caller waited.
        of_copy: the kernel's speed as a share of a copy's, see `share_of_copy`.
        wrong: what is wrong with the answer, or None.
    """

    step: Step
    device: str
    stages_ms: Mapping[str, float]
    latency_ms: float
    of_copy: float
    wrong: str | None


def main() -> int:
    """Run the demo; 1 if any answer was wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", help="of a server that runs; its key is WARPCALL_API_KEY")
    url = parser.parse_args().url
    console = Console() if sys.stdout.isatty() else Console(width=100)
    began = time.monotonic()
    if url:
        failures = show(console, url)
    else:
        console.print("\nstarting a server on a free port, which takes some seconds ...")
        with running_server() as server:
            console.print(f"[bold]warpcall-server[/] at {server.url}, log in {server.log}\n")
            failures = show(console, server.url)
    seconds = time.monotonic() - began
    verdict = "[red]Some answers are wrong" if failures else "[green]Every answer is right"
    stopped = "" if url else ", the server has stopped"
    console.print(f"\n{verdict}[/]{stopped}; {seconds:.1f} s in all.")
    if not url:
        console.print(
            "`make serve` starts a server that keeps running; docs/calls.md has the first calls.\n"
        )
    return int(bool(failures))


def show(console: Console, url: str) -> list[str]:
    """Call every op, and tell; what was wrong."""
    with Client(url, progress=False) as gpu:
        rows = []
        for step in steps():
            console.print(f"[dim]{CALLS} calls of {step.op} on {step.about} ...")
            rows.append(run(gpu, step))
    console.print()
    console.print(table(rows))
    failures = [f"{row.step.op}: {row.wrong}" for row in rows if row.wrong]
    curls = (
        shutil.which("curl") and "WARPCALL_API_KEY" not in os.environ
    )  # those of the page have no key
    for op in ("permute", "isin") if curls else ():
        wrong = run_curl(op, url)
        console.print(f"curl {op:8} as in docs/calls.md: {_mark(wrong)}")
        failures += [f"curl {op}: {wrong}"] if wrong else []
    for failure in failures:
        console.print(f"[red]{escape(failure)}")
    return failures


def run(gpu: Client, step: Step) -> Row:
    """Call one op, several times for its times, and look at every answer."""
    wrong: str | None = None
    latencies, stages = [], []
    for _ in range(CALLS):
        began = time.perf_counter()
        answer = gpu.call(step.op, step.inputs, step.params)
        latencies.append((time.perf_counter() - began) * 1e3)
        stages.append(answer.timing_ms)
        wrong = wrong or step.wrong(answer.outputs)
    stages_ms = {name: median(s[name] for s in stages) for name in STAGES}
    return Row(
        step=step,
        device=answer.device,
        stages_ms=stages_ms,
        latency_ms=median(latencies),
        of_copy=copy_ms(gpu, step.nbytes) / max(stages_ms["kernel"], 1e-6),
        wrong=wrong,
    )


def copy_ms(gpu: Client, nbytes: int) -> float:
    """How long the device takes to move `nbytes` by copying: half of them read, half written.

    It is the kernel time of an identity permute, so op and yardstick are timed alike.
    """
    half = np.zeros((1, nbytes // 2), np.uint8)
    answers = [gpu.call("permute", {"x": half}, {"dims": (0, 1)}) for _ in range(CALLS)]
    return median(answer.timing_ms["kernel"] for answer in answers)


def run_curl(op: str, url: str) -> str | None:
    """Run the curl command of docs/calls.md for an op; what is wrong with its answer, or None."""
    step = next(step for step in steps() if step.op == op)
    command = shown_command(f"/v1/kernels/{op}")
    with tempfile.TemporaryDirectory() as folder:
        command = command.replace(SHOWN_URL, url).replace("-o ", f"-o {folder}/")
        done = subprocess.run(
            ["bash", "-c", command],
            capture_output=True,
            timeout=CURL_TIMEOUT_S,
            cwd=ROOT,
            check=False,
        )
        if done.returncode:
            return f"curl failed: {done.stderr.decode()}"
        written = list(Path(folder).iterdir())
        if written:
            return step.wrong({"out": np.load(written[0])})
    return _wrong_json(command, done.stdout)


def shown_command(part: str) -> str:
    """The curl command in docs/calls.md that has this in its URL."""
    page = (ROOT / "docs/calls.md").read_text()
    blocks = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    commands = (re.search(r"curl .*", block, re.DOTALL) for block in blocks if part in block)
    return next(command[0] for command in commands if command)


def table(rows: list[Row]) -> Table:
    """The rows, within 100 columns."""
    devices = ", ".join(dict.fromkeys(row.device for row in rows))
    made = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=0,
        title_justify="left",
        caption_justify="left",
        caption=(
            f"\ndevice: {devices}. Times in ms, medians of {CALLS} calls: total is what the caller "
            "waits, the rest the server's own stages. copy: the kernel's speed as a share of an "
            "identity permute that moves the same bytes (inputs once, outputs once) on that device."
        ),
    )
    for name in ("op", "input", "output", "device"):
        made.add_column(name, no_wrap=True)
    for name in (*STAGES, "total", "copy"):
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column("numpy", justify="center")
    for row in rows:
        step = row.step
        made.add_row(
            f"[bold]{step.op}[/]\n[dim]{step.about}",
            "\n".join(map(_shape, step.inputs.values())),
            "\n".join(map(_shape, step.expected.values())),
            row.device.partition(" ")[0],
            *(_ms(row.stages_ms[name]) for name in STAGES),
            _ms(row.latency_ms),
            f"{row.of_copy:.0%}",
            _mark(row.wrong),
        )
    return made


def _wrong_json(command: str, answer: bytes) -> str | None:
    """What is wrong with isin's answer to the JSON in a command, or None."""
    sent = json.loads(command.partition("--json '")[2].rpartition("'")[0])["inputs"]
    wanted = np.isin(sent["elements"], sent["test_elements"])
    got = json.loads(answer)["outputs"]["out"]["data"]
    return None if np.array_equal(got, wanted) else f"it says {got}, not {wanted.tolist()}"


def _shape(array: Array) -> str:
    return f"{'×'.join(map(str, array.shape))} {SHORT[array.dtype.name]}"


def _ms(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def _mark(wrong: str | None) -> str:
    return "[red]✗[/]" if wrong else "[green]✓[/]"


if __name__ == "__main__":
    sys.exit(main())
