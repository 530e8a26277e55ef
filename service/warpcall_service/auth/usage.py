"""What each user has used: counted by response, shown in /metrics, saved by `auth/sync.py`."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa
from prometheus_client.core import CounterMetricFamily, Metric
from sqlalchemy.orm import InstrumentedAttribute, Session

from warpcall_service.auth.tables import Usage
from warpcall_service.http.access_log import Answered


@dataclass(slots=True)
class Amount:
    """Requests, those answered with an error, bytes of bodies, and time of kernels."""

    requests: int = 0
    failures: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    kernel_us: float = 0.0

    def add(self, other: Amount) -> None:
        """Add the counts of `other`."""
        self.requests += other.requests
        self.failures += other.failures
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out
        self.kernel_us += other.kernel_us


UsageBatch = dict[tuple[str, str, str], Amount]  # by day, user and op


class UsageCounter:
    """Counts what users use: the counts that are not saved yet, and the sums since the start."""

    def __init__(self) -> None:
        self._day = today()
        self._batch: defaultdict[tuple[str, str, str], Amount] = defaultdict(Amount)
        self._taken: defaultdict[str, Amount] = defaultdict(Amount)  # of each user
        # Device time of the day by user: what the database has, of all servers, and what was counted
        # here since it was read.
        self._device_us: defaultdict[str, float] = defaultdict(float)

    def record(self, exchange: Answered) -> None:
        """Count a request that was answered, if its caller is known."""
        user = exchange.caller.name
        if not user:
            return
        failed = exchange.status >= 400
        kernel_us = exchange.stages_ms.get("kernel", 0.0) * 1e3
        amount = self._batch[self._day, user, exchange.op]
        amount.requests += 1
        amount.failures += failed
        amount.bytes_in += exchange.received
        amount.bytes_out += exchange.sent
        amount.kernel_us += kernel_us
        self._device_us[user] += kernel_us

    def add_device_time(self, user: str, op: str, seconds: float) -> None:
        """Count seconds for which a job of the user had a device, or a call without an answer ran."""
        self._batch[self._day, user, op].kernel_us += seconds * 1e6
        self._device_us[user] += seconds * 1e6

    def device_s(self, user: str) -> float:
        """Seconds of device time that the user has used today (UTC), as far as this server knows."""
        return self._device_us.get(user, 0.0) / 1e6

    def update_device_time(self, day: str, saved_us: Mapping[str, float]) -> None:
        """Take over what the database has.

        Args:
            saved_us: microseconds of device time on `day` by user, with all that `take` returned.
        """
        if day != self._day:
            return
        self._device_us = defaultdict(float, saved_us)
        for (_day, user, _op), amount in self._batch.items():
            self._device_us[user] += amount.kernel_us

    @property
    def day(self) -> str:
        """The day for which device time is counted: today, or yesterday until the next `take`."""
        return self._day

    def take(self) -> UsageBatch:
        """Take the counts that are not saved yet, in order to save them."""
        taken, self._batch = self._batch, defaultdict(Amount)
        if (day := today()) != self._day:
            self._day = day
            self._device_us.clear()
        for (_day, user, _op), amount in taken.items():
            self._taken[user].add(amount)
        return taken

    def metrics(self) -> Iterable[Metric]:
        """The sums since the start, as Prometheus metrics."""
        requests = CounterMetricFamily(
            "warpcall_user_requests", "Requests answered, by user", labels=["user"]
        )
        failures = CounterMetricFamily(
            "warpcall_user_failures", "Requests answered with an error, by user", labels=["user"]
        )
        moved = CounterMetricFamily(
            "warpcall_user_body_bytes",
            "Bytes of request bodies (in) and response bodies (out), by user",
            labels=["user", "direction"],
        )
        kernel = CounterMetricFamily(
            "warpcall_user_kernel_seconds",
            "Seconds of kernels in calls and of devices in jobs, by user",
            labels=["user"],
        )
        sums = {user: replace(amount) for user, amount in self._taken.items()}
        for (_day, user, _op), amount in self._batch.items():
            sums.setdefault(user, Amount()).add(amount)
        for user, amount in sums.items():
            requests.add_metric([user], amount.requests)
            failures.add_metric([user], amount.failures)
            moved.add_metric([user, "in"], amount.bytes_in)
            moved.add_metric([user, "out"], amount.bytes_out)
            kernel.add_metric([user], amount.kernel_us * 1e-6)
        return requests, failures, moved, kernel


def save(session: Session, batch: UsageBatch) -> None:
    """Add the counts of a batch to the rows of the database."""
    for (day, user, op), amount in batch.items():
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


def count_before(session: Session, day: str) -> int:
    """Number of rows of days before `day` (YYYY-MM-DD)."""
    query = sa.select(sa.func.count()).select_from(Usage).where(Usage.day < day)
    return session.scalars(query).one()


def delete_before(session: Session, day: str) -> None:
    """Delete the usage of days before `day` (YYYY-MM-DD)."""
    delete = sa.delete(Usage).where(Usage.day < day)
    session.execute(delete.execution_options(synchronize_session=False))


def device_us_of(session: Session, day: str) -> dict[str, float]:
    """Microseconds of device time of each user on a day (YYYY-MM-DD)."""
    total = sa.select(Usage.user_name, sa.func.sum(Usage.kernel_us)).where(Usage.day == day)
    rows = session.execute(total.group_by(Usage.user_name))
    return {user: float(kernel_us) for user, kernel_us in rows}


def by_day_and_user(session: Session, since: str) -> Iterable[tuple[str, str, Amount]]:
    """What each user has used on each day, from the day `since` (YYYY-MM-DD) on."""
    return _sums(session, (Usage.day, Usage.user_name), since)


def by_user_and_op(session: Session, since: str) -> Iterable[tuple[str, str, Amount]]:
    """What each user has used for each op, from the day `since` (YYYY-MM-DD) on."""
    return _sums(session, (Usage.user_name, Usage.op), since)


def _sums(
    session: Session, by: Sequence[InstrumentedAttribute[str]], since: str
) -> Iterable[tuple[str, str, Amount]]:
    columns = (Usage.requests, Usage.failures, Usage.bytes_in, Usage.bytes_out, Usage.kernel_us)
    query = sa.select(*by, *map(sa.func.sum, columns)).where(Usage.day >= since).group_by(*by)
    for first, second, *sums in session.execute(query):
        yield first, second, Amount(*map(int, sums))


def today() -> str:
    """The current day in UTC, as YYYY-MM-DD."""
    return time.strftime("%Y-%m-%d", time.gmtime())
