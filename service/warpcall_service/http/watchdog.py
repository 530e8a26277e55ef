"""Limits the time in which a client must send its request and read the response."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from warpcall.errors import Problem, TimedOut
from warpcall_service.http.client_connection import Client
from warpcall_service.http.exchange import ClientGone
from warpcall_service.http.flow_control import PROGRESS_BYTES

CHECK_S = 1.0  # shortest time between two checks


class ClientWatchdog:
    """Limits the time that a request waits for its client.

    Two rules hold while the server waits for the client. In each `timeout_s`, the client must send
    or read PROGRESS_BYTES, or the rest. And beyond the first `timeout_s`, the whole request, and
    then the whole response, must reach `bytes_per_s` on average. Without the second rule, a client
    that moves just PROGRESS_BYTES in each `timeout_s` would keep the memory of a large call for
    days. The time in which the client waits for the server (between `pause` and `resume`) does not
    count.

    The watchdog cancels the current task, or calls `end`, instead of waiting in a task of its own, so
    that a call that goes well pays for one timer only. `reason` says afterwards why it did so.

    Args:
        timeout_s: the setting `body_timeout_s`.
        bytes_per_s: the setting `min_rate_bytes_per_s`.
        end: called with the reason instead of cancelling the current task.
    """

    def __init__(
        self,
        connection: Client,
        timeout_s: float,
        bytes_per_s: int,
        end: Callable[[Problem | ClientGone], None] | None = None,
    ) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._bytes_per_s = bytes_per_s
        self._loop = asyncio.get_running_loop()
        self._what = "body"
        self._resumed_at = self._since = self._loop.time()
        self._earlier_s = 0.0  # seconds of the client in this direction before the last `resume`
        self._moved = 0  # bytes in this direction
        self._next = PROGRESS_BYTES  # the value of `_moved` at which the timeout starts again
        self._paused = False
        self._is_refusal = False
        self._reason: Problem | ClientGone | None = None
        self._task: asyncio.Task[Any] | None = None if end else asyncio.current_task()
        self._end = end
        self._timer = self._loop.call_later(timeout_s, self._check)
        self._deadline: asyncio.TimerHandle | None = None

    def progress(self, nbytes: int) -> None:
        """Record that the client sent or read `nbytes` bytes."""
        self._moved += nbytes
        if self._moved >= self._next:
            self._next = self._moved + PROGRESS_BYTES
            self._since = self._loop.time()

    def pause(self) -> None:
        """Pause the progress timeout while the server works; `resume` restarts it."""
        if not self._paused:
            self._paused = True
            self._earlier_s += self._loop.time() - self._resumed_at

    def resume(self) -> None:
        """Restart the progress timeout: the request waits for the client again."""
        if self._paused:
            self._paused = False
            self._next = self._moved + PROGRESS_BYTES
            self._resumed_at = self._since = self._loop.time()

    def begin_response(self) -> None:
        """Start the limits of the response: its bytes and its time count from here on."""
        self._what = "response"
        self._moved, self._next, self._earlier_s = 0, PROGRESS_BYTES, 0.0
        self._paused = False
        self._resumed_at = self._since = self._loop.time()

    def cancel_when_client_leaves(self) -> None:
        """Cancel the request also when its client leaves: nobody needs its result then."""
        self._connection.on_gone(self._gone)

    def begin_refusal(self) -> None:
        """Start the limits of a problem's response; if it times out, the connection is aborted."""
        self._connection.on_gone(None)
        self.clear_deadline()
        self.begin_response()
        self._is_refusal = True
        self._timer.cancel()
        self._timer = self._loop.call_later(self._timeout_s, self._check)

    def reason(self) -> Problem | ClientGone | None:
        """Why this watchdog cancelled the request; None if it did not."""
        if self._reason is not None and self._task is not None:
            self._task.uncancel()
        return self._reason

    def set_deadline(self, timeout_s: float) -> None:
        """Cancel the request unless `clear_deadline` is called within `timeout_s` seconds."""
        self._deadline = self._loop.call_later(timeout_s, self._expire)

    def clear_deadline(self) -> None:
        """End the deadline of `set_deadline`: the engine has the call, and keeps its deadline."""
        if self._deadline is not None:
            self._deadline.cancel()

    def close(self) -> None:
        """Stop all timers, and the callback for a client that leaves."""
        self._connection.on_gone(None)
        self._timer.cancel()
        self.clear_deadline()

    def _gone(self) -> None:
        self._cancel(ClientGone())

    def _expire(self) -> None:
        self._cancel(TimedOut("the deadline passed before the call was begun"))

    def _check(self) -> None:
        left_s = CHECK_S if self._paused else min(self._stall_left_s(), self._rate_left_s())
        if left_s > 0:
            self._timer = self._loop.call_later(max(left_s, CHECK_S), self._check)
        elif self._is_refusal:
            self._connection.abort()  # what waits for the client goes on, with ClientGone
        else:
            self._cancel(TimedOut(self._complaint(), field=self._what))

    def _stall_left_s(self) -> float:
        return self._since + self._timeout_s - self._loop.time()

    def _rate_left_s(self) -> float:
        """Seconds until the client falls below the average rate if it moves no more bytes."""
        return self._timeout_s + self._moved / self._bytes_per_s - self._spent_s()

    def _spent_s(self) -> float:
        return self._earlier_s + self._loop.time() - self._resumed_at

    def _complaint(self) -> str:
        what, timeout_s = self._what, self._timeout_s
        if self._stall_left_s() <= 0:
            return (
                f"a body must move {PROGRESS_BYTES} bytes, or its rest, in {timeout_s:g} s "
                f"(body_timeout_s); the {what} did not, after {self._moved} bytes"
            )
        return (
            f"the {what} must move {self._bytes_per_s} bytes/s on average beyond its first "
            f"{timeout_s:g} s (min_rate_bytes_per_s, body_timeout_s), got {self._moved} bytes in "
            f"{self._spent_s():.1f} s"
        )

    def _cancel(self, reason: Problem | ClientGone) -> None:
        if self._reason is None:
            self._reason = reason
            if self._end is not None:
                self._end(reason)
            elif self._task is not None:
                self._task.cancel()
