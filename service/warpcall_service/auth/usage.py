"""What each user uses: counted as requests are answered, shown in /metrics, saved by `auth/sync.py`."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import sqlalchemy as sa
from prometheus_client.core import CounterMetricFamily, Metric
from sqlalchemy.orm import Session

from warpcall_service.http.exchange import Exchange
from warpcall_service.store.tables import Usage


@dataclass(slots=True)
class Amount:
    """Requests, how many of them got a problem, bytes of bodies, time of kernels."""

    requests: int = 0
    failures: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    kernel_us: float = 0.0

    def add(self, other: Amount) -> None:
        """Count `other` in."""
        self.requests += other.requests
        self.failures += other.failures
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out
        self.kernel_us += other.kernel_us


Page = dict[tuple[str, str, str], Amount]  # by day, user and op


class Ledger:
    """Counts of all users: those that are not saved yet, and the sums since the start."""

    def __init__(self) -> None:
        self._day = today()
        self._page: defaultdict[tuple[str, str, str], Amount] = defaultdict(Amount)
        self._sums: defaultdict[str, Amount] = defaultdict(Amount)

    def note(self, exchange: Exchange) -> None:
        """Count an answered request of a known caller."""
        user = exchange.caller.name
        if not user:
            return
        kernel_ms = exchange.stages_ms.get("kernel", 0.0)
        amount = Amount(
            1, exchange.status >= 400, exchange.received, exchange.sent, kernel_ms * 1e3
        )
        self._page[self._day, user, exchange.op].add(amount)
        self._sums[user].add(amount)

    def add_device_time(self, user: str, op: str, seconds: float) -> None:
        """Count time for which a job of the user had a device."""
        amount = Amount(kernel_us=seconds * 1e6)
        self._page[self._day, user, op].add(amount)
        self._sums[user].add(amount)

    def take(self) -> Page:
        """What is not saved yet, to save it."""
        taken, self._page = self._page, defaultdict(Amount)
        self._day = today()
        return taken

    def put_back(self, page: Page) -> None:
        """What could not be saved."""
        for key, amount in page.items():
            self._page[key].add(amount)

    def metrics(self) -> Iterable[Metric]:
        """The sums, as Prometheus families."""
        requests = CounterMetricFamily(
            "warpcall_user_requests", "Requests of known callers", labels=["user"]
        )
        failures = CounterMetricFamily(
            "warpcall_user_failures", "Those that got a problem", labels=["user"]
        )
        moved = CounterMetricFamily(
            "warpcall_user_body_bytes", "Bytes of their bodies", labels=["user", "direction"]
        )
        kernel = CounterMetricFamily(
            "warpcall_user_kernel_seconds", "Time of their kernels", labels=["user"]
        )
        for user, amount in self._sums.items():
            requests.add_metric([user], amount.requests)
            failures.add_metric([user], amount.failures)
            moved.add_metric([user, "in"], amount.bytes_in)
            moved.add_metric([user, "out"], amount.bytes_out)
            kernel.add_metric([user], amount.kernel_us * 1e-6)
        return requests, failures, moved, kernel


def save(session: Session, page: Page) -> None:
    """Add counts to what the database has."""
    for (day, user, op), amount in page.items():
        counts = {
            "requests": amount.requests,
            "failures": amount.failures,
            "bytes_in": amount.bytes_in,
            "bytes_out": amount.bytes_out,
            "kernel_us": round(amount.kernel_us),
        }
        found = session.execute(
            sa.update(Usage)
            .where(Usage.day == day, Usage.user_name == user, Usage.op == op)
            .values({name: getattr(Usage, name) + count for name, count in counts.items()})
            .execution_options(synchronize_session=False)
        )
        if not found.rowcount:  # type: ignore[attr-defined]  # an UPDATE's result has it
            session.execute(sa.insert(Usage).values(day=day, user_name=user, op=op, **counts))


def today() -> str:
    """The day, UTC."""
    return time.strftime("%Y-%m-%d", time.gmtime())
