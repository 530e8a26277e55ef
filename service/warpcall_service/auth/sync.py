"""Reads keys, sessions and quotas from the database and saves usage to it, so that no request waits.

While the database fails, the server goes on with the keys that it read last, and keeps the usage
until it can be saved. A save is repeated, and counts twice, if the database did it and its answer
was lost. The log says when a failure begins and ends, /metrics whether there is one. Each use of the
database has a deadline: a database that does not answer counts as one that fails.

With `keys_max_age_s` the server refuses all keys once it could not read them for that long.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from sqlalchemy.orm import Session

from warpcall_service.auth import sessions, usage, users
from warpcall_service.auth.authenticator import Authenticator
from warpcall_service.auth.usage import UsageBatch, UsageCounter
from warpcall_service.auth.users import Snapshot
from warpcall_service.http.exchange import Exchange
from warpcall_service.quotas import DEVICE_S, Quotas
from warpcall_service.store.database import Store, StoreError
from warpcall_service.store.threads import VERBS, StoreThreads

READ_S = 0.5  # between two reads of the keys: a revoked key stops within twice this time
READ_DEADLINE_S = 5.0  # of one read; after that the database counts as one that fails
SAVE_S = 5.0  # between two saves of usage: a server that is killed loses no more than this
LAST_SAVE_S = 3.0  # the time for saving usage when the server stops

log = logging.getLogger("warpcall.store")

T = TypeVar("T")


class AccountSync:
    """Synchronizes the authenticator's keys and the users' usage with the database.

    Args:
        keys: the keys in the database at the start.
        quotas: is renewed with the quotas that the database has.
        keys_max_age_s: seconds after the last read of the keys from which all are refused; 0 means
            that keys are accepted however old the last read is.
        open_folders, link_folders, public_folders: for the `Authenticator`.
    """

    def __init__(
        self,
        store: Store,
        keys: Snapshot,
        quotas: Quotas,
        keys_max_age_s: float = 0.0,
        open_folders: tuple[str, ...] = (),
        link_folders: tuple[str, ...] = (),
        public_folders: tuple[str, ...] = (),
    ) -> None:
        self.authenticator = Authenticator(keys, open_folders, link_folders, public_folders)
        self.usage_counter = UsageCounter()
        self.quotas = quotas
        quotas.counters[DEVICE_S] = self.usage_counter.device_s
        self._roles_until = 0.0  # when the next key expires, or 0 before the quotas are applied
        self._unsaved: UsageBatch = {}  # counts that the database has refused
        self._store = store
        # Reading and writing have a thread each, so that a save that hangs does not delay a read.
        self._reading, self._writing = StoreThreads(store, 1), StoreThreads(store, 1)
        self._changing = StoreThreads(store, 1)
        self._apply(keys)
        self._keys_max_age_s = keys_max_age_s
        self._read_at = time.monotonic()  # the keys are those of this time or later
        self._trouble = {"read": "", "write": ""}
        self._stopping = asyncio.Event()
        self._watching: list[asyncio.Task[None]] = []
        self._saving: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the background tasks in the running event loop."""
        self._watching = [asyncio.create_task(work()) for work in (self._expire, self._read)]
        self._saving = asyncio.create_task(self._save())

    async def stop(self) -> None:
        """Save the remaining usage within LAST_SAVE_S, and stop."""
        for task in self._watching:
            task.cancel()
        self._stopping.set()
        if self._saving is not None:
            await asyncio.wait((*self._watching, self._saving), timeout=LAST_SAVE_S)
            if not self._saving.done():
                self._saving.cancel()
                log.error("usage of the last seconds is lost: the database does not answer")
        for threads in (self._reading, self._writing, self._changing):
            threads.close()
        # SQLite writes to disk when its last connection is closed, which may hang, too.
        closing = threading.Thread(target=self._store.close, daemon=True)
        closing.start()
        closing.join(LAST_SAVE_S)

    @property
    def keys(self) -> Snapshot:
        """The keys and sessions that were read last."""
        return self._keys

    async def change(self, function: Callable[[Session], T]) -> T:
        """Change users, keys, sessions or quotas in one transaction, and let this server use it at once.

        Other servers on the same database use it within a second.

        Raises:
            StoreError: the database cannot be written; nothing was changed. Or it cannot be read
                again: then the change is used when it can.
        """
        result = await self._changing.write(function)
        await self._refresh()
        return result

    async def read(self, function: Callable[[Session], T]) -> T:
        """Run a function that only reads. It raises StoreError if the database cannot be read."""
        return await self._changing.read(function)

    def count_wrong_link(self, exchange: Exchange) -> None:
        """As `Authenticator.count_wrong_link`."""
        self.authenticator.count_wrong_link(exchange)

    def add_device_time(self, user: str, op: str, seconds: float) -> None:
        """As `UsageCounter.add_device_time`."""
        self.usage_counter.add_device_time(user, op, seconds)

    def reasons(self) -> list[str]:
        """Why the server is not ready, for /readyz. Everyone may read it: it has no addresses."""
        failing = [VERBS[operation] for operation, why in self._trouble.items() if why]
        found = [f"the database cannot be {' or '.join(failing)}"] if failing else []
        unusable = self.authenticator.keys_unusable
        return [*found, unusable] if unusable else found

    def metrics(self) -> Iterable[Metric]:
        """Usage, wrong keys and the state of the database, as Prometheus metrics."""
        up = GaugeMetricFamily(
            "warpcall_database_up",
            "1 if the last attempt to read or write the database succeeded, else 0",
            labels=["operation"],
        )
        for operation, trouble in self._trouble.items():
            up.add_metric([operation], float(not trouble))
        waited = SummaryMetricFamily(
            "warpcall_database_seconds",
            "Uses of the database by this server, and the seconds that it waited for them, by "
            "operation: read or write",
            labels=["operation"],
        )
        failed = CounterMetricFamily(
            "warpcall_database_failures",
            "Uses of the database by this server that failed, by operation: read or write",
            labels=["operation"],
        )
        for operation, uses in self._store.uses.items():
            waited.add_metric([operation], uses.ended, uses.waited_s)
            failed.add_metric([operation], uses.failed)
        refused = CounterMetricFamily(
            "warpcall_wrong_keys", "Requests that had a wrong API key or share link"
        )
        refused.add_metric([], self.authenticator.refused)
        return [*self.usage_counter.metrics(), up, waited, failed, refused]

    async def _expire(self) -> None:
        """Let keys expire and age even while `_read` waits for a database that hangs."""
        while True:
            await asyncio.sleep(READ_S)
            if time.time() >= self._roles_until:
                self._apply(self._keys)
            self.authenticator.update(self._keys, unusable=self._too_old())

    async def _read(self) -> None:
        while True:
            try:
                await self._refresh()
            except StoreError as error:
                self._note("read", error.reason)
            except Exception:  # if this task ended, revoked keys would be accepted for ever
                log.exception("the keys cannot be read")
            else:
                self._note("read", "")
            await asyncio.sleep(READ_S)

    async def _refresh(self) -> None:
        """Read keys and sessions, and use them. Several reads end in the order of their calls."""
        began = time.monotonic()
        keys = await self._reading.call(self._keys_now, READ_DEADLINE_S)
        if keys is not self._keys:
            self._apply(keys)
        self._read_at = began
        self.authenticator.update(self._keys)

    def _apply(self, keys: Snapshot) -> None:
        """Use these keys, and the quotas that follow from them and their roles."""
        self._keys = keys
        roles, self._roles_until = keys.roles(time.time())
        self.quotas.update(keys.quotas, roles)

    async def _save(self) -> None:
        await self._read_device_time()
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), SAVE_S)
            await self._save_uses()
            for _ in range(2):  # what could not be saved the last time, and what was counted since
                self._unsaved = self._unsaved or self.usage_counter.take()
                if not self._unsaved:
                    break
                try:
                    await self._writing.write(functools.partial(usage.save, batch=self._unsaved))
                except StoreError as error:
                    self._note("write", error.reason)
                    break
                except Exception:
                    log.exception("usage is lost")
                else:
                    self._note("write", "")
                self._unsaved = {}
            if self._stopping.is_set():
                return
            if not self._unsaved:
                await self._read_device_time()

    async def _read_device_time(self) -> None:
        """Learn what device time users have used today on all servers.

        All that this server took for saving must be saved. If it cannot be saved or read, what is
        counted here is added to what was read last.
        """
        day = self.usage_counter.day
        with contextlib.suppress(StoreError):
            saved = await self._writing.read(lambda session: usage.device_us_of(session, day))
            self.usage_counter.update_device_time(day, saved)

    async def _save_uses(self) -> None:
        """Store when sessions were used. If that fails, they look unused for some minutes more."""
        if used_at := self.authenticator.take_uses():
            with contextlib.suppress(StoreError):
                await self._writing.write(lambda session: sessions.note_uses(session, used_at))

    def _keys_now(self) -> Snapshot:
        with self._store.read() as session:
            return users.snapshot(session, self._keys)

    def _too_old(self) -> str:
        """Why the keys are too old to be accepted; empty if they are not."""
        age_s = time.monotonic() - self._read_at
        if not 0 < self._keys_max_age_s < age_s:
            return ""
        return (
            f"no API key can be checked: the database was not read for more than "
            f"{self._keys_max_age_s:g} s"
        )

    def _note(self, operation: str, trouble: str) -> None:
        """Log a failure when it begins and when it ends."""
        if bool(trouble) != bool(self._trouble[operation]):
            log.error(trouble) if trouble else log.info(
                "the database can be %s again", VERBS[operation]
            )
        self._trouble[operation] = trouble
