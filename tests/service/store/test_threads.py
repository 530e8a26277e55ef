"""Uses of the database that do not come to an end: the waiting callers get an error, and threads do
not pile up.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from tests.service.databases import Database
from warpcall_service.auth import users
from warpcall_service.auth.sync import AccountSync
from warpcall_service.auth.tables import User
from warpcall_service.auth.users import Snapshot
from warpcall_service.quotas import Quotas
from warpcall_service.settings import Settings
from warpcall_service.store.database import Store, StoreError
from warpcall_service.store.threads import StoreThreads

NUMBER = 2
SOON_S = 0.1

T = TypeVar("T")


def names(session: Session) -> list[str]:
    return list(session.scalars(sa.select(User.name)))


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(coroutine, 60))


async def settled(threads: StoreThreads) -> list[str]:
    """What a use finds once a thread is free again."""
    while True:
        try:
            return await threads.read(names)
        except StoreError:
            await asyncio.sleep(0.05)


@pytest.fixture
def sqlite_store(sqlite: Database) -> Store:
    store = sqlite.store()
    store.migrate()
    return store


def test_a_use_that_does_not_end_is_given_up_and_no_thread_is_added(sqlite_store: Store) -> None:
    end = threading.Event()

    def stuck(session: Session) -> None:
        end.wait(60)

    async def use() -> None:
        threads = StoreThreads(sqlite_store, NUMBER)
        before = threading.active_count()
        uses = [threads.read(stuck, SOON_S) for _ in range(NUMBER * 3)]
        results = await asyncio.gather(*uses, return_exceptions=True)
        assert all(isinstance(error, StoreError) for error in results)
        assert "cannot be read: it did not answer within 0.1 s" in str(results[0])
        with pytest.raises(StoreError):
            await threads.read(names, 60)  # at once: every thread is stuck
        assert threading.active_count() == before + NUMBER

        end.set()
        assert await settled(threads) == []
        threads.close()

    run(use())


def test_what_was_given_up_is_not_written_later(sqlite_store: Store) -> None:
    end = threading.Event()

    def add_slowly(session: Session) -> None:
        users.add_user(session, "alice")
        end.wait(60)

    async def use() -> None:
        threads = StoreThreads(sqlite_store, 1)
        with pytest.raises(StoreError):
            await threads.write(add_slowly, SOON_S)
        end.set()
        assert await settled(threads) == []
        threads.close()

    run(use())


def test_a_failure_of_the_function_is_the_callers(sqlite_store: Store) -> None:
    def fail(session: Session) -> None:
        raise TimeoutError("mine")

    async def use() -> None:
        threads = StoreThreads(sqlite_store, 1)
        with pytest.raises(TimeoutError, match="mine"):
            await threads.read(fail)
        assert await threads.read(names) == []
        threads.close()

    run(use())


def test_a_disk_that_is_stuck_when_the_database_is_closed_does_not_keep_the_server(
    sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    end, closed = threading.Event(), threading.Event()

    def close() -> None:
        end.wait(60)
        closed.set()

    monkeypatch.setattr(sqlite_store, "close", close)

    async def use() -> None:
        account_sync = AccountSync(sqlite_store, Snapshot(), Quotas(Settings.load()))
        account_sync.start()
        await account_sync.stop()

    run(use())
    assert not closed.is_set()
    end.set()


def test_uses_are_counted_with_their_time_and_those_that_fail(sqlite_store: Store) -> None:
    end = threading.Event()

    async def use() -> None:
        threads = StoreThreads(sqlite_store, NUMBER)
        await threads.read(names)
        with pytest.raises(StoreError):
            await threads.write(lambda session: end.wait(60), deadline_s=SOON_S)
        end.set()
        await threads.write(lambda session: None)
        threads.close()

    run(use())

    read, write = sqlite_store.uses["read"], sqlite_store.uses["write"]
    assert (read.ended, read.failed) == (1, 0)
    assert (write.ended, write.failed) == (2, 1)
    assert read.waited_s > 0
    assert write.waited_s >= SOON_S
