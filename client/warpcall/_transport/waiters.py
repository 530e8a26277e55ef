"""How the two clients wait for a socket: in the calling thread, or in the running asyncio loop."""

from __future__ import annotations

import asyncio
import queue
import select
import socket
import time
from abc import ABC, abstractmethod

from warpcall._transport.connect import Address, Endpoint, connect, connect_first
from warpcall._transport.deadlines import left_s

MAX_CONNECTIONS = 32  # of one client; further calls wait until one is free


class Waiter(ABC):
    """Waits for non-blocking sockets. Each method raises TimeoutError when `deadline` has passed.

    A read or write is tried first, and waits only if the socket is not ready. A socket with a
    timeout waits first, so that each read gets fewer bytes: 64 MB then took 10 or 16 ms instead of
    always 10 ms.
    """

    @abstractmethod
    async def connect(self, address: Address, deadline: float) -> socket.socket: ...

    async def send(self, sock: socket.socket, piece: memoryview, deadline: float) -> int:
        """Send some bytes, and return how many.

        Returns 0 if the peer has answered or closed the connection: it may not read any more.
        """
        while True:
            try:
                return sock.send(piece)
            except BlockingIOError:
                if await self.readable(sock, deadline, or_writable=True):
                    return 0

    async def receive(self, sock: socket.socket, view: memoryview, deadline: float) -> int:
        """Receive bytes into `view`, and return how many; 0 at the end."""
        while True:
            try:
                return sock.recv_into(view)
            except BlockingIOError:
                await self.readable(sock, deadline)

    @abstractmethod
    async def readable(
        self, sock: socket.socket, deadline: float, *, or_writable: bool = False
    ) -> bool:
        """Wait until `sock` is readable (or writable). Return whether it is readable."""

    @abstractmethod
    async def acquire_permit(self, deadline: float) -> None:
        """Wait until this exchange may have a connection; `release_permit` gives it back."""

    @abstractmethod
    def release_permit(self) -> None: ...

    @abstractmethod
    def renew_permits(self) -> None:
        """Give back all permits, in a process that was forked."""

    @abstractmethod
    async def sleep(self, seconds: float) -> None: ...


class BlockingWaiter(Waiter):
    """Waits by blocking the calling thread."""

    def __init__(self) -> None:
        self.renew_permits()

    def renew_permits(self) -> None:
        # A queue of permits: threading.Semaphore is written in Python and takes 2 us.
        self._permits: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(MAX_CONNECTIONS):
            self._permits.put(None)

    async def connect(self, address: Address, deadline: float) -> socket.socket:
        return connect(address, deadline)

    async def readable(
        self, sock: socket.socket, deadline: float, *, or_writable: bool = False
    ) -> bool:
        poll = select.poll()  # select cannot handle descriptors from 1024 on
        poll.register(sock, select.POLLIN | (select.POLLOUT if or_writable else 0))
        for _, event in poll.poll(left_s(deadline) * 1000):
            return bool(event & select.POLLIN)
        return False

    async def acquire_permit(self, deadline: float) -> None:
        try:
            self._permits.get(timeout=left_s(deadline))
        except queue.Empty:
            raise TimeoutError("the deadline passed") from None

    def release_permit(self) -> None:
        self._permits.put(None)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251  # no loop runs; see warpcall._blocking


class LoopWaiter(Waiter):
    """Waits in the running asyncio loop, also of uvloop."""

    def __init__(self) -> None:
        self.renew_permits()

    def renew_permits(self) -> None:
        self._permits = asyncio.Semaphore(MAX_CONNECTIONS)

    async def connect(self, address: Address, deadline: float) -> socket.socket:
        return await connect_first(address, deadline, self._attempt)

    async def _attempt(self, endpoint: Endpoint) -> socket.socket:
        sock = socket.socket(endpoint.family)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, endpoint.where)
        except BaseException:
            sock.close()
            raise
        return sock

    async def readable(
        self, sock: socket.socket, deadline: float, *, or_writable: bool = False
    ) -> bool:
        loop = asyncio.get_running_loop()
        found: asyncio.Future[bool] = loop.create_future()
        # asyncio writes an error's text with the repr of what it is given: a number costs least.
        number = sock.fileno()
        loop.add_reader(number, _report, found, True)
        if or_writable:
            loop.add_writer(number, _report, found, False)
        # asyncio.timeout would take 5 us more.
        timer = loop.call_later(left_s(deadline), _expire, found)
        try:
            return await found
        finally:
            timer.cancel()
            loop.remove_reader(number)
            if or_writable:
                loop.remove_writer(number)

    async def acquire_permit(self, deadline: float) -> None:
        if self._permits.locked():
            async with asyncio.timeout(left_s(deadline)):
                await self._permits.acquire()
        else:
            await self._permits.acquire()  # does not wait

    def release_permit(self) -> None:
        self._permits.release()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def _report(found: asyncio.Future[bool], readable: bool) -> None:
    if not found.done():
        found.set_result(readable)


def _expire(found: asyncio.Future[bool]) -> None:
    if not found.done():
        found.set_exception(TimeoutError("the deadline passed"))
