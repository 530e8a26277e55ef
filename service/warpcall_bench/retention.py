"""Deletes what is older than the operator keeps it: jobs, events, artefacts, usage.

A running server does it every hour, and the command `prune` at once. Both take the settings
`job_days`, `event_days`, `artefact_days` and `usage_days`. They also delete files of users that no
upload has needed for an hour.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable
from typing import Annotated, NamedTuple

import typer
from sqlalchemy.orm import Session

from warpcall_bench.artefacts import database as artefacts
from warpcall_bench.groups import database as groups
from warpcall_bench.jobs import expiry
from warpcall_bench.settings import BenchSettings
from warpcall_bench.shares import database as shares
from warpcall_bench.uploads import files
from warpcall_service.auth import usage
from warpcall_service.settings import SettingsError
from warpcall_service.store.database import Store, StoreError
from warpcall_service.store.threads import StoreThreads
from warpcall_service.store.times import now_ms

AT_ONCE = 50  # jobs in one transaction: other writers wait for it
EVERY_S = 3600.0
DAY_MS = 86_400_000

log = logging.getLogger("warpcall.retention")


class Expired(NamedTuple):
    """What the settings let expire: rows of one kind.

    Attributes:
        setting: in days; 0 means that nothing expires.
        rows: how many there are.
    """

    what: str
    setting: str
    days: float
    rows: int


def expired(session: Session, settings: BenchSettings) -> list[Expired]:
    """What would be deleted now. Events of jobs that expire themselves are not counted."""
    return [
        Expired(
            *("jobs", "job_days", settings.job_days),
            _if(settings.job_days, lambda ms: expiry.count_expired_jobs(session, ms)),
        ),
        Expired(
            *("events", "event_days", settings.event_days),
            _if(settings.event_days, lambda ms: expiry.expired_events(session, ms)),
        ),
        Expired(
            *("artefacts", "artefact_days", settings.artefact_days),
            artefacts.count_expired(session),
        ),
        Expired(
            *("usage", "usage_days", settings.usage_days),
            _if(settings.usage_days, lambda ms: usage.count_before(session, _day(ms))),
        ),
    ]


def delete_some(session: Session, settings: BenchSettings) -> bool:
    """Delete some of what has expired, in one transaction; returns whether there may be more."""
    if settings.job_days:
        numbers = expiry.expired_jobs(session, _before(settings.job_days), AT_ONCE)
        if numbers:
            artefacts.delete_of_jobs(session, numbers)
            shares.delete_of_jobs(session, numbers)
            groups.delete_of_jobs(session, numbers)
            expiry.delete_jobs(session, numbers)
            return True
    if settings.event_days:
        numbers = expiry.jobs_with_events(session, _before(settings.event_days), AT_ONCE)
        if numbers:
            expiry.delete_events(session, numbers)
            return True
    if settings.usage_days:
        usage.delete_before(session, _day(_before(settings.usage_days)))
    artefacts.delete_expired(session)
    return files.delete_unneeded(session)


class Retention:
    """Deletes every hour what has expired."""

    def __init__(self, settings: BenchSettings, store: Store) -> None:
        self._settings = settings
        self._threads = StoreThreads(store, 1)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, in the running event loop."""
        self._task = asyncio.create_task(self._run_for_ever())

    async def stop(self) -> None:
        """Stop, and end the thread."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        self._threads.close()

    async def _run_for_ever(self) -> None:
        while True:
            try:
                while await self._threads.write(
                    lambda session: delete_some(session, self._settings)
                ):
                    await asyncio.sleep(0.1)  # for others that write
            except StoreError as error:
                log.error("what has expired is not deleted: %s", error.reason)
            except Exception:
                log.exception("what has expired is not deleted")
            await asyncio.sleep(EVERY_S)


def prune(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be deleted.")
    ] = False,
) -> None:
    """Delete jobs, events, artefacts and usage that are older than the settings keep them.

    A running server does so every hour.
    """
    try:
        settings = BenchSettings.load()
        url = settings.database_url
        store = Store(None if url is None else url.get_secret_value(), settings.data_dir)
        store.migrate()
        with store.read() as session:
            found = expired(session, settings)
        more = not dry_run
        while more:
            with store.write() as session:
                more = delete_some(session, settings)
        store.close()
    except (SettingsError, StoreError) as error:
        typer.echo(f"warpcall-server: {error}", err=True)
        raise typer.Exit(2 if isinstance(error, SettingsError) else 1) from None
    verb = "would be deleted" if dry_run else "deleted"
    for one in found:
        kept = f"{one.days:g} days" if one.days else "for ever"
        sys.stdout.write(f"{one.what:9} {one.rows} {verb}; {one.setting} keeps them {kept}\n")


def _if(days: float, count: Callable[[int], int]) -> int:
    return count(_before(days)) if days else 0


def _before(days: float) -> int:
    return now_ms() - round(days * DAY_MS)


def _day(ms: int) -> str:
    """The day of a time, in UTC, as YYYY-MM-DD."""
    return time.strftime("%Y-%m-%d", time.gmtime(ms / 1000))
