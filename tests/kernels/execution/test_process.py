"""How often the process of an uploaded source is started."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from tests.kernels.execution.thread_peer import UnstoppedPeer
from warpcall_kernels.execution import frames
from warpcall_kernels.execution.process import Deadlines, RemoteFailed, RemoteProcess

LATE = "the import of its source did not end within 0.05 s"


class SlowPeer(UnstoppedPeer):
    """Imports torch at once, and its source never."""

    def __init__(self) -> None:
        self.sock, self._theirs = socket.socketpair()
        self._thread = threading.Thread(target=self._import)
        self._thread.start()

    def _import(self) -> None:
        request = frames.receive(self._theirs, 10.0)
        frames.send(self._theirs, {"number": request["number"], "first": True})

    def end(self) -> str:
        self._thread.join()
        self._theirs.close()
        return ""


def test_an_import_that_is_too_late_is_not_tried_again() -> None:
    started: list[SlowPeer] = []

    def start() -> Any:
        started.append(SlowPeer())
        return started[-1]

    checked, timed = RemoteProcess(start, {}), RemoteProcess(start, {})
    for process in (checked, checked, timed, timed):
        with pytest.raises(RemoteFailed, match=LATE) as raised:
            process.begin(Deadlines(compile_s=0.05))
        timed.begin_like(checked)
        assert raised.value.status == "timeout"

    assert len(started) == 1
