"""Parent-side handle of one worker process: start it, exchange messages, end it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from warpcall_service.lanes.arena import Arena
from warpcall_service.lanes.messages import (
    CALL,
    DONE,
    FREE,
    PACKET_BYTES,
    Done,
    Hello,
    read_frame_async,
)
from warpcall_service.processes.spawn import StartProcess, signal_name, torch_environment
from warpcall_service.settings import Settings

MODULE = "warpcall_service.worker.main"
END_TIMEOUT_S = 5.0  # between the request to end and the kill
MAX_FREED = 1000  # tensors in one packet


class WorkerLost(Exception):
    """The worker process ended, or could not be started. The message says how."""


class PlanRequest(NamedTuple):
    """A request to the planning thread that has no reply yet.

    Attributes:
        answer: gets the reply; cancelled if its caller has left.
        limit_s: seconds that the thread may take, once the requests before this one are answered.
    """

    answer: asyncio.Future[dict[str, Any]]
    limit_s: float


class WorkerHandle:
    """A worker process and the server's ends of its two sockets.

    Args:
        on_done: called with each reply to a call, and the problem as JSON if the call failed.
        on_stuck: called with a reason when the planning thread does not reply in time.
        on_warming: called when `warming` has changed.
        start: starts the process.

    Attributes:
        lost: done when the process has ended or closed a socket.
        last_sent: id of the last call that the process may have received.
        warming: how many kernels the process has compiled or loaded ahead, as a text for people;
            empty if it does not, or has done it.

    Raises:
        WorkerLost: the process cannot be started; nothing is left open then.
    """

    def __init__(
        self,
        device: str,
        arena: Arena,
        settings: Settings,
        on_done: Callable[[Done, bytes], None],
        on_stuck: Callable[[str], None],
        on_warming: Callable[[], None],
        start: StartProcess,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[None] = self._loop.create_future()
        self._on_done = on_done
        self._on_stuck = on_stuck
        self._on_warming = on_warming
        self.warming = ""
        self._grace_s = settings.grace_s
        self._unsent: list[bytes] = []  # calls that go into the next packet
        self._unsent_nbytes = 0
        self._last_unsent = self.last_sent = 0
        self._full = False  # the socket takes no packet at present
        self._hello: asyncio.Future[Hello] = self._loop.create_future()
        self._requests: deque[PlanRequest] = deque()
        self._request_lock = asyncio.Lock()  # its holder is the next to write a request
        self._timer: asyncio.TimerHandle | None = None  # of the oldest request
        self._writer: asyncio.StreamWriter | None = None  # set before the hello is read
        try:
            self._process = start(
                MODULE,
                device,
                {
                    "device": device,
                    "arena-nbytes": arena.nbytes,
                    "threads": settings.cpu_threads,
                    "warm": int(settings.warm),
                    "calls-only": int(settings.calls_only),
                },
                {"calls": socket.SOCK_SEQPACKET, "plans": socket.SOCK_STREAM},
                fds={"arena": arena.memory.fd},
                environment=torch_environment(),
            )
        except OSError as error:
            raise WorkerLost(f"its process cannot be started: {error}") from None
        self._calls, self._plans = self._process.sockets["calls"], self._process.sockets["plans"]
        self._calls.setblocking(False)
        self._loop.add_reader(self._calls.fileno(), self._on_readable)
        self._reading = self._loop.create_task(self._read_plans())

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def pending_requests(self) -> int:
        """The number of requests without a reply."""
        return len(self._requests)

    async def hello(self, timeout_s: float) -> Hello:
        """Wait until the process is ready, and return its first message.

        Raises:
            WorkerLost: it ended before, or `timeout_s` passed.
        """
        await asyncio.wait(
            (self._hello, self.lost), timeout=timeout_s, return_when="FIRST_COMPLETED"
        )
        if not self._hello.done() and self.lost.done():
            await asyncio.wait((self._reading,), timeout=1.0)  # its message may be on the way
        if not self._hello.done():
            raise WorkerLost(
                f"it ended before it was ready ({self._exit_text()})"
                if self.lost.done()
                else f"it was not ready within {timeout_s:g} s"
            )
        hello = self._hello.result()
        if "error" in hello:
            raise WorkerLost(hello["error"])
        return hello

    def send(
        self,
        call_id: int,
        source: int,
        target: int,
        deadline: float,
        message: bytes,
        *,
        at_once: bool = True,
    ) -> bool:
        """Send a call; False if the socket is full or the process has ended.

        Args:
            at_once: otherwise the call is sent together with others, before the event loop waits
                for new events.
        """
        if self._full:
            return False
        record = CALL.pack(call_id, source, target, deadline, len(message)) + message
        if self._unsent_nbytes + len(record) > PACKET_BYTES:
            self._flush()
            if self._full:
                return False
        self._unsent.append(record)
        self._unsent_nbytes += len(record)
        self._last_unsent = max(self._last_unsent, call_id)
        if not at_once:
            if len(self._unsent) == 1:
                self._loop.call_soon(self._flush)
            return True
        try:
            self._send_unsent()
        except OSError:
            if len(self._unsent) == 1:
                self._unsent.clear()
                self._unsent_nbytes = 0
                return False
            self._retry()
        return True

    def free_tensors(self, numbers: list[int]) -> None:
        """Free stored tensors, as many as the socket takes now; the others stay in `numbers`."""
        while numbers:
            some = json.dumps(numbers[:MAX_FREED]).encode()
            if not self.send(FREE, 0, 0, 0.0, some):
                return
            del numbers[:MAX_FREED]

    def _flush(self) -> None:
        """Send what `send` gathered. If the socket is full, try again once it is not."""
        if self._unsent and not self._full:
            try:
                self._send_unsent()
            except OSError:
                self._retry()

    def _send_unsent(self) -> None:
        self._calls.send(b"".join(self._unsent))
        self._unsent.clear()
        self._unsent_nbytes = 0
        self.last_sent = self._last_unsent

    def _retry(self) -> None:
        if not self.lost.done() and self._calls.fileno() >= 0:
            self._full = True
            self._loop.add_writer(self._calls.fileno(), self._on_writable)

    def _on_writable(self) -> None:
        self._loop.remove_writer(self._calls.fileno())
        self._full = False
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # `lost` is set soon
            self._send_unsent()

    async def request_plan(self, request: bytes, limit_s: float) -> dict[str, Any]:
        """Send a framed request to the planning thread, and return the reply.

        Requests are written one at a time, and only while few bytes are unsent. Otherwise requests
        of callers that have left would fill the memory when the process reads nothing.

        Args:
            limit_s: seconds that the planning thread may take, once the requests before this one
                are answered. `grace_s` later `on_stuck` is called.

        Raises:
            WorkerLost: the process ended before it replied.
        """
        answer: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        async with self._request_lock:
            if self._writer is not None:
                with contextlib.suppress(OSError):  # the process has ended: see the next line
                    await self._writer.drain()
            if self._writer is None or self._reading.done():
                raise WorkerLost("its process ended")
            self._requests.append(PlanRequest(answer, limit_s))
            self._writer.write(request)
        if len(self._requests) == 1:
            self._start_timer()
        return await answer

    def kill(self) -> None:
        """Kill the process and those that it started."""
        self._process.kill()

    async def end(self, *, gracefully: bool = False) -> str:
        """End the process, and wait until it has ended: nothing else uses the arena afterwards.

        Call it again if it was cancelled, as it is where the server stops while a lost process is
        ended.

        Args:
            gracefully: wait up to END_TIMEOUT_S for the call that runs.

        Returns:
            How the process ended.
        """
        if self._calls.fileno() >= 0:
            self._loop.remove_reader(self._calls.fileno())
            self._loop.remove_writer(self._calls.fileno())
        self._unsent.clear()
        self._calls.close()
        self._reading.cancel()
        await asyncio.wait((self._reading,))
        self._plans.close()
        if gracefully:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_TIMEOUT_S):
                    await self._process.wait()
        self.kill()
        await self._process.wait()
        self._process.close()
        if not self.lost.done():
            self.lost.set_result(None)
        return self._exit_text()

    def _exit_text(self) -> str:
        code = self._process.poll()
        if code is None:
            return "its socket was closed"
        return f"killed by {signal_name(-code)}" if code < 0 else f"exit status {code}"

    def _on_readable(self) -> None:
        """Read one packet; the loop calls this again if there are more."""
        if self.lost.done():
            return
        try:
            packet = self._calls.recv(PACKET_BYTES)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if not packet:
            self._loop.remove_reader(self._calls.fileno())
            self.lost.set_result(None)
        at = 0
        while at < len(packet):
            done = DONE.unpack_from(packet, at)
            at += DONE.size + done[-1]
            self._on_done(done, packet[at - done[-1] : at])

    def _start_timer(self) -> None:
        """Time the oldest request: the planning thread works on it, and on no other.

        This includes a request whose caller has left: the thread replies to it before the others.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._requests:
            self._timer = self._loop.call_later(self._requests[0].limit_s, self._on_deadline)

    def _on_deadline(self) -> None:
        # A second timer, so that a server that stood still for a long time first reads the replies
        # that came meanwhile.
        self._timer = self._loop.call_later(self._grace_s, self._on_overdue)

    def _on_overdue(self) -> None:
        limit_s = self._requests[0].limit_s
        self._on_stuck(
            f"its planning thread did not answer a request within {limit_s:g} s, nor "
            f"{self._grace_s:g} s later"
        )

    def _answer_oldest(self, answer: dict[str, Any]) -> None:
        request = self._requests.popleft()
        self._start_timer()
        if not request.answer.done():  # else its caller has left
            request.answer.set_result(answer)

    async def _read_plans(self) -> None:
        try:
            reader, self._writer = await asyncio.open_unix_connection(sock=self._plans)
            while True:
                answer = json.loads(await read_frame_async(reader))
                if "warming" in answer:
                    self.warming = _warming(*answer["warming"])
                    self._on_warming()
                elif not self._hello.done():
                    self._hello.set_result(cast("Hello", answer))
                else:
                    self._answer_oldest(answer)
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            if self._writer is not None:
                self._writer.transport.abort()  # nobody reads what is unsent
            if not self.lost.done():  # without plans the process is of no use
                self.lost.set_result(None)
            for request in self._requests:
                if not request.answer.done():
                    request.answer.set_exception(WorkerLost("its process ended"))
            self._requests.clear()
            self._start_timer()


def _warming(what: str, done: int, count: int) -> str:
    """The text for a worker's frame about the kernels that it compiles or loads ahead."""
    if what == "loading":
        return f"warming, loading the kernels of {done:,} of {count:,} calls"
    if not what:
        return ""
    return f"warming {done:,} of {count:,} kernels" if count else "warming, listing the kernels"
