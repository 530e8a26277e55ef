"""The job's process asks its reaper to start and end upload processes, from several threads."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from warpcall_bench.runs.messages import REQUEST_BYTES
from warpcall_bench.runs.peers import Reaper

THREADS = 8


@pytest.fixture
def reaper() -> Iterator[Reaper]:
    """One whose other side answers each request about a process with the number of that process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def answer() -> None:
        waiting: list[dict[str, int]] = []
        while True:
            text, fds, _, _ = socket.recv_fds(theirs, REQUEST_BYTES, 2)
            for fd in fds:
                os.close(fd)
            if not text:
                return
            waiting.append(json.loads(text))
            theirs.settimeout(0.02)  # in which the request of another thread would come, too
            try:
                theirs.recv(1, socket.MSG_PEEK)
            except TimeoutError:
                pass
            else:
                continue
            finally:
                theirs.settimeout(None)
            for one in reversed(waiting):
                started = {"root": one.get("start", -1), "processes": "", "bubblewrap": []}
                ended = {"status": one.get("end", -1), "out_of_memory": False, "left": False}
                reply = {**started, "trouble": ""} if "start" in one else ended
                theirs.send(json.dumps(reply).encode())
            waiting.clear()

    thread = threading.Thread(target=answer)
    thread.start()
    yield Reaper(ours)
    ours.close()
    thread.join()
    theirs.close()


def test_each_thread_gets_the_answer_to_its_own_request(reaper: Reaper) -> None:
    begin = threading.Barrier(THREADS)

    def start_and_end() -> tuple[int, int, int | None]:
        begin.wait()
        peer = reaper.start("a.module", prints=False)
        begin.wait()
        peer.sock.close()
        ended = reaper.end(peer._number, ended=True)
        return peer._number, peer._started["root"], ended["status"]

    with ThreadPoolExecutor(THREADS) as threads:
        found = [one.result() for one in [threads.submit(start_and_end) for _ in range(THREADS)]]

    assert sorted(number for number, _, _ in found) == [*range(THREADS)]
    for number, root, status in found:
        assert (root, status) == (number, number)
