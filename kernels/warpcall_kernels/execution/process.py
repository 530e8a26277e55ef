"""The process of an uploaded source: it is started, asked, stopped and ended."""

from __future__ import annotations

import contextlib
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol, get_args

from warpcall_kernels.execution import frames
from warpcall_kernels.execution.failures import (
    MAX_ERROR_CHARS,
    MAX_TRACEBACK_BYTES,
    Status,
    printable,
)
from warpcall_kernels.execution.printed import Kept, Printed
from warpcall_kernels.execution.windows import Unreachable

MOST_ENDS = 3  # of a process in one job, after which it is not started again
START_S = 120.0  # until a process has imported torch, before it imports a source


class Peer(Protocol):
    """Another process, in which uploaded code runs.

    Attributes:
        sock: this process's end of a stream to it.
        pid: its id, as this process sees it.
        prints: the end for reading of the pipe to which it prints, which must not block; None if
            what it prints goes elsewhere.
    """

    sock: socket.socket
    pid: int
    prints: BinaryIO | None

    def stop(self) -> None:
        """Stop all its processes, so that they take no time from others."""

    def resume(self) -> None:
        """Let them go on."""

    def cpu_us(self) -> float:
        """The CPU time in us that all its threads have used so far."""

    def end(self) -> str:
        """End all its processes; returns how it had ended before that, empty if it had not."""


StartPeer = Callable[[], Peer]


@dataclass(frozen=True)
class Deadlines:
    """Seconds for uploaded code.

    Args:
        call_s: for a call that has been compiled.
        compile_s: for the import of a source, for its setup in a case, and for the first call in a
            case, which compiles.
    """

    call_s: float = 10.0
    compile_s: float = 60.0


class RemoteFailed(Exception):
    """An implementation failed in its process."""

    def __init__(self, status: Status, error: str, traceback: str | None = None) -> None:
        super().__init__(error)
        self.status: Status = status
        self.error = error
        self.traceback = traceback


class RemoteProcess:
    """The process of one uploaded source. It is started when it is needed, and again after its end.

    Args:
        start: starts it.
        load: data from which it loads the source.

    Attributes:
        printed: what the process prints.
        import_s: seconds of the imports of the source that `take_import_s` has not returned yet.
        setup_s: seconds of the setups of its function, likewise of `take_setup_s`.
        is_verified: whether it runs no code of the author for the host.
    """

    is_verified = False

    def __init__(self, start: StartPeer, load: Mapping[str, Any]) -> None:
        self._start = start
        self._load = dict(load)
        self.printed = Printed()
        self.import_s = self.setup_s = 0.0
        self._peer: Peer | None = None
        self._stopped = False
        self._ends = 0
        self._late: RemoteFailed | None = None  # its import did not end in time

    @property
    def peer(self) -> Peer:
        """The process, which must have been started."""
        assert self._peer is not None
        return self._peer

    @property
    def runs(self) -> bool:
        """Whether it has been started, and did not end since as far as is known."""
        return self._peer is not None

    def begin(self, deadlines: Deadlines) -> None:
        """Start the process unless it runs, and let it load the source.

        An import that does not end in time is not tried again, so that a job waits for it once.

        Raises:
            RemoteFailed: it cannot be started, or the import did not end.
        """
        if self._peer is not None:
            return
        if self._late is not None:
            raise RemoteFailed(self._late.status, self._late.error)
        if self._ends >= MOST_ENDS:
            raise RemoteFailed(
                "crashed", f"not started again: its process has ended {MOST_ENDS} times"
            )
        try:
            self._peer = self._start()
        except (OSError, RuntimeError) as error:
            raise RemoteFailed("error", printable(f"its process cannot start: {error}")) from None
        self._stopped = False
        self.printed.open(self._peer.prints, self._peer.sock)
        began: list[float] = []

        def begin_import(_: dict[str, Any]) -> float:
            began.append(time.monotonic())
            return deadlines.compile_s

        try:
            self.ask(
                *("load", START_S, "the import of its source"),
                first=begin_import,
                data=self._load,
            )
        except RemoteFailed as failed:
            if failed.status == "timeout":
                self._late = failed
            raise
        finally:
            self.import_s += sum(time.monotonic() - one for one in began)

    def case_data(self, case: Mapping[str, Any], deadlines: Deadlines) -> dict[str, Any]:
        """What the process needs for a case beside its description, which is nothing here.

        Args:
            case: the members `params`, `layouts` and `outputs` of its description.
        """
        return {}

    def prepare(self, cases: Sequence[Mapping[str, Any]], limit_s: float) -> None:
        """Compile for cases, as `case_data` gets them, before their calls; nothing by default."""

    def begin_printing(self) -> None:
        """Forget what the case before has printed, once `begin` has returned for a case."""
        self.printed.begin_case()

    def take_printed(self) -> Kept:
        """What was printed since this was called last."""
        return self.printed.take()

    def take_import_s(self) -> float:
        """Seconds of the imports of the source since this was called last."""
        taken, self.import_s = self.import_s, 0.0
        return taken

    def set_up(self, role: str, params: Mapping[str, Any], limit_s: float) -> None:
        """Let the process call the setup of its function for the case that has begun.

        Raises:
            RemoteFailed: it raised an exception, ended the process or did not end in time.
        """
        begin = time.monotonic()
        try:
            self.ask("setup", limit_s, "its setup", role=role, params=dict(params))
        finally:
            self.setup_s += time.monotonic() - begin

    def take_setup_s(self) -> float:
        """Seconds of the setups of its function since this was called last."""
        taken, self.setup_s = self.setup_s, 0.0
        return taken

    def begin_like(self, other: RemoteProcess) -> None:
        """Do not start this process if the import of the same source was too late in `other`."""
        self._late = self._late or other._late

    def ask(
        self,
        do: str,
        limit_s: float,
        what: str,
        first: Callable[[dict[str, Any]], float] | None = None,
        most_bytes: int = frames.MOST_BYTES,
        **more: Any,
    ) -> dict[str, Any]:
        """Send a request and return the answer.

        Args:
            limit_s: seconds in which the answer must come.
            what: is asked, for messages, such as "a timed call".
            first: called with a message before the answer, which has the member `first`; returns
                the seconds in which the answer must follow.
            most_bytes: that the answer may have.

        Raises:
            RemoteFailed: the code raised an exception, the process ended, or it was too late and
                has been ended.
        """
        if self._peer is None:
            raise RemoteFailed("crashed", f"its process has ended before {what}")
        if self._stopped:
            self.peer.resume()
            self._stopped = False
        number = secrets.randbits(48)  # so that no answer can be sent before its request
        try:
            frames.send(self.peer.sock, {"do": do, "number": number, **more})
            answer = self._receive(number, limit_s, most_bytes)
            if first is not None and "first" in answer:
                limit_s = first(answer)
                answer = self._receive(number, limit_s, most_bytes)
        except frames.Ended:
            raise self._ended(what) from None
        except frames.TooLate:
            self._end_failed()
            raise RemoteFailed("timeout", f"{what} did not end within {limit_s:g} s") from None
        if "failed" in answer:
            failed = self._failed(answer["failed"])
            self.stop()  # threads of code that failed would take time from others
            raise failed
        return answer

    def _receive(self, number: int, limit_s: float, most_bytes: int) -> dict[str, Any]:
        """Receive an answer to the request of that number."""
        answer = frames.receive(self.peer.sock, limit_s, self.printed, most_bytes)
        if answer.get("number") != number:
            raise frames.Ended
        return answer

    def stop(self) -> None:
        """Let the process wait without taking time from others, until the next request."""
        if not self._stopped and self._peer is not None:
            self._peer.stop()
            self._stopped = True

    def end(self) -> str:
        """End the process, and return how it had ended by itself."""
        peer, self._peer = self._peer, None
        if peer is None:
            return ""
        self._ends += 1
        how = peer.end()
        self.printed.close()
        peer.sock.close()
        return how

    def start_ahead(self) -> None:
        """Start the process without waiting for it, if it does not run and its starter can do so."""
        ahead = getattr(self._start, "start_ahead", None)
        if ahead is not None and self._peer is None and self._late is None:
            ahead()

    def retire(self) -> None:
        """End the process, which has done nothing wrong. It may be started again as often as before."""
        ends = self._ends
        self.end()
        self._ends = ends

    def broken(self, what: str) -> RemoteFailed:
        """End a process that sent what it may not send."""
        return self._ended(what)

    def _end_failed(self) -> str:
        """As `end`, after a failure of this process."""
        return self.end()

    def _ended(self, what: str) -> RemoteFailed:
        how = self._end_failed()
        if how == "out of memory":
            return RemoteFailed("oom", f"its processes took too much memory in {what}")
        if not how:
            return RemoteFailed(
                "crashed", f"it closed its connection, or sent what it may not, in {what}"
            )
        return RemoteFailed("crashed", f"{how} in {what}")

    def _failed(self, failed: Any) -> RemoteFailed:
        try:
            status, error, traceback = failed["status"], failed["error"], failed["traceback"]
        except (KeyError, TypeError):
            return self.broken("an answer")
        if status not in get_args(Status) or status in ("ok", "invalid", "timeout", "crashed"):
            status = "error"
        text = None if traceback is None else printable(str(traceback)[:MAX_TRACEBACK_BYTES])
        found = RemoteFailed(status, printable(str(error)[:MAX_ERROR_CHARS]), text)
        if status == "cuda_error":
            self._end_failed()  # its context cannot be used any more
        return found


@contextlib.contextmanager
def reaching() -> Iterator[None]:
    """Turn errors of a window into failures of the implementation."""
    try:
        yield
    except Unreachable as error:
        raise RemoteFailed("error", printable(str(error))) from None
