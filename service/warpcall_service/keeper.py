"""Between the server and its database: keys are looked up, and usage is saved, beside the requests.

A database that fails meanwhile stops nobody: the keys stay as they were last seen, and what was
used is kept until it can be saved. The log tells when that begins and when it ends, /metrics whether.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from warpcall_service import ledger, users
from warpcall_service.gate import Gate
from warpcall_service.keys_marker import KeysMarker
from warpcall_service.ledger import Ledger, Page
from warpcall_service.store import Store, StoreError
from warpcall_service.users import Snapshot

LOOK_S = 0.5  # between two looks at the keys: one that is revoked stops within twice that
SAVE_S = 5.0  # between two times that usage is saved: a killed server loses no more

log = logging.getLogger("warpcall.store")


class Keeper:
    """Keeps a gate and a ledger in step with the database.

    Args:
        keys: as they were at the start.
        marker: is kept while there are keys, so that a server which lost them does not start.
    """

    def __init__(self, store: Store, keys: Snapshot, marker: KeysMarker) -> None:
        self.gate = Gate(keys)
        self.ledger = Ledger()
        self._store = store
        self._keys = keys
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
        """Save what is left, and end."""
        for task in self._watching:
            task.cancel()
        self._stopping.set()
        if self._saving is not None:
            await asyncio.wait((*self._watching, self._saving))
        self._store.close()

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
        """Apart from `_look`: an expired key stops although the database hangs."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.gate.update(self._keys)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                self._keys = await asyncio.to_thread(self._keys_now)
            except StoreError as error:
                self._note("read", error.detail)
            except Exception:  # whatever it is: to look no more would let revoked keys in
                log.exception("the keys cannot be looked up")
            else:
                self._note("read", "")
                self.gate.update(self._keys)

    async def _save(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), SAVE_S)
            if page := self.ledger.take():
                try:
                    await asyncio.to_thread(self._write, page)
                except StoreError as error:
                    self.ledger.put_back(page)
                    self._note("written", error.detail)
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

    def _write(self, page: Page) -> None:
        with self._store.write() as session:
            ledger.save(session, page)

    def _note(self, verb: str, trouble: str) -> None:
        """Log what began or ended; the same again is silence."""
        if bool(trouble) != bool(self._trouble[verb]):
            log.error(trouble) if trouble else log.info("the database can be %s again", verb)
        self._trouble[verb] = trouble
