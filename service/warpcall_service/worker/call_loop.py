"""The main loop of a worker process: receive calls, begin them on the device, answer them in order.

A device may have several calls under way: on a GPU, the copies and kernels of one call are enqueued
while those of the call before it run. A packet from the server may hold several calls, and a packet
to the server several answers, so that one wake-up of a process serves many calls.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

from warpcall.errors import Problem, TimedOut
from warpcall_service.devices.device import Device, Pending, Times
from warpcall_service.devices.tensors import Runnable
from warpcall_service.lanes.messages import CALL, DONE, FREE, PACKET_BYTES
from warpcall_service.processes.lone_calls import LONE_CALLS, has_few_cpus

MOST_UNDER_WAY = 8  # calls that a device has at a time; the server sends hardly more ahead
ANSWERS = 4  # in one packet: the server works on them while this process goes on
ANSWER_S = 200e-6  # longest time for which an answer waits for others
POLL_S = 1e-3  # of looking for new calls while the device works; then wait for the device
# While calls come as often as this, look for the next one instead of sleeping: see `lone_calls.py`.
SPIN_S = 2e-3
FEW_CPUS_SPIN_S = 300e-6

log = logging.getLogger("warpcall.lane")


class CallLoop:
    """Runs calls in the order in which they come, until the server closes the socket.

    Args:
        calls: the socket, which the server's lane reads and writes.
        decode: makes work of a plan's message.
        free: frees stored tensors, by their numbers.
        problem_of: the problem that the caller gets for an exception.
        launching: held while a call is begun; another thread may load kernels while it is free.
        compiled_s: how long this process has compiled kernels so far, in seconds.
        spin_s: longest time for which an idle process looks for the next call before it sleeps. It
            sleeps at once if the last call came later, or copied no inputs, or with few CPUs if
            calls do not come one at a time. None means SPIN_S or FEW_CPUS_SPIN_S.
    """

    def __init__(
        self,
        calls: socket.socket,
        device: Device,
        decode: Callable[[bytes], Runnable],
        free: Callable[[list[int]], None],
        problem_of: Callable[[Exception], Problem],
        launching: threading.Lock,
        compiled_s: Callable[[], float],
        spin_s: float | None = None,
    ) -> None:
        self._calls = calls
        self._device = device
        self._decode = decode
        self._free = free
        self._problem_of = problem_of
        self._launching = launching
        self._compiled_s = compiled_s
        self._few_cpus = has_few_cpus()
        if spin_s is None:
            spin_s = FEW_CPUS_SPIN_S if self._few_cpus else SPIN_S
        self._spin_s = spin_s
        self._lone_calls = 0  # that came one at a time, in a row
        self._has_copied = False  # the last call copied its inputs
        self._came_soon = False  # the last packet, after the process had nothing to do
        # The id of each call, the time of its begin, and how long it compiled, in ms.
        self._under_way: deque[tuple[int, float, Pending, float]] = deque()
        self._answers: list[bytes] = []
        self._answered_at = 0.0  # time of the first of them
        self._message = b""  # of the last call that was begun

    def run(self) -> None:
        """Run until the socket is closed."""
        while True:
            try:
                if self._under_way or self._answers:
                    packet = self._calls.recv(PACKET_BYTES, socket.MSG_DONTWAIT)
                    self._lone_calls = 0
                else:
                    packet = self._next_packet()
            except BlockingIOError:
                self._wait()
                continue
            if not packet:
                return
            self._begin_all(packet)

    def _next_packet(self) -> bytes:
        """Wait for the next packet while there is nothing else to do."""
        began = time.monotonic()
        may_spin = self._lone_calls >= LONE_CALLS if self._few_cpus else self._has_copied
        if self._came_soon and may_spin:
            while not self._has_come() and time.monotonic() < began + self._spin_s:
                pass
        packet = self._calls.recv(PACKET_BYTES)
        self._came_soon = time.monotonic() < began + self._spin_s
        is_one = bool(packet) and CALL.size + CALL.unpack_from(packet)[-1] == len(packet)
        self._lone_calls = self._lone_calls + 1 if is_one else 0
        return packet

    def _begin_all(self, packet: bytes) -> None:
        at = 0
        while at < len(packet):
            call_id, source, target, deadline, nbytes = CALL.unpack_from(packet, at)
            at += CALL.size + nbytes
            message = packet[at - nbytes : at]
            if call_id == FREE:
                self._free(json.loads(message))
                continue
            while len(self._under_way) >= MOST_UNDER_WAY:
                self._finish()
            if message != self._message:  # a call like the one before takes as long, others may not
                self._send_answers()
                self._message = message
            began = time.monotonic()
            pending, compile_ms = self._begin(message, source, target, began > deadline)
            self._under_way.append((call_id, began, pending, compile_ms))
            while self._under_way and self._under_way[0][2].ready():
                self._finish()

    def _begin(self, message: bytes, source: int, target: int, late: bool) -> tuple[Pending, float]:
        """Begin a call, and return how long it compiled, in ms."""
        try:
            if late:
                raise TimedOut("the deadline passed while the call waited for the device")
            with self._launching:
                before_s = self._compiled_s()
                pending = self._device.begin(self._decode(message), source, target)
                return pending, (self._compiled_s() - before_s) * 1e3
        except Exception as error:  # noqa: BLE001  # an error of one call ends only that call
            return Failed(error), 0.0

    def _wait(self) -> None:
        """No call has come meanwhile: send answers, and finish the oldest call under way."""
        self._send_answers()
        if not self._under_way:
            return
        pending, ends = self._under_way[0][2], time.monotonic() + POLL_S
        while not pending.ready() and time.monotonic() < ends:
            if len(self._under_way) < MOST_UNDER_WAY and self._has_come():
                return
        self._finish()

    def _has_come(self) -> bool:
        try:
            self._calls.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK)
        except BlockingIOError:
            return False
        return True

    def _finish(self) -> None:
        """Answer the oldest call under way; waits until the device has finished it."""
        call_id, began, pending, compile_ms = self._under_way.popleft()
        times, problem, broken = (0.0, 0.0, 0.0), b"", False
        try:
            times = pending.times()
            self._has_copied = times[0] > 0
        except Exception as error:  # noqa: BLE001  # as above
            problem = json.dumps(self._problem_of(error).to_json()).encode()
            broken = self._device.is_broken()
        if sum(map(len, self._answers)) + DONE.size + len(problem) > PACKET_BYTES:
            self._send_answers()
        self._answers.append(DONE.pack(call_id, began, *times, compile_ms, len(problem)) + problem)
        now = time.monotonic()
        if len(self._answers) == 1:
            self._answered_at = now
        since = began if len(self._answers) == 1 else self._answered_at
        is_due = len(self._answers) >= ANSWERS or now > since + ANSWER_S
        is_last = self._lone_calls >= LONE_CALLS and not self._under_way  # for some time
        if is_due or is_last or broken:
            self._send_answers()
        if broken:
            log.error("the device is lost to this process, which ends to be replaced")
            os._exit(1)

    def _send_answers(self) -> None:
        if self._answers:
            self._calls.send(b"".join(self._answers))
            self._answers.clear()


class Failed:
    """A call that failed while it was begun."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def ready(self) -> bool:
        """It ends at once."""
        return True

    def times(self) -> Times:
        """Raises the error."""
        raise self._error
