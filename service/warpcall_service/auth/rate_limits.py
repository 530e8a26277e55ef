"""Limits of one user: requests in progress, and requests a second."""

from __future__ import annotations

from warpcall.errors import Busy
from warpcall_service.admission import TokenBucket
from warpcall_service.identity import LOCAL
from warpcall_service.quotas import Quotas

REQUESTS, PER_S = "user_max_requests", "user_requests_per_s"  # quotas
BURST_S = 1.0  # the rate's requests of this time may come at once


class Account:
    """The requests of one user: those a second, and those in progress.

    Attributes:
        in_flight: requests that were accepted and are not answered yet.
        bucket: has a token for each request that may be accepted now.
        per_s: the requests a second that it was made for.
        mean_s: moving average of the seconds that a request takes.
    """

    __slots__ = ("bucket", "in_flight", "mean_s", "per_s")

    bucket: TokenBucket

    def __init__(self) -> None:
        self.in_flight = 0
        self.per_s = 0.0
        self.mean_s = 0.0

    def limit(self, per_s: float, now: float) -> None:
        """Allow so many requests a second from now on."""
        self.per_s = per_s
        self.bucket = TokenBucket(max(1.0, per_s * BURST_S), 1 / per_s, now)

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

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
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
            account = self._accounts[user] = Account()
        limits = self._quotas.limits(user)
        most, per_s = limits[REQUESTS], limits[PER_S]
        if account.in_flight >= most and user != LOCAL.name:
            raise Busy(
                f"{user} has {account.in_flight} requests in flight, at most {most} are allowed by "
                f"the quota {REQUESTS}",
                retry_after_s=account.mean_s / account.in_flight,
            )
        if account.per_s != per_s:  # it is new, or the quota was changed
            account.limit(per_s, now)
        if wait_s := account.bucket.take(now):
            raise Busy(
                f"{user} has used up {per_s:g} requests a second, which the quota {PER_S} allows",
                retry_after_s=wait_s,
            )
        account.in_flight += 1
        return account
