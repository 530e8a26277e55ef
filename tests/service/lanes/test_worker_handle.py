"""What the server makes of a worker process that reads nothing, or that is not ready yet."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from typing import Any

import pytest

from warpcall_service.lanes.arena import Arena
from warpcall_service.lanes.messages import CALL, PACKET_BYTES, Hello, frame
from warpcall_service.lanes.worker_handle import WorkerHandle
from warpcall_service.settings import Settings

MESSAGE = b"x" * 1000


class SilentProcess:
    """Stands in for a worker process; the test reads its socket."""

    def __init__(self, *args: Any, **options: Any) -> None:
        del args, options
        sockets: dict[str, socket.socket] = {}
        self.sockets: Mapping[str, socket.socket] = sockets
        self.theirs: dict[str, socket.socket] = {}
        self.pid = 0
        kinds = {"calls": socket.SOCK_SEQPACKET, "plans": socket.SOCK_STREAM}
        for name, kind in kinds.items():
            sockets[name], self.theirs[name] = socket.socketpair(socket.AF_UNIX, kind)

    def poll(self) -> int:
        return 0

    async def wait(self) -> None:
        pass

    def kill(self) -> None:
        pass

    def close(self) -> None:
        for sock in self.theirs.values():
            sock.close()


def read_ids(theirs: socket.socket) -> list[int]:
    """Ids of all calls that have come."""
    found: list[int] = []
    while True:
        try:
            packet = theirs.recv(PACKET_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return found
        at = 0
        while at < len(packet):
            call_id, *_, nbytes = CALL.unpack_from(packet, at)
            at += CALL.size + nbytes
            found.append(call_id)


@pytest.mark.parametrize("at_once", [True, False])
def test_calls_wait_in_order_until_the_worker_reads(
    at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        arena = Arena(1 << 20)
        worker = WorkerHandle(
            "cpu",
            arena,
            Settings.load(),
            lambda done, problem: None,
            lambda reason: None,
            lambda: None,
            SilentProcess,
        )
        theirs = worker._process.theirs["calls"]  # type: ignore[attr-defined]
        taken: list[int] = []

        def send() -> bool:
            call_id = len(taken) + 1
            if worker.send(call_id, 0, 0, 0.0, MESSAGE, at_once=at_once):
                taken.append(call_id)
                return True
            return False

        while send():
            await asyncio.sleep(0)
            assert len(taken) < 1_000_000
        assert not send()  # nor does it take any while the socket is full
        assert worker.last_sent <= len(taken)

        found: list[int] = []
        async with asyncio.timeout(30):
            while len(found) < len(taken):
                found += read_ids(theirs)
                await asyncio.sleep(0)
        assert found == taken
        assert worker.last_sent == len(taken)

        assert send()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert read_ids(theirs) == [taken[-1]]
        await worker.end()
        arena.memory.close()

    asyncio.run(play())


def test_a_worker_tells_which_kernels_are_compiled_before_and_after_its_hello(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play() -> tuple[list[str], Hello]:
        said: list[str] = []
        arena = Arena(1 << 20)
        worker = WorkerHandle(
            *("cuda:0", arena, Settings.load(), lambda done, problem: None, said.append),
            lambda: said.append(worker.warming),
            SilentProcess,
        )
        theirs = worker._process.theirs["plans"]  # type: ignore[attr-defined]
        theirs.sendall(frame({"warming": ["compiling", 0, 0]}) + frame({"device": "cuda:0"}))
        hello = await worker.hello(30.0)
        for warming in (["compiling", 312, 1588], ["loading", 3, 1904], ["", 0, 0]):
            theirs.sendall(frame({"warming": warming}))
        while not said or said[-1]:
            await asyncio.sleep(0)
        await worker.end()
        arena.memory.close()
        return said, hello

    assert asyncio.run(play()) == (
        [
            "warming, listing the kernels",
            "warming 312 of 1,588 kernels",
            "warming, loading the kernels of 3 of 1,904 calls",
            "",
        ],
        {"device": "cuda:0"},
    )
