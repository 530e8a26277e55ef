"""Measure what a crowd of bad clients costs a good one.

    .venv/bin/python -m bench.crowd

A thousand connections at once, in a process of its own: some idle, some that send a head or a body
a byte at a time, some that send half a body and break off, some that do not read their answer. A
good client makes 4 KB calls, one at a time, alternately without the crowd and with it. The crowd
runs at the lowest priority, as its clients would be on other machines.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import resource
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.callers import DIMS, OP, RawClient, safetensors_head
from bench.fairness import NICE, latencies, tensor_of
from bench.machine import describe
from demo.server import running_server
from warpcall import wire

KB = 1 << 10
GOOD_BYTES = 4 * KB
BODY_BYTES = 64 * KB  # of a body that is not sent to its end
UNREAD_BYTES = 512 * KB  # of an answer that is not read: more than the sockets hold
DRIBBLE_S = 1.0  # between two bytes, and between two connections of those who break off
ALLOWED = 2.0  # times the latency without the crowd

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True)
class Result:
    """Milliseconds, but for counts."""

    alone_p50_ms: float
    alone_p99_ms: float
    crowded_p50_ms: float
    crowded_p99_ms: float
    connections: int
    calls: int

    @property
    def well(self) -> bool:
        return self.crowded_p50_ms <= ALLOWED * self.alone_p50_ms


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit status is 1 if the good client's latency is more than allowed."""
    parser = argparse.ArgumentParser(prog="python -m bench.crowd", description=__doc__)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--calls", type=int, default=1000, help="with the crowd, and without")
    parser.add_argument("--json", type=Path, help="write the result there")
    given = parser.parse_args(arguments)
    with running_server() as server:
        machine = describe(server)
        result = measure(server.port, given.connections, given.calls)
    for name, value in {**machine, **asdict(result)}.items():
        shown = f"{value:.2f}" if isinstance(value, float) else value
        sys.stdout.write(f"{name}: {shown}\n")
    if given.json:
        given.json.write_text(json.dumps({"machine": machine, **asdict(result)}, indent=1))
    return 0 if result.well else 1


def measure(port: int, connections: int, calls: int) -> Result:
    """The good client's calls, alternately without and with the crowd, so that a machine that slows
    down slows both.
    """
    good = RawClient(port, tensor_of(GOOD_BYTES))
    latencies(good, calls // 10)
    alone: list[float] = []
    crowded: list[float] = []
    for _ in range(2):
        alone += latencies(good, calls // 2)
        with crowd(port, connections):
            crowded += latencies(good, calls // 2)
    good.close()
    alone_p50, alone_p99 = map(float, np.percentile(alone, [50, 99]))
    crowded_p50, crowded_p99 = map(float, np.percentile(crowded, [50, 99]))
    return Result(alone_p50, alone_p99, crowded_p50, crowded_p99, connections, calls)


@contextmanager
def crowd(port: int, connections: int) -> Iterator[None]:
    """The bad clients, from when all have connected once; killed at the end."""
    command = [*NICE, sys.executable, "-m", "bench.crowd", "crowd", str(port), str(connections)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            process.stdout.readline()
            yield
        finally:
            process.kill()


async def be_crowd(port: int, connections: int) -> None:
    """Misbehave on so many connections until killed; a line on stdout when all are there."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 2 * connections)), hard))
    there = asyncio.Semaphore(0)

    async def client(behave: Callable[[Stream], Coroutine[Any, Any, None]]) -> None:
        announced = False
        while True:
            with contextlib.suppress(OSError):
                stream = await asyncio.open_connection("127.0.0.1", port, limit=KB)
                if not announced:
                    there.release()
                    announced = True
                try:
                    await behave(stream)
                finally:
                    stream[1].transport.abort()
            await asyncio.sleep(DRIBBLE_S)

    behaviours = (be_idle, dribble_a_head, dribble_a_body, break_off, do_not_read)
    clients = [
        asyncio.create_task(client(behaviours[i % len(behaviours)])) for i in range(connections)
    ]
    for _ in clients:
        await there.acquire()
    sys.stdout.write("there\n")
    sys.stdout.flush()
    await asyncio.gather(*clients)


async def be_idle(stream: Stream) -> None:
    """Connect, and no more."""
    await stream[0].read()


async def dribble_a_head(stream: Stream) -> None:
    """A head that comes a byte at a time."""
    await _dribble(stream, request(BODY_BYTES)[:40], b"x")


async def dribble_a_body(stream: Stream) -> None:
    """A body whose second half comes a byte at a time."""
    sent = request(BODY_BYTES)
    await _dribble(stream, sent[: len(sent) // 2], b"\0")


async def break_off(stream: Stream) -> None:
    """Half a body, and then a reset."""
    sent = request(BODY_BYTES)
    stream[1].write(sent[: len(sent) // 2])
    await stream[1].drain()
    raw: socket.socket = stream[1].get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def do_not_read(stream: Stream) -> None:
    """A whole call whose answer nobody reads, until the server gives up."""
    reader, writer = stream
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(request(UNREAD_BYTES))
    await writer.drain()
    while not writer.is_closing():
        await asyncio.sleep(DRIBBLE_S)
        writer.write(b"")
        if reader.at_eof():
            return


async def _dribble(stream: Stream, beginning: bytes, piece: bytes) -> None:
    """Send `beginning`, then `piece` again and again, until the server closes."""
    reader, writer = stream
    writer.write(beginning)
    while not reader.at_eof() and not writer.is_closing():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(reader.read(KB), DRIBBLE_S)
        writer.write(piece)


def request(nbytes: int) -> bytes:
    """A call with a tensor of so many bytes."""
    tensor = np.zeros((nbytes // KB, 256), np.float32)
    body = safetensors_head(tensor) + tensor.tobytes()
    dims = ",".join(map(str, DIMS))
    return (
        f"POST /v1/kernels/{OP}?dims={dims} HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: {wire.MEDIA_TYPE}\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


if __name__ == "__main__":
    if sys.argv[1:2] == ["crowd"]:
        asyncio.run(be_crowd(int(sys.argv[2]), int(sys.argv[3])))
    sys.exit(main())
