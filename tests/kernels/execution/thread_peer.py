"""The other side of a socket as a thread, in place of a process of an upload, for tests."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from warpcall_kernels.execution.serve import Loaded, serve


class UnstoppedPeer:
    """What a `Peer` has, for one that takes no time from others: to stop it does nothing."""

    pid = 0
    prints: BinaryIO | None = None

    def stop(self) -> None:
        """Nothing."""

    def resume(self) -> None:
        """Nothing."""

    def cpu_us(self) -> float:
        """Not used."""
        return 0.0


@dataclass
class ThreadPeer(UnstoppedPeer):
    """The other side as a thread of this process, whose memory it shares."""

    function: Callable[..., Any]
    pid: int = field(default_factory=os.getpid)

    def __post_init__(self) -> None:
        self.sock, self._theirs = socket.socketpair()
        self._thread = threading.Thread(target=serve, args=(self._theirs, self._load, "cpu"))
        self._thread.start()

    def end(self) -> str:
        self.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._theirs.close()
        return ""

    def _load(self, _: dict[str, Any]) -> Loaded:
        return Loaded(function=self.function)
