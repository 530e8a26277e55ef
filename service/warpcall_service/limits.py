"""What one user may have at a time: requests, their bytes, and how fast they follow each other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from warpcall.errors import Busy
from warpcall_service.settings import Settings

BURST_S = 1.0  # requests that a user did not make in the last second may come at once
MAX_USERS = 10_000  # remembered while idle; one forgotten begins with a full second's burst


class _Account:
    """One user's requests.

    Attributes:
        in_flight: requests that came and are not answered.
        allowance: requests that may come at this moment, as of `at`.
    """

    __slots__ = ("allowance", "at", "in_flight", "mean_s")

    def __init__(self, allowance: float) -> None:
        self.in_flight = 0
        self.allowance = allowance
        self.at = time.monotonic()
        self.mean_s = 0.0


class Limits:
    """Counts requests by user, and refuses those that are too many; bytes the engine counts."""

    def __init__(self, settings: Settings) -> None:
        self._max_requests = settings.user_max_requests
        self._per_s = settings.user_requests_per_s
        self._burst = max(1.0, self._per_s * BURST_S)
        self._accounts: dict[str, _Account] = {}

    def in_flight(self, user: str) -> int:
        """The user's requests that are not answered yet."""
        account = self._accounts.get(user)
        return 0 if account is None else account.in_flight

    @contextmanager
    def request(self, user: str) -> Iterator[None]:
        """A request of `user`, from its head to the end of its answer.

        Raises:
            Busy: one too many; it says when that will have changed.
        """
        account = self._accounts.get(user)
        if account is None:
            account = self._open(user)
        began = time.monotonic()
        account.allowance = min(self._burst, account.allowance + (began - account.at) * self._per_s)
        account.at = began
        if account.in_flight >= self._max_requests:
            raise Busy(
                f"{user} has {account.in_flight} requests in flight, at most "
                f"{self._max_requests} are allowed",
                retry_after_s=account.mean_s / account.in_flight,
            )
        if account.allowance < 1:
            raise Busy(
                f"{user} has used up {self._per_s:g} requests a second",
                retry_after_s=(1 - account.allowance) / self._per_s,
            )
        account.allowance -= 1
        account.in_flight += 1
        try:
            yield
        finally:
            account.in_flight -= 1
            account.mean_s += (time.monotonic() - began - account.mean_s) * 0.1

    def _open(self, user: str) -> _Account:
        if len(self._accounts) >= MAX_USERS:
            idle = [name for name, account in self._accounts.items() if not account.in_flight]
            for name in idle:
                del self._accounts[name]
        account = self._accounts[user] = _Account(self._burst)
        return account
