"""Limits of one user: requests in progress, and requests a second."""

from __future__ import annotations

from warpcall.errors import Busy
from warpcall_service.admission import TokenBucket
from warpcall_service.identity import LOCAL
from warpcall_service.settings import Settings

BURST_S = 1.0  # the rate's requests of this time may come at once


class Account:
    """The requests of one user: those a second, and those in progress.

    Attributes:
        in_flight: requests that were accepted and are not answered yet.
        bucket: has a token for each request that may be accepted now.
        mean_s: moving average of the seconds that a request takes.
    """

    __slots__ = ("bucket", "in_flight", "mean_s")

    def __init__(self, bucket: TokenBucket) -> None:
        self.in_flight = 0
        self.bucket = bucket
        self.mean_s = 0.0

    def release(self, seconds: float) -> None:
        """Count a request as answered; it took `seconds`."""
        self.in_flight -= 1
        self.mean_s += (seconds - self.mean_s) * 0.1

    def give_back(self) -> None:
        """Forget a request that was not begun after all."""
        self.in_flight -= 1
        self.bucket.give_back()


class Limits:
    """Counts requests by user, and refuses those beyond the limits. The engine counts their bytes.

    While there are no keys, every caller is LOCAL. Requests in progress of LOCAL are not limited,
    since one slow client would otherwise use up the limit of all other callers.
    """

    def __init__(self, settings: Settings) -> None:
        self._max_requests = settings.user_max_requests
        self._per_s = settings.user_requests_per_s
        self._burst = max(1.0, self._per_s * BURST_S)
        self._accounts: dict[str, Account] = {}

    def in_flight(self, user: str) -> int:
        """Requests of the user that are not answered yet."""
        account = self._accounts.get(user)
        return 0 if account is None else account.in_flight

    def acquire(self, user: str, now: float) -> Account:
        """Count a new request of `user`. Call `release` of the result once it is answered.

        Raises:
            Busy: the user has too many requests in progress or sends them too fast. Its
                `retry_after_s` says when a request is likely to be accepted.
        """
        account = self._accounts.get(user)
        if account is None:
            bucket = TokenBucket(self._burst, 1 / self._per_s, now)
            account = self._accounts[user] = Account(bucket)
        if account.in_flight >= self._max_requests and user != LOCAL.name:
            raise Busy(
                f"{user} has {account.in_flight} requests in flight, at most "
                f"{self._max_requests} are allowed",
                retry_after_s=account.mean_s / account.in_flight,
            )
        if wait_s := account.bucket.take(now):
            raise Busy(
                f"{user} has used up {self._per_s:g} requests a second", retry_after_s=wait_s
            )
        account.in_flight += 1
        return account
