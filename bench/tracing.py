"""Measure what traces cost: two servers, of which one makes them, and one collector.

    python -m bench.tracing                        about six minutes
    python -m bench.tracing --cells 4KBx8          only these
    python -m bench.tracing --sampler parentbased_traceidratio --ratio 0.01

Samples of the two servers alternate (off on, on off). The collector is a process that reads what it
is sent and answers. In the last cell the programs with the SDK make traces, too: each of their calls
has a `traceparent`. See `bench.before_after` for the columns.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psutil

from bench.before_after import (
    HEAD,
    KB,
    MB,
    SDK_PROCESSES,
    Sample,
    Version,
    alternate,
    label,
    load_of,
    measured,
    report,
    say,
)
from demo.server import running_server

CELLS = ((4 * KB, 1), (4 * KB, 8), (MB, 1), (MB, 8), (16 * MB, 1))  # bytes, clients
SECONDS = 3.0  # of a sample: after a pause, the first second has more traces than the others


def main() -> int:
    """Measure and print; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--devices", default="auto")
    parser.add_argument("--samples", type=int, default=8, help="of each server in a cell")
    parser.add_argument("--sampler", default="", help="a value of OTEL_TRACES_SAMPLER")
    parser.add_argument("--ratio", default="", help="a value of OTEL_TRACES_SAMPLER_ARG")
    parser.add_argument("--cells", nargs="+", help="only these, such as 4KBx8 or sdk")
    given = parser.parse_args()
    settings = {"WARPCALL_DEVICES": given.devices}
    with running_sink() as url:
        asked = {"OTEL_EXPORTER_OTLP_ENDPOINT": url}
        sampler = {"OTEL_TRACES_SAMPLER": given.sampler, "OTEL_TRACES_SAMPLER_ARG": given.ratio}
        asked |= {name: value for name, value in sampler.items() if value}
        with running_server(settings) as off, running_server({**settings, **asked}) as on:
            servers = {"off": off, "on": on}
            versions = [
                Version(
                    name,
                    server,
                    [child.pid for child in psutil.Process(server.process.pid).children()],
                )
                for name, server in servers.items()
            ]
            say(HEAD)
            for nbytes, clients in CELLS:
                what = label(nbytes, clients)
                if not given.cells or what.replace(" ", "") in given.cells:
                    load = load_of(str(nbytes), clients, SECONDS)
                    report(what, alternate(versions, load, given.samples))
            for clients in (1, SDK_PROCESSES):
                if not given.cells or "sdk" in given.cells:
                    load = sdk_load(asked, clients)
                    report(f"SDK x {clients}", alternate(versions, load, given.samples))
            say(left_out(on.get("/metrics")[1]))
    return 0


def sdk_load(asked: Mapping[str, str], clients: int) -> Callable[[Version], Sample]:
    """Takes a sample with processes that use the SDK, and make traces if the server does."""

    def load(version: Version) -> Sample:
        command = [sys.executable, "-m", "bench.load", "sdk", "1", str(SECONDS)]
        variables = asked if version.name == "on" else {}
        os.environ.update(variables)
        try:
            return measured(version, [[*command, str(version.server.port)]] * clients)
        finally:
            for name in variables:
                del os.environ[name]

    return load


def left_out(metrics: str) -> str:
    """The lines of a server's metrics about requests: all of them, and those without spans."""
    names = ("warpcall_requests_total", "warpcall_traces_left_out_total")
    return "\n".join(line for line in metrics.splitlines() if line.startswith(names))


class Sink(BaseHTTPRequestHandler):
    """Reads what it is sent, and answers."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing."""


@contextmanager
def running_sink() -> Iterator[str]:
    """The URL of a collector, in a process of its own."""
    command = [sys.executable, "-c", "import bench.tracing; bench.tracing.serve()"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def serve() -> None:
    """Collect on a free port of this machine, whose URL is printed as the only line."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Sink) as server:
        sys.stdout.write(f"http://127.0.0.1:{server.server_address[1]}\n")
        sys.stdout.flush()
        server.serve_forever()


if __name__ == "__main__":
    sys.exit(main())
