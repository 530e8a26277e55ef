"""Artefacts of stored jobs for tests, made as a running server makes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from tests.service.databases import Database
from tests.service.stored import number
from warpcall_bench.artefacts.service import Artefacts, NewArtefact
from warpcall_bench.artefacts.tables import ArtefactRow
from warpcall_bench.jobs.tables import Job
from warpcall_bench.settings import BenchSettings
from warpcall_service.lanes.engine import LocalEngine
from warpcall_service.nodes.membership import Membership
from warpcall_service.nodes.server_identity import ServerIdentity
from warpcall_service.quotas import Quotas
from warpcall_service.store.database import Store

TEXT = NewArtefact(name="notes.txt", kind="note", media_type="text/plain; charset=utf-8")


class Here:
    """A server's artefacts, without the server. Use `keeping` to make one."""

    def __init__(self, artefacts: Artefacts, store: Store, folder: Path) -> None:
        self.artefacts = artefacts
        self.store = store
        self.folder = folder / "artefacts"

    def job(self, job_id: str) -> Callable[[Session], Job]:
        found = number(self.store, job_id)
        return lambda session: session.get_one(Job, found)

    def add(self, job_id: str, content: bytes, new: NewArtefact = TEXT) -> str:
        """Add an artefact, and return why it was not stored."""
        return asyncio.run(self.artefacts.add(self.job(job_id), new, content))

    def fail(self, job_id: str, new: NewArtefact, why: str) -> None:
        """Add the reason why there is no such artefact."""
        asyncio.run(self.artefacts.add_error(self.job(job_id), new, why))

    def sweep(self) -> None:
        asyncio.run(self.artefacts._sweep())

    def rows(self) -> list[ArtefactRow]:
        with self.store.read() as session:
            return [*session.scalars(sa.select(ArtefactRow).order_by(ArtefactRow.name))]

    def files(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()} if self.folder.exists() else set()


def keeping(database: Database, store: Store, **settings: Any) -> Here:
    """The artefacts of a server with these settings."""
    folder = Path(database.settings["WARPCALL_DATA_DIR"])
    chosen = BenchSettings(data_dir=folder, **settings)
    identity = ServerIdentity.of(chosen)
    membership = Membership(LocalEngine(chosen), store, identity, "http://x", lambda: False)
    identity.release()  # for a real server, which follows
    return Here(Artefacts(chosen, store, membership, Quotas(chosen)), store, folder)
