"""Between the server and its database: keys are looked up, and usage is saved, beside the requests.

A database that fails meanwhile stops nobody: the keys stay as they were last seen, and what was
used is kept until it can be saved. The log tells when that begins and when it ends, /metrics whether.
A database that does not answer has failed, too: each use of it has a deadline.

With `keys_max_age_s` keys that were not read for so long admit nobody, until they can be read.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
import time
from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from warpcall_service.auth import usage, users
from warpcall_service.auth.authenticator import Gate
from warpcall_service.auth.keys_marker import KeysMarker
from warpcall_service.auth.usage import Ledger
from warpcall_service.auth.users import Snapshot
from warpcall_service.store.database import Store, StoreError
from warpcall_service.store.threads import StoreThreads

LOOK_S = 0.5  # between two looks at the keys: one that is revoked stops within twice that
LOOK_DEADLINE_S = 5.0  # of one look; later than this the database counts as one that fails
SAVE_S = 5.0  # between two times that usage is saved: a killed server loses no more
LAST_SAVE_S = 3.0  # for saving usage when the server stops

log = logging.getLogger("warpcall.store")


class Keeper:
    """Keeps a gate and a ledger in step with the database.

    Args:
        keys: as they were at the start.
        marker: is kept while there are keys, so that a server which lost them does not start.
        keys_max_age_s: after which keys that were not read again admit nobody; 0: no limit.
    """

    def __init__(
        self, store: Store, keys: Snapshot, marker: KeysMarker, keys_max_age_s: float = 0.0
    ) -> None:
        self.gate = Gate(keys)
        self.ledger = Ledger()
        self._store = store
        # One thread each: a save that is stuck delays no look.
        self._reading, self._writing = StoreThreads(store, 1), StoreThreads(store, 1)
        self._keys = keys
        self._keys_max_age_s = keys_max_age_s
        self._read_at = time.monotonic()  # the keys were so, or newer, at this time
        self._marker = marker
        self._trouble = {"read": "", "written": ""}
        self._stopping = asyncio.Event()
        self._watching: list[asyncio.Task[None]] = []
        self._saving: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to work, in the running loop."""
        self._watching = [asyncio.create_task(work()) for work in (self._expire, self._look)]
        self._saving = asyncio.create_task(self._save())

    async def stop(self) -> None:
        """Save what is left, within LAST_SAVE_S, and end."""
        for task in self._watching:
            task.cancel()
        self._stopping.set()
        if self._saving is not None:
            await asyncio.wait((*self._watching, self._saving), timeout=LAST_SAVE_S)
            if not self._saving.done():
                self._saving.cancel()
                log.error("usage of the last seconds is lost: the database does not answer")
        self._reading.close()
        self._writing.close()
        # SQLite writes when its last connection is closed, and may be stuck then, too.
        closing = threading.Thread(target=self._store.close, daemon=True)
        closing.start()
        closing.join(LAST_SAVE_S)

    def reasons(self) -> list[str]:
        """What /readyz says of the database; everyone may read it, so it does not say where it is."""
        failing = [verb for verb, trouble in self._trouble.items() if trouble]
        found = [f"the database cannot be {' or '.join(failing)}"] if failing else []
        return [*found, self.gate.shut] if self.gate.shut else found

    def metrics(self) -> Iterable[Metric]:
        """Users, wrong keys and the database's state, as Prometheus families."""
        up = GaugeMetricFamily(
            "warpcall_database_up", "Whether the database could last be used", labels=["to_be"]
        )
        for verb, trouble in self._trouble.items():
            up.add_metric([verb], float(not trouble))
        refused = CounterMetricFamily("warpcall_wrong_keys", "Requests with a wrong API key")
        refused.add_metric([], self.gate.refused)
        return [*self.ledger.metrics(), up, refused]

    async def _expire(self) -> None:
        """Apart from `_look`: keys expire, and age, although the database hangs."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.gate.update(self._keys, shut=self._too_old())

    async def _look(self) -> None:
        while True:
            began = time.monotonic()
            try:
                self._keys = await self._reading.call(self._keys_now, LOOK_DEADLINE_S)
            except StoreError as error:
                self._note("read", error.reason)
            except Exception:  # whatever it is: to look no more would let revoked keys in
                log.exception("the keys cannot be looked up")
            else:
                self._read_at = began
                self._note("read", "")
                self.gate.update(self._keys)
            await asyncio.sleep(LOOK_S)

    async def _save(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), SAVE_S)
            if page := self.ledger.take():
                try:
                    await self._writing.write(functools.partial(usage.save, page=page))
                except StoreError as error:
                    self.ledger.put_back(page)
                    self._note("written", error.reason)
                except Exception:
                    log.exception("usage is lost")
                else:
                    self._note("written", "")

    def _keys_now(self) -> Snapshot:
        self._marker.keep(self._keys)  # first: the database may be gone with the whole folder
        with self._store.read() as session:
            found = users.snapshot(session, self._keys)
        self._marker.keep(found)
        return found

    def _too_old(self) -> str:
        """Why these keys admit nobody at present; empty if they do."""
        age_s = time.monotonic() - self._read_at
        if not 0 < self._keys_max_age_s < age_s:
            return ""
        return (
            f"no API key can be checked: the database was not read for more than "
            f"{self._keys_max_age_s:g} s"
        )

    def _note(self, verb: str, trouble: str) -> None:
        """Log what began or ended; the same again is silence."""
        if bool(trouble) != bool(self._trouble[verb]):
            log.error(trouble) if trouble else log.info("the database can be %s again", verb)
        self._trouble[verb] = trouble
