"""The loop of a worker process, on the CPU."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import triton

from tests.service.worker.lane_calls import answers_to, check_many_calls, message, problem_of
from tests.waiting import until
from warpcall_service.devices.compilations import Compilations
from warpcall_service.devices.device import Device, Times
from warpcall_service.lanes.messages import CALL, DONE, PACKET_BYTES
from warpcall_service.lanes.status import Timing
from warpcall_service.processes.lone_calls import CPUS
from warpcall_service.worker.call_loop import MOST_UNDER_WAY, CallLoop


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


def loop_on(
    theirs: socket.socket,
    device: Device,
    compiled_s: Callable[[], float] = lambda: 0.0,
    spin_s: float | None = None,
) -> CallLoop:
    """A loop on a device that needs no work."""
    return CallLoop(
        theirs,
        device,
        lambda message: None,  # type: ignore[arg-type, return-value]
        lambda numbers: None,
        problem_of,
        threading.Lock(),
        compiled_s,
        spin_s,
    )


@pytest.mark.parametrize("in_packet", [1, 2, 9, 100])
def test_calls_under_way_are_answered_in_order_each_with_its_own_times(in_packet: int) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(20)
    numbers = range(1, 2 * MOST_UNDER_WAY + 6)
    calls = [CALL.pack(n, n, 0, time.monotonic() + 60, 0) for n in numbers]
    device = LateDevice()
    loop = loop_on(theirs, device)
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


class Copied:
    """A call that copied its inputs for so many ms."""

    def __init__(self, h2d_ms: float) -> None:
        self._h2d_ms = h2d_ms

    def ready(self) -> bool:
        return True

    def times(self) -> Times:
        return self._h2d_ms, 0.0, 0.0


class CopyingDevice:
    """A device that says for each call that its inputs were copied in `h2d_ms`."""

    name, label, all, memory_nbytes = "copying", "copying", ["copying"], 0

    def __init__(self, h2d_ms: float) -> None:
        self._h2d_ms = h2d_ms

    def begin(self, work: Any, source: int, target: int) -> Copied:
        del work, source, target
        return Copied(self._h2d_ms)

    def is_broken(self) -> bool:
        return False


class CountedSocket(socket.socket):
    """A socket that counts how often it was looked at for a packet.

    Attributes:
        looks: without taking the packet.
        tries: without waiting for it.
    """

    looks = tries = 0

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        self.looks += bool(flags & socket.MSG_PEEK)
        self.tries += bool(flags & socket.MSG_DONTWAIT)
        return super().recv(bufsize, flags)


@contextlib.contextmanager
def running_loop(h2d_ms: float, spin_s: float) -> Iterator[tuple[socket.socket, CountedSocket]]:
    """A loop that runs in a thread on a CopyingDevice: the server's end of its socket, and its own."""
    ours, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs = CountedSocket(fileno=other.detach())
    loop = loop_on(theirs, CopyingDevice(h2d_ms), spin_s=spin_s)
    running = threading.Thread(target=loop.run)
    ours.settimeout(20)
    with ours, theirs:
        running.start()
        yield ours, theirs
        ours.shutdown(socket.SHUT_RDWR)
        running.join(30)


def set_machine(monkeypatch: pytest.MonkeyPatch, *, few_cpus: bool, lone_calls: int) -> None:
    cpus = CPUS - 1 if few_cpus else CPUS
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(cpus)))
    monkeypatch.setattr("warpcall_service.worker.call_loop.LONE_CALLS", lone_calls)


@pytest.mark.parametrize(
    ("few_cpus", "h2d_ms", "lone_calls", "spin_s", "pause_s", "spins"),
    [
        (False, 0.1, 9, 0.2, 0.0, True),
        (False, 0.0, 1, 0.2, 0.0, False),
        (False, 0.1, 1, 0.0, 0.0, False),
        (False, 0.1, 1, 0.05, 0.3, False),
        (True, 0.0, 4, 0.2, 0.0, True),
        (True, 0.1, 5, 0.2, 0.0, False),
        (True, 0.0, 4, 0.0, 0.0, False),
        (True, 0.0, 4, 0.05, 0.3, False),
    ],
)
def test_the_loop_looks_for_the_next_call_only_while_calls_of_one_kind_come_often(
    monkeypatch: pytest.MonkeyPatch,
    few_cpus: bool,
    h2d_ms: float,
    lone_calls: int,
    spin_s: float,
    pause_s: float,
    spins: bool,
) -> None:
    """With few CPUs for calls that come one at a time, else for those whose inputs were copied."""
    set_machine(monkeypatch, few_cpus=few_cpus, lone_calls=lone_calls)
    with running_loop(h2d_ms, spin_s) as (ours, theirs):
        for n in range(1, 5):
            time.sleep(pause_s)
            ours.send(CALL.pack(n, n, 0, time.monotonic() + 60, 0))
            assert DONE.unpack(ours.recv(PACKET_BYTES))[0] == n
        until(lambda: theirs.looks > 1000 or not spins)
        time.sleep(3 * spin_s)
        looks = theirs.looks
        time.sleep(0.1)
        assert theirs.looks == looks, "it sleeps by now"

    assert (looks > 1000) == spins


@pytest.mark.parametrize(
    ("packets", "looks"),
    [([1], True), ([1, 1], False), ([1, 2], True), ([1, 1, 2, 1], True)],
)
def test_when_calls_come_one_at_a_time_none_is_looked_for_before_an_answer(
    monkeypatch: pytest.MonkeyPatch, packets: list[int], looks: bool
) -> None:
    """The last packet decides, with those before it that had one call each."""
    set_machine(monkeypatch, few_cpus=False, lone_calls=2)
    monkeypatch.setattr(
        "warpcall_service.worker.call_loop.ANSWER_S", 60.0
    )  # on a busy machine, too

    with running_loop(0.0, 0.0) as (ours, theirs):
        for count in packets:
            before = theirs.tries
            calls = [CALL.pack(n, n, 0, time.monotonic() + 60, 0) for n in range(1, count + 1)]
            ours.send(b"".join(calls))
            answers = ours.recv(PACKET_BYTES)
            assert len(answers) == count * DONE.size

    assert (theirs.tries > before) == looks


class CompilingDevice(LateDevice):
    """Compiles for as long as a call's source says, in ms."""

    def __init__(self, compilations: Compilations) -> None:
        super().__init__()
        self._compilations = compilations

    def begin(self, work: Any, source: int, target: int) -> Late:
        for cache_hit in (False, True):
            times = SimpleNamespace(total=source * 1000)
            self._compilations(times=times, cache_hit=cache_hit, src=None)
        return super().begin(work, source, target)


def test_an_answer_says_how_long_its_own_call_compiled() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(20)
    compilations = Compilations()
    loop = loop_on(theirs, CompilingDevice(compilations), lambda: compilations.seconds)
    running = threading.Thread(target=loop.run)
    compile_ms: list[float] = []

    with ours, theirs:
        running.start()
        for n in (250, 0, 30):
            ours.send(CALL.pack(n + 1, n, 0, time.monotonic() + 60, 0))
        while len(compile_ms) < 3:
            packet = ours.recv(PACKET_BYTES)
            compile_ms += [done[5] for done in DONE.iter_unpack(packet)]
        ours.shutdown(socket.SHUT_RDWR)
        running.join(30)

    assert compile_ms == pytest.approx([250.0, 0.0, 30.0])


def test_triton_reports_compilations_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton.knobs.compilation, "listener", None)
    compilations = Compilations()

    compilations.listen()

    assert triton.knobs.compilation.listener is compilations


@pytest.mark.parametrize(("compile_ms", "said"), [(0.0, b""), (312.5, b", compile;dur=312.500")])
def test_server_timing_names_a_compilation_if_there_was_one(compile_ms: float, said: bytes) -> None:
    timing = Timing(1.0, 0.5, 314.0, 0.25, "cuda:0", compile_ms)

    expected = b"queue;dur=1.000, h2d;dur=0.500, kernel;dur=314.000, d2h;dur=0.250"
    assert timing.header() == expected + said
