"""Compare two versions of the service in one run: calls a second, CPU of each call, calls beside jobs.

    git archive OLD | tar x -C .before
    python -m bench.before_after --before .before              about four minutes
    python -m bench.before_after --before .before --quick      small calls only
    python -m bench.before_after --before .before --cells 4KBx1 1MBx8
    python -m bench.before_after --before .before --quick --oip   inference requests

A server of each version runs all the time. Samples of the two alternate (old new, new old), so that
a machine that slows down slows both. CPU times are those of the kernel's scheduler, of all threads
of a process, divided by the number of calls. The load comes from one process that sends prepared
requests on many sockets (`bench.load`), and from processes with the SDK.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import psutil

from bench.callers import safetensors_head
from demo.server import Server, running_server
from warpcall import wire

KB, MB = 1 << 10, 1 << 20
ROOT = Path(__file__).parents[1]
PARTS = ("client", "kernels", "service")
SDK_PROCESSES = 8
JOB_S = 120.0  # limit on the time of a job
CELLS = (  # bytes, clients, seconds of a sample, samples of each version
    (4 * KB, 1, 0.7, 6),
    (4 * KB, 8, 0.7, 6),
    (4 * KB, 32, 0.7, 6),
    (MB, 1, 0.7, 4),
    (MB, 8, 0.7, 4),
    (64 * MB, 1, 1.0, 3),
    (512 * MB, 1, 1.5, 2),
)


@dataclass(frozen=True)
class Version:
    """A server of one version, and the processes whose CPU time counts."""

    name: str
    server: Server
    lanes: Sequence[int]


@dataclass(frozen=True)
class Sample:
    """What one sample measured: times of calls in ms, CPU of each call in us."""

    calls_per_s: float
    p50_ms: float
    http_us: float
    lane_us: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--before", type=Path, default=ROOT / ".before", help="the old tree")
    parser.add_argument("--quick", action="store_true", help="small calls only")
    parser.add_argument("--short", action="store_true", help="small calls, and calls beside a job")
    parser.add_argument("--cells", nargs="+", help="only these, such as 4KBx1 1MBx8")
    parser.add_argument("--oip", action="store_true", help="calls are inference requests")
    parser.add_argument("--devices", default="auto")
    parser.add_argument(
        "--warm-start", action="store_true", help="only starts that compile kernels"
    )
    parser.add_argument("--samples", type=int, default=0, help="of each version; 0: as each cell")
    given = parser.parse_args(arguments)
    trees = {"before": given.before.resolve(), "after": ROOT}
    settings = {"WARPCALL_DEVICES": given.devices}
    if given.warm_start:
        for name, tree in reversed(trees.items()):
            warm_start(name, tree, settings)
        return 0
    with ExitStack() as stack:
        versions = []
        for name, tree in trees.items():
            began = time.monotonic()
            server = stack.enter_context(running(tree, settings))
            lanes = [child.pid for child in psutil.Process(server.process.pid).children()]
            say(
                f"{name}: ready after {time.monotonic() - began:.2f} s, then "
                f"{pss_mb(server.process.pid):,.0f} MB (PSS) in all"
            )
            versions.append(Version(name, server, lanes))
        say(json.loads(versions[1].server.get("/readyz")[1])["lanes"][0]["device"], HEAD)
        for nbytes, clients, seconds, samples in CELLS:
            if (given.quick or given.short) and nbytes > 4 * KB:
                continue
            if given.cells and label(nbytes, clients).replace(" ", "") not in given.cells:
                continue
            load = load_of(f"{'oip' if given.oip else ''}{nbytes}", clients, seconds)
            report(label(nbytes, clients), alternate(versions, load, given.samples or samples))
        if not (given.quick or given.cells):
            if not given.short:
                sdk = sdk_load(1.0)
                report(f"SDK x {SDK_PROCESSES}", alternate(versions, sdk, 3))
            for i, version in enumerate((*versions, *reversed(versions))):
                beside_job(version, 16 * i)
    if not (given.quick or given.short or given.cells):
        for name, tree in (*trees.items(), *reversed(trees.items())):
            starts(name, tree, settings)
    return 0


def alternate(
    versions: Sequence[Version], load: Callable[[Version], Sample], samples: int
) -> Mapping[str, list[Sample]]:
    """Samples of both versions, in one order and then in the other, after one that does not count."""
    found: dict[str, list[Sample]] = {version.name: [] for version in versions}
    for version in versions:
        load(version)
    for i in range(samples):
        for version in versions if i % 2 == 0 else reversed(versions):
            found[version.name].append(load(version))
    return found


def load_of(kind: str, clients: int, seconds: float) -> Callable[[Version], Sample]:
    """Takes a sample with raw sockets; `kind` is as in `bench.load`."""
    command = [sys.executable, "-m", "bench.load", kind, str(clients), str(seconds)]
    return lambda version: measured(version, [[*command, str(version.server.port)]])


def sdk_load(seconds: float) -> Callable[[Version], Sample]:
    """Takes a sample with processes that use the SDK of this tree."""

    def load(version: Version) -> Sample:
        command = [sys.executable, "-m", "bench.load", "sdk", "1", str(seconds)]
        return measured(version, [[*command, str(version.server.port)]] * SDK_PROCESSES)

    return load


def measured(version: Version, commands: Sequence[list[str]]) -> Sample:
    """Run processes that load a server at the same time. Each says what it did in a line of JSON."""
    processes = [
        subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for command in commands
    ]
    for process in processes:  # each has made its first calls
        assert process.stdout is not None
        process.stdout.readline()
    http, lanes = cpu_us([version.server.process.pid]), cpu_us(version.lanes)
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()
    said = [json.loads(process.communicate()[0]) for process in processes]
    calls = sum(one["calls"] for one in said)
    return Sample(
        calls_per_s=sum(one["calls"] / one["seconds"] for one in said),
        p50_ms=median(one["p50_ms"] for one in said),
        http_us=(cpu_us([version.server.process.pid]) - http) / calls,
        lane_us=(cpu_us(version.lanes) - lanes) / calls,
    )


HEAD = (
    f"{'':12}{'':8}{'calls/s':>10}{'lowest':>10}{'highest':>10}{'p50 ms':>9}{'HTTP us':>9}"
    f"{'lane us':>9}"
)


def report(what: str, found: Mapping[str, Sequence[Sample]]) -> None:
    """Print a line for each version, and the ratio of new to old as the median over pairs."""
    for name, samples in found.items():
        rates = [sample.calls_per_s for sample in samples]
        say(
            f"{what:12}{name:8}{median(rates):10,.1f}{min(rates):10,.1f}{max(rates):10,.1f}"
            f"{median(s.p50_ms for s in samples):9.3f}{median(s.http_us for s in samples):9.1f}"
            f"{median(s.lane_us for s in samples):9.1f}"
        )
    old, new = found.values()
    ratios = [b.calls_per_s / a.calls_per_s for a, b in zip(old, new, strict=True)]
    say(f"{what:12}{'ratio':8}{median(ratios):10.2f}{min(ratios):10.2f}{max(ratios):10.2f}")


def beside_job(version: Version, more: int) -> None:
    """Make calls of 4 KB while a job measures, and print how long they took.

    Args:
        more: columns of the job's matrices. A job that was measured before would not run again.
    """
    url = version.server.url
    shape = [4096, 4096] if version.server.get("/v1/devices")[1].count("cuda") else [2048, 2048]
    cases = [
        {"shape": [shape[0], shape[1] + n + more], "dtype": "F32", "params": {"dims": [1, 0]}}
        for n in range(2)
    ]
    asked = {"op": "permute", "cases": cases, "precision": "quick"}
    asked["implementations"] = ["warpcall", "torch"]
    job = ask(url, "/v1/jobs", asked)
    path = f"/v1/jobs/{job['id']}"
    end = time.monotonic() + JOB_S
    while ask(url, path)["state"] == "queued" and time.monotonic() < end:
        time.sleep(0.02)
    command = [sys.executable, "-m", "bench.load", "beside", "1", "0", str(version.server.port)]
    loading = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert loading.stdout is not None
    loading.stdout.readline()
    assert loading.stdin is not None
    loading.stdin.write(b"go\n")
    loading.stdin.flush()
    while (done := ask(url, path))["exit_class"] is None and time.monotonic() < end:
        time.sleep(0.2)
    said = json.loads(loading.communicate(b"stop\n")[0])
    say(
        f"beside a job {version.name:8}{said['calls']:6} calls: p50 {said['p50_ms']:.2f}, "
        f"p99 {said['p99_ms']:.2f}, max {said['max_ms']:.2f} ms; the job: {done['state']}, "
        f"{done['took_s']:.1f} s"
    )
    for row in ask(url, f"{path}/results")["measurements"]:
        say(f"    {row['case']} {row['implementation']}: {row['median_us']:.2f} us, n {row['n']}")


def starts(name: str, tree: Path, settings: Mapping[str, str]) -> None:
    """Start a server, and print when it listens and when it is ready."""
    began = time.monotonic()
    with running(tree, settings, ready=False) as server:
        listens = time.monotonic() - began
        server.wait_ready()
        ready = time.monotonic() - began
        say(
            f"start {name:8}listens after {listens:.2f} s, ready after {ready:.2f} s, "
            f"{pss_mb(server.process.pid):,.0f} MB (PSS)"
        )


def warm_start(name: str, tree: Path, settings: Mapping[str, str]) -> None:
    """Start a server that compiles all kernels, with an empty cache; print what it could do when."""
    began = time.monotonic()
    tensor = np.ones((32, 32), np.float32)
    body = safetensors_head(tensor) + tensor.tobytes()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        warm = {**settings, "WARPCALL_WARM": "true", "WARPCALL_START_TIMEOUT_S": "600"}
        with running(tree, warm, ready=False) as server:
            say(f"warm start {name:8}listens after {time.monotonic() - began:.2f} s")
            said, answered = "", False
            while time.monotonic() < began + JOB_S * 2:
                if not answered and called(server.url, body):
                    answered = True
                    say(f"warm start {name:8}first answer after {time.monotonic() - began:.2f} s")
                status, text = server.get("/readyz")
                reasons = "; ".join(json.loads(text).get("reasons", []))
                if reasons.partition(":")[0] != said:
                    said = reasons.partition(":")[0]
                    say(f"warm start {name:8}{time.monotonic() - began:6.2f} s: {status} {reasons}")
                if status == 200 and answered and "warming" not in reasons:
                    break
                time.sleep(0.05)
            say(f"warm start {name:8}warm after {time.monotonic() - began:.2f} s")


def called(url: str, body: bytes) -> bool:
    """Whether a call is answered."""
    head = {"Content-Type": wire.MEDIA_TYPE}
    try:
        with urlopen(
            Request(f"{url}/v1/kernels/permute?dims=1,0", body, head), timeout=30
        ) as answer:
            return bool(answer.read())
    except OSError:
        return False


@contextmanager
def running(tree: Path, settings: Mapping[str, str], *, ready: bool = True) -> Iterator[Server]:
    """A server of the version in `tree`."""
    kept = os.environ.get("PYTHONPATH")
    paths = [*(str(tree / part) for part in PARTS), *filter(None, [kept])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    try:
        with running_server(settings, ready=ready, start_timeout_s=180) as server:
            if kept is None:
                del os.environ["PYTHONPATH"]
            else:
                os.environ["PYTHONPATH"] = kept
            yield server
    finally:
        os.environ.pop("PYTHONPATH", None) if kept is None else None


def cpu_us(pids: Sequence[int]) -> float:
    """CPU time that all threads of these processes have used, in us."""
    used = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            try:
                used += int((task / "schedstat").read_text().split()[0])
            except OSError:
                continue  # a thread that has ended
    return used / 1000


def pss_mb(pid: int) -> float:
    """Memory of a server's processes in MB; what they share counts once."""
    process = psutil.Process(pid)
    return (
        sum(one.memory_full_info().pss for one in (process, *process.children(recursive=True)))
        / 1e6
    )


def ask(url: str, path: str, payload: Any = None) -> Any:
    """The JSON that a route answers."""
    data = None if payload is None else json.dumps(payload).encode()
    request = Request(url + path, data, {"Content-Type": "application/json"})
    with urlopen(request, timeout=30) as answer:
        return json.load(answer)


def label(nbytes: int, clients: int) -> str:
    """A name of a cell."""
    size = f"{nbytes // MB} MB" if nbytes >= MB else f"{nbytes // KB} KB"
    return f"{size} x {clients}"


def say(*lines: str) -> None:
    """Print at once, also into a file."""
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
