"""When the supervisor starts a server again that has ended."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.waiting import until
from warpcall_service.supervisor import supervisor
from warpcall_service.supervisor.plan import PlannedServer
from warpcall_service.supervisor.supervisor import LONGEST_PAUSE_S, STEADY_S, Supervised

LITTLE_S = 0.01


class Clock:
    """A clock that a test sets."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(supervisor, "time", found)
    return found


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The processes that were started. Each says that it is ready, and runs until it is killed."""
    started: list[subprocess.Popen[bytes]] = []

    def start(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        (fd,) = options["pass_fds"]
        assert f"--ready-fd={fd}" in command
        started.append(
            subprocess.Popen(["sh", "-c", f"printf 1 >/dev/fd/{fd}; exec sleep 1000"], **options)
        )
        return started[-1]

    found = SimpleNamespace(Popen=start, DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr(supervisor, "subprocess", found)
    yield started
    for process in started:
        process.kill()
        process.wait()


def dies(server: Supervised, processes: list[subprocess.Popen[bytes]]) -> float:
    """Kill the server; the pause that the supervisor makes then."""
    processes[-1].kill()
    status: list[int | None] = [None]

    def has_ended() -> bool:
        status[0] = server.look()
        return status[0] is not None

    until(has_ended)
    assert status == [-9]
    return server.postpone()


def test_a_server_that_dies_again_and_again_is_started_after_longer_pauses(
    clock: Clock, processes: list[subprocess.Popen[bytes]]
) -> None:
    server = Supervised(PlannedServer("cpu-0", {}), 8000, [])
    pauses = []
    for _ in range(9):
        server.start_if_due()
        assert server.runs
        pauses.append(dies(server, processes))
        clock.now += pauses[-1] - LITTLE_S
        server.start_if_due()
        assert not server.runs, "its pause is not over"
        clock.now += 2 * LITTLE_S

    assert pauses == [0.5, 1, 2, 4, 8, 16, 32, LONGEST_PAUSE_S, LONGEST_PAUSE_S]


def test_a_server_that_was_ready_for_long_is_started_soon_again(
    clock: Clock, processes: list[subprocess.Popen[bytes]]
) -> None:
    server = Supervised(PlannedServer("cpu-0", {}), 8000, [])
    pauses = []
    for lived_s in (1, 1, STEADY_S + 1, 1):
        server.start_if_due()
        until(lambda: server.look() is None and server.is_ready)
        clock.now += lived_s
        pauses.append(dies(server, processes))
        clock.now += pauses[-1]

    assert pauses == [0.5, 1, 0.5, 1]
