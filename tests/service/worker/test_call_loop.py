"""The loop of a worker process, on the CPU."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pytest

from tests.service.worker.lane_calls import answers_to, check_many_calls, message, problem_of
from warpcall_service.lanes.messages import CALL, DONE, PACKET_BYTES
from warpcall_service.worker.call_loop import MOST_UNDER_WAY, CallLoop
from warpcall_service.worker.devices import Times


def test_calls_of_few_packets_are_answered_in_order_and_with_their_own_data() -> None:
    check_many_calls("cpu")


@pytest.mark.parametrize("count", [1, 3, 4, 5])
def test_no_answer_waits_for_a_call_that_never_comes(count: int) -> None:
    found, _ = answers_to("cpu", [[(n, message(), 60.0) for n in range(1, count + 1)]])

    assert len(found) == count


class Late:
    """A call under way, with its number as its time. Only every second one says that it has ended."""

    def __init__(self, number: int, under_way: set[int]) -> None:
        self._number = number
        self._under_way = under_way

    def ready(self) -> bool:
        return self._number % 2 == 0

    def times(self) -> Times:
        self._under_way.remove(self._number)
        return 0.0, float(self._number), 0.0


class LateDevice:
    """A device that has several calls under way.

    Attributes:
        most: calls that were under way together.
    """

    name, label, all, memory_nbytes = "late", "late", ["late"], 0

    def __init__(self) -> None:
        self._under_way: set[int] = set()
        self.most = 0

    def begin(self, work: Any, source: int, target: int) -> Late:
        del work, target
        self._under_way.add(source)
        self.most = max(self.most, len(self._under_way))
        return Late(source, self._under_way)

    def is_broken(self) -> bool:
        return False


@pytest.mark.parametrize("in_packet", [1, 2, 9, 100])
def test_calls_under_way_are_answered_in_order_each_with_its_own_times(in_packet: int) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(20)
    numbers = range(1, 2 * MOST_UNDER_WAY + 6)
    calls = [CALL.pack(n, n, 0, time.monotonic() + 60, 0) for n in numbers]
    device = LateDevice()
    loop = CallLoop(
        theirs,
        device,
        lambda message: None,  # type: ignore[arg-type, return-value]  # the device needs no work
        lambda numbers: None,
        problem_of,
        threading.Lock(),
    )
    running = threading.Thread(target=loop.run)
    found: list[tuple[int, float]] = []

    with ours, theirs:
        for begin in range(0, len(calls), in_packet):
            ours.send(b"".join(calls[begin : begin + in_packet]))
        running.start()
        while len(found) < len(calls):
            packet = ours.recv(PACKET_BYTES)
            found += [(done[0], done[3]) for done in DONE.iter_unpack(packet)]
        ours.shutdown(socket.SHUT_RDWR)
        running.join(30)

    assert found == [(n, float(n)) for n in numbers]
    assert device.most <= MOST_UNDER_WAY
