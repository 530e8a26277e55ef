"""One process that loads a server: python -m bench.load BYTES CLIENTS SECONDS PORT.

It sends prepared requests on many sockets, one call at a time on each, and waits for the answers
with epoll, so that a call costs this process less than the server. BYTES may begin with `oip`, as in
`oip4096`: then the calls are inference requests. It may be `sdk` (calls of 4 KB through the SDK, one at
a time) or `beside` (calls of 4 KB with short pauses, until standard input
ends). The process says "ready" after its first calls, begins when it reads a line, and then writes
what it did as JSON.
"""

from __future__ import annotations

import json
import random
import select
import socket
import sys
import threading
import time
from collections.abc import Callable

import numpy as np

from bench.callers import RawClient, refuse_other
from warpcall import Client
from warpcall.sockets import prepare

KB = 1 << 10
ROW = 256  # elements of the tensor's inner dim
TAIL = 64  # bytes at the end of each answer that are compared
BUFFER_BYTES = 1 << 20
PAUSE_S = 0.003  # between two calls beside a job, at most


def main() -> None:
    """Load the server as the command says."""
    kind, clients, seconds, port = sys.argv[1:]
    random_ = np.random.default_rng(0)
    size = kind.removeprefix("oip")
    nbytes = int(size) if size.isdigit() else 4 * KB
    tensor = random_.random(nbytes // 4, np.float32).reshape(-1, ROW)
    checked = RawClient(int(port), tensor, oip=size != kind)
    checked.call()
    refuse_other(np.frombuffer(checked.received, np.float32), tensor)
    if kind == "sdk":
        gpu = Client(f"http://127.0.0.1:{port}", progress=False)
        took, spent = timed(lambda: gpu.permute(tensor, dims=(0, 1)), float(seconds))
    elif kind == "beside":
        took, spent = beside(checked)
    elif nbytes > BUFFER_BYTES or int(clients) == 1:
        took, spent = timed(checked.call, float(seconds))
    else:
        took, spent = many(checked, int(port), int(clients), float(seconds))
    ms = np.array(took) * 1e3
    said = {"calls": len(took), "seconds": spent, "max_ms": float(ms.max())}
    said |= {f"p{q}_ms": float(np.percentile(ms, q)) for q in (50, 99)}
    sys.stdout.write(json.dumps(said))


def begin() -> float:
    """Say that this process is ready, and wait until it may begin; the time then."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    return time.perf_counter()


def timed(call: Callable[[], object], seconds: float) -> tuple[list[float], float]:
    """One call after the other: what each took, and all of them."""
    for _ in range(3):
        call()
    took = []
    at = began = begin()
    while at < began + seconds:
        call()
        now = time.perf_counter()
        took.append(now - at)
        at = now
    return took, at - began


def beside(client: RawClient) -> tuple[list[float], float]:
    """Calls with pauses between them, until standard input ends."""
    drawn, took = random.Random(1), []
    client.call()
    began = begin()
    ended = threading.Event()

    def wait() -> None:
        sys.stdin.readline()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    while not ended.is_set():
        at = time.perf_counter()
        client.call()
        took.append(time.perf_counter() - at)
        time.sleep(drawn.random() * PAUSE_S)
    return took, time.perf_counter() - began


def many(checked: RawClient, port: int, clients: int, seconds: float) -> tuple[list[float], float]:
    """Calls on many sockets at once. The end of every answer is compared."""
    request = b"".join(checked.parts)
    tail = request[-TAIL:]
    poller, sockets = select.epoll(), {}
    for _ in range(clients):
        sock = socket.create_connection(("127.0.0.1", port))
        prepare(sock)
        sockets[sock.fileno()] = sock
        poller.register(sock.fileno(), select.EPOLLIN)
    buffers = {fd: bytearray(BUFFER_BYTES * 2) for fd in sockets}
    filled = dict.fromkeys(sockets, 0)
    sent_at = dict.fromkeys(sockets, 0.0)
    took: list[float] = []
    wanted = checked.answer_nbytes
    began = begin()
    for fd, sock in sockets.items():
        sent_at[fd] = time.perf_counter()
        sock.sendall(request)
    end, now, open_calls = began + seconds, began, clients
    while open_calls:
        for fd, _ in poller.poll():
            buffer, at, sock = buffers[fd], filled[fd], sockets[fd]
            got = sock.recv_into(memoryview(buffer)[at:])
            if not got:
                raise ConnectionError("the server left")
            at += got
            # A head may be some bytes shorter or longer: the times in it have different lengths.
            if at < wanted - TAIL or buffer[at - TAIL : at] != tail:
                filled[fd] = at
                continue
            now = time.perf_counter()
            took.append(now - sent_at[fd])
            filled[fd] = 0
            if now < end:
                sent_at[fd] = now
                sock.sendall(request)
            else:
                open_calls -= 1
    return took, now - began


if __name__ == "__main__":
    main()
