"""How the two clients wait for a socket: in the calling thread, or in the running asyncio loop."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator

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
    def connection_permit(
        self, deadline: float
    ) -> contextlib.AbstractAsyncContextManager[None]: ...

    @abstractmethod
    async def sleep(self, seconds: float) -> None: ...


class BlockingWaiter(Waiter):
    """Waits by blocking the calling thread."""

    def __init__(self) -> None:
        self._permits = threading.BoundedSemaphore(MAX_CONNECTIONS)

    async def connect(self, address: Address, deadline: float) -> socket.socket:
        return connect(address, deadline)

    async def readable(
        self, sock: socket.socket, deadline: float, *, or_writable: bool = False
    ) -> bool:
        poll = select.poll()  # select cannot handle descriptors from 1024 on
        poll.register(sock, select.POLLIN | (select.POLLOUT if or_writable else 0))
        return any(event & select.POLLIN for _, event in poll.poll(left_s(deadline) * 1000))

    @contextlib.asynccontextmanager
    async def connection_permit(self, deadline: float) -> AsyncIterator[None]:
        if not self._permits.acquire(timeout=left_s(deadline)):
            raise TimeoutError("the deadline passed")
        try:
            yield
        finally:
            self._permits.release()

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251  # no loop runs; see warpcall._blocking


class LoopWaiter(Waiter):
    """Waits in the running asyncio loop, also of uvloop."""

    def __init__(self) -> None:
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

        def report(readable: bool) -> None:
            if not found.done():
                found.set_result(readable)

        loop.add_reader(sock, report, True)
        if or_writable:
            loop.add_writer(sock, report, False)
        try:
            async with asyncio.timeout(left_s(deadline)):
                return await found
        finally:
            loop.remove_reader(sock)
            loop.remove_writer(sock)

    @contextlib.asynccontextmanager
    async def connection_permit(self, deadline: float) -> AsyncIterator[None]:
        async with asyncio.timeout(left_s(deadline)):
            await self._permits.acquire()
        try:
            yield
        finally:
            self._permits.release()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
