"""What one user may have at a time: requests, their bytes, and how fast they follow each other."""

from __future__ import annotations

from warpcall.errors import Busy
from warpcall_service.identity import LOCAL
from warpcall_service.settings import Settings

BURST_S = 1.0  # requests that a user did not make in the last second may come at once


class Account:
    """One user's requests.

    Attributes:
        in_flight: requests that came and are not answered.
        allowance: requests that may come at once, at the time `at` by time.monotonic().
        mean_s: what the last ones took.
    """

    __slots__ = ("allowance", "at", "in_flight", "mean_s")

    def __init__(self, allowance: float, at: float) -> None:
        self.in_flight = 0
        self.allowance = allowance
        self.at = at
        self.mean_s = 0.0

    def leave(self, seconds: float) -> None:
        """One of them was answered, in this time."""
        self.in_flight -= 1
        self.mean_s += (seconds - self.mean_s) * 0.1


class Limits:
    """Counts requests by user, and refuses those that are too many; bytes the engine counts.

    Whoever comes without a key is LOCAL: not one user but everyone, so that one slow client would use
    up what others need. His requests are not limited.
    """

    def __init__(self, settings: Settings) -> None:
        self._max_requests = settings.user_max_requests
        self._per_s = settings.user_requests_per_s
        self._burst = max(1.0, self._per_s * BURST_S)
        self._accounts: dict[str, Account] = {}

    def in_flight(self, user: str) -> int:
        """The user's requests that are not answered yet."""
        account = self._accounts.get(user)
        return 0 if account is None else account.in_flight

    def enter(self, user: str, now: float) -> Account:
        """A request of `user` came; its answer's end is told to `leave`.

        Raises:
            Busy: one too many; it says when that will have changed.
        """
        account = self._accounts.get(user)
        if account is None:
            account = self._accounts[user] = Account(self._burst, now)
        allowance = account.allowance + (now - account.at) * self._per_s
        account.allowance = allowance = min(allowance, self._burst)
        account.at = now
        if account.in_flight >= self._max_requests and user != LOCAL.name:
            raise Busy(
                f"{user} has {account.in_flight} requests in flight, at most "
                f"{self._max_requests} are allowed",
                retry_after_s=account.mean_s / account.in_flight,
            )
        if allowance < 1:
            raise Busy(
                f"{user} has used up {self._per_s:g} requests a second",
                retry_after_s=(1 - allowance) / self._per_s,
            )
        account.allowance = allowance - 1
        account.in_flight += 1
        return account
