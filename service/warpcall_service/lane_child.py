"""One life of a lane's process, as the service sees it: started, spoken to, ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess  # nosec B404
import sys
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from warpcall_service.arena import Arena
from warpcall_service.child_log import ChildLog
from warpcall_service.lane_messages import CALL, FREE, LENGTH, PACKET_BYTES, Hello
from warpcall_service.settings import Settings

PROGRAM = "warpcall_service.lane_process"
END_TIMEOUT_S = 5.0  # for a process told to end, before it is killed
POLL_S = 0.005
MAX_FREED = 1000  # tensors in one packet

# Temporaries of the references come from the heap and stay there for the next call: fresh pages
# cost as much as computing on them. What is above this is given back.
ENVIRONMENT = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(128 << 20),
    "MALLOC_TOP_PAD_": str(16 << 20),
    "MALLOC_ARENA_MAX": "2",
    "OMP_WAIT_POLICY": "passive",  # idle threads must not spin on the CPUs that serve HTTP
}


class LaneLost(Exception):
    """The lane's process ended, or never came up; the message says how."""


class Child:
    """A process and the service's ends of its two sockets.

    Args:
        on_done: called with each packet that answers a call.

    Attributes:
        lost: done when the process has gone, or is about to: its socket was closed.
    """

    def __init__(
        self, device: str, arena: Arena, settings: Settings, on_done: Callable[[bytes], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[None] = self._loop.create_future()
        self._on_done = on_done
        self._hello: asyncio.Future[Hello] = self._loop.create_future()
        self._questions: deque[asyncio.Future[dict[str, Any]]] = deque()
        self._log = ChildLog(device)
        with contextlib.ExitStack() as theirs:
            theirs.callback(self._log.started)
            self._calls, calls = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            theirs.enter_context(calls)
            self._plans, plans = socket.socketpair()
            theirs.enter_context(plans)
            fds = {"arena-fd": arena.fd, "calls-fd": calls.fileno(), "plans-fd": plans.fileno()}
            numbers = {
                "parent": os.getpid(),
                "arena-nbytes": arena.nbytes,
                "threads": settings.cpu_threads,
                **fds,
            }
            arguments = [f"--{name}={value}" for name, value in numbers.items()]
            arguments += ["--warm"] if settings.warm else []
            try:
                # In a group of its own, so that the terminal's Ctrl-C is left to the service. From
                # this thread, which lasts: the kernel ends the process with the thread.
                self._process = subprocess.Popen(  # nosec B603
                    [sys.executable, "-P", "-m", PROGRAM, f"--device={device}", *arguments],
                    pass_fds=list(fds.values()),
                    env={**ENVIRONMENT, **without_secrets()},
                    stdin=subprocess.DEVNULL,
                    stdout=self._log.fd,
                    stderr=self._log.fd,
                    process_group=0,
                )
            except OSError as error:
                self._calls.close()
                self._plans.close()
                self._log.close()
                raise LaneLost(f"its process cannot be started: {error}") from None
        self._calls.setblocking(False)
        self._loop.add_reader(self._calls.fileno(), self._on_readable)
        self._reading = self._loop.create_task(self._read_plans())

    @property
    def pid(self) -> int:
        return self._process.pid

    async def hello(self, timeout_s: float) -> Hello:
        """Wait until it is ready.

        Raises:
            LaneLost: it ended before, or `timeout_s` passed.
        """
        await asyncio.wait(
            (self._hello, self.lost), timeout=timeout_s, return_when="FIRST_COMPLETED"
        )
        if not self._hello.done() and self.lost.done():
            await asyncio.wait((self._reading,), timeout=1.0)  # its last words may be on the way
        if not self._hello.done():
            raise LaneLost(
                f"it ended before it was ready ({self._ending()})"
                if self.lost.done()
                else f"it was not ready within {timeout_s:g} s"
            )
        hello = self._hello.result()
        if "error" in hello:
            raise LaneLost(hello["error"])
        return hello

    def send(self, call_id: int, source: int, target: int, deadline: float, message: bytes) -> bool:
        """Hand it a call; False while the socket is full or the process gone."""
        try:
            self._calls.send(CALL.pack(call_id, source, target, deadline) + message)
        except OSError:
            return False
        return True

    def free(self, numbers: list[int]) -> None:
        """Let it forget tensors, as many as the socket takes now; `numbers` keeps the others."""
        while numbers:
            some = json.dumps(numbers[:MAX_FREED]).encode()
            if not self.send(FREE, 0, 0, 0.0, some):
                return
            del numbers[:MAX_FREED]

    async def ask(self, question: bytes) -> dict[str, Any]:
        """Put a question, already framed, to its planning thread.

        Raises:
            LaneLost: it ended before it answered.
        """
        answer: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        if self._reading.done():
            raise LaneLost("its process ended")
        self._questions.append(answer)
        self._writer.write(question)
        return await answer

    def kill(self) -> None:
        """End it now, with whatever it started."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def end(self, *, kindly: bool = False) -> str:
        """End it if it still lives, and wait until it has: the arena is ours alone afterwards.

        Args:
            kindly: let the call that runs come to its end, for END_TIMEOUT_S.

        Returns:
            How it ended.
        """
        self._loop.remove_reader(self._calls.fileno())
        self._calls.close()
        self._reading.cancel()
        await asyncio.wait((self._reading,))
        self._plans.close()
        if kindly:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_TIMEOUT_S):
                    await self._wait()
        self.kill()
        await self._wait()
        self._log.close()
        if not self.lost.done():
            self.lost.set_result(None)
        return self._ending()

    async def _wait(self) -> None:
        while self._process.poll() is None:
            await asyncio.sleep(POLL_S)

    def _ending(self) -> str:
        code = self._process.poll()
        if code is None:
            return "its socket was closed"
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"

    def _on_readable(self) -> None:
        while not self.lost.done():
            try:
                packet = self._calls.recv(PACKET_BYTES)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            if packet:
                self._on_done(packet)
            else:
                self._loop.remove_reader(self._calls.fileno())
                self.lost.set_result(None)

    async def _read_plans(self) -> None:
        reader, self._writer = await asyncio.open_unix_connection(sock=self._plans)
        try:
            while True:
                nbytes = LENGTH.unpack(await reader.readexactly(LENGTH.size))[0]
                answer = json.loads(await reader.readexactly(nbytes))
                if not self._hello.done():
                    self._hello.set_result(cast("Hello", answer))
                    continue
                question = self._questions.popleft()
                if not question.done():  # else whoever asked has left
                    question.set_result(answer)
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self._writer.close()
            if not self.lost.done():  # a process that cannot be asked is of no use
                self.lost.set_result(None)
            for question in self._questions:
                if not question.done():
                    question.set_exception(LaneLost("its process ended"))
            self._questions.clear()


def without_secrets() -> dict[str, str]:
    """This environment, less our settings: a lane gets arguments, and has no use for a password."""
    return {k: v for k, v in os.environ.items() if not k.upper().startswith("WARPCALL_")}
