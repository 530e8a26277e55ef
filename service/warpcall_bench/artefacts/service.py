"""Stores artefacts, finds their files, and deletes those that have expired.

A file is written first, and then its row, which names it. If the server is killed in between, the
file has no row and is deleted by a later sweep. An artefact that cannot be stored gets a row with
the reason, so that readers learn of it, and the job goes on.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from sqlalchemy.orm import Session

from warpcall.errors import NodeGone, NotFound, OnOtherNode, Problem, sizes
from warpcall_bench.artefacts import database
from warpcall_bench.artefacts.files import ArtefactFiles
from warpcall_bench.artefacts.tables import ArtefactRow
from warpcall_bench.jobs.tables import Job
from warpcall_bench.settings import BenchSettings
from warpcall_service.auth.users import lock_user
from warpcall_service.extension import Nodes
from warpcall_service.quotas import Quotas
from warpcall_service.store.database import Store, StoreError
from warpcall_service.store.threads import StoreThreads
from warpcall_service.store.times import now_ms
from warpcall_service.text import printable

QUOTA = "user_max_artefact_bytes"
THREADS = 2
AT_ONCE = 500  # files whose rows are looked up together
SWEEP_S = 600.0  # between two sweeps; the first one is at the start
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")
MAX_ERROR_CHARS = 1000

log = logging.getLogger("warpcall.artefacts")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewArtefact:
    """An artefact that is to be stored.

    Attributes:
        name: letters, digits, ".", "_" and "-"; it replaces an artefact of the job of this name.
        kind, position, implementation: as in `warpcall.artefacts.Artefact`.
        media_type: of the file. Browsers save every artefact and never show one.
    """

    name: str
    kind: str
    media_type: str
    position: int | None = None
    implementation: str = ""


class Artefacts:
    """All artefacts of this server's jobs, and the rows of those on other servers.

    Args:
        nodes: knows this server's id, and the servers that have other files.
        quotas: the limits of each user.

    Attributes:
        nbytes: of all files, as of the last sweep.
    """

    def __init__(self, settings: BenchSettings, store: Store, nodes: Nodes, quotas: Quotas) -> None:
        self._settings = settings
        self._quotas = quotas
        self._nodes = nodes
        self._files = ArtefactFiles(settings.data_dir)
        self._threads = StoreThreads(store, THREADS)
        self._sweeping: asyncio.Task[None] | None = None
        self.nbytes = 0
        self._failures = 0

    def start(self) -> None:
        """Begin to delete what has expired, in the running event loop."""
        self._sweeping = asyncio.create_task(self._sweep_for_ever())

    async def stop(self) -> None:
        """Stop, and end the threads."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait((self._sweeping,))
        self._threads.close()

    async def add(self, job_of: Callable[[Session], Job], new: NewArtefact, content: bytes) -> str:
        """Store an artefact of a job, or the reason why it cannot be stored.

        Args:
            job_of: finds the job in the transaction that adds the row. If it raises an exception,
                nothing is stored: a run passes a function that checks its claim.

        Returns:
            Why it was not stored; empty if it was.

        Raises:
            StoreError: the database cannot be written.
        """
        most = int(self._settings.artefact_max_bytes)
        if len(content) > most:
            limit, got = sizes(most, len(content))
            return await self.add_error(job_of, new, f"it must have at most {limit}, got {got}")
        try:
            file = await asyncio.to_thread(self._files.write, content)
        except OSError as error:
            return await self.add_error(
                job_of, new, f"the server cannot write it: {error.strerror or error}"
            )
        row = _row(new, self._nodes.id, self._settings.artefact_days)
        row.file, row.nbytes = file, len(content)
        row.sha256 = hashlib.sha256(content).hexdigest()

        def insert(session: Session) -> str:
            job = job_of(session)
            lock_user(session, job.user_name)
            used = database.used_bytes(session, job.user_name)
            quota = self._quotas.count(job.user_name, QUOTA)
            if used + row.nbytes > quota:
                limit, got = sizes(quota, used + row.nbytes)
                return (
                    f"{job.user_name} may have {limit} of artefacts by the quota {QUOTA}, with this "
                    f"one it would be {got}; delete some"
                )
            row.job_number, row.user_name = job.number, job.user_name
            database.insert(session, row)
            return ""

        try:
            why = await self._threads.write(insert)
        except StoreError:
            raise  # the row may have been added all the same: if not, a sweep deletes the file
        except BaseException:
            await asyncio.to_thread(self._files.remove, file)
            raise
        if why:
            await asyncio.to_thread(self._files.remove, file)
            return await self.add_error(job_of, new, why)
        self.nbytes += len(content)
        return ""

    async def add_error(self, job_of: Callable[[Session], Job], new: NewArtefact, why: str) -> str:
        """Store why an artefact could not be made, in its place. Returns the reason.

        Raises:
            StoreError: the database cannot be written.
        """
        row = _row(new, self._nodes.id, self._settings.artefact_days)
        row.error = printable(why[:MAX_ERROR_CHARS])

        def insert(session: Session) -> None:
            job = job_of(session)
            row.job_number, row.user_name = job.number, job.user_name
            database.insert(session, row)

        await self._threads.write(insert)
        self._failures += 1
        return row.error

    async def find(self, row: ArtefactRow) -> tuple[Path, os.stat_result]:
        """The path of an artefact's file, and its status.

        Raises:
            NotFound: there is no file, or it has another size than its row says.
            OnOtherNode: another server has the file; the problem has its address.
            NodeGone: that server is gone, and the file with it unless it returns.
        """
        _check_stored(row)
        found = await asyncio.to_thread(self._files.find, row.file)
        if found is None:
            raise await self._absence(row)
        _check_size(row, found[1].st_size)
        return found

    async def read(self, row: ArtefactRow, most: int) -> bytes:
        """The first `most` bytes of an artefact's file.

        Raises:
            NotFound, OnOtherNode, NodeGone: as `find`.
        """
        _check_stored(row)
        found = await asyncio.to_thread(self._files.read, row.file, most)
        if found is None:
            raise await self._absence(row)
        content, nbytes = found
        _check_size(row, nbytes)
        return content

    async def _absence(self, row: ArtefactRow) -> Problem:
        """Why this server does not have the file of an artefact."""
        if row.node == self._nodes.id:
            return NotFound(f"the file of the artefact {row.name} is lost", field="name")
        await self._nodes.await_others([row.node])
        node = self._nodes.other(row.node)
        where = f"the artefact {row.name} is on the server {row.node}"
        if node is None:
            return NodeGone(f"{where}, which is gone", field="name")
        where += f" on {node.host}"
        if node.gone_since is not None:
            return NodeGone(
                f"{where}, which is {node.state} since {node.gone_since}; try again when it has "
                "returned",
                field="name",
            )
        return OnOtherNode(f"{where}, at {node.url}", field="name", url=node.url)

    async def remove_file(self, row: ArtefactRow) -> None:
        """Delete the file of a row that was deleted, if this server has it."""
        if row.file:
            await asyncio.to_thread(self._files.remove, row.file)

    def metrics(self) -> Iterable[Metric]:
        """Bytes of files, and failures, as Prometheus metrics."""
        stored = GaugeMetricFamily(
            "warpcall_artefact_bytes", "Bytes of artefacts of jobs in the server's data folder"
        )
        stored.add_metric([], self.nbytes)
        failed = CounterMetricFamily(
            "warpcall_artefact_failures", "Artefacts of jobs that could not be made or stored"
        )
        failed.add_metric([], self._failures)
        return stored, failed

    async def _sweep_for_ever(self) -> None:
        adopted, trouble = False, ""
        while True:
            try:
                if self._nodes.identity.id:  # else another server has the data folder
                    if not adopted:
                        await self._adopt()
                        adopted = True
                    await self._sweep()
            except (StoreError, OSError) as error:
                if str(error) != trouble:
                    log.error("artefacts that have expired are not deleted: %s", error)
                trouble = str(error)
            except Exception:
                log.exception("artefacts that have expired are not deleted")
            else:
                trouble = ""
            await asyncio.sleep(SWEEP_S)

    async def _adopt(self) -> None:
        """Write this server's id to the rows of its files. The id can change when it restarts."""
        names = await asyncio.to_thread(self._files.names)
        for begin in range(0, len(names), AT_ONCE):
            some = names[begin : begin + AT_ONCE]
            await self._threads.write(partial(_adopt, some, self._nodes.id))

    async def _sweep(self) -> None:
        """Delete expired rows, and old files without a row: those of expired or deleted artefacts,
        and those whose server was killed before it had added their rows.
        """
        await self._threads.write(database.delete_expired)
        names, self.nbytes = await asyncio.to_thread(self._files.old)
        for begin in range(0, len(names), AT_ONCE):
            some = names[begin : begin + AT_ONCE]
            known = await self._threads.read(partial(_known, some))
            await asyncio.to_thread(self._files.remove, *{*some}.difference(known))


def _adopt(names: Sequence[str], node: str, session: Session) -> None:
    database.adopt(session, names, node)


def _known(names: Sequence[str], session: Session) -> Sequence[str]:
    return database.known_files(session, names)


def _check_stored(row: ArtefactRow) -> None:
    if row.error:
        raise NotFound(f"the artefact {row.name} has no file: {row.error}", field="name")


def _check_size(row: ArtefactRow, nbytes: int) -> None:
    if nbytes != row.nbytes:
        raise NotFound(f"the file of the artefact {row.name} is damaged", field="name")


def file_name(*parts: str) -> str:
    """A name of an artefact out of parts, such as names of implementations.

    Characters that names do not have become "-".
    """
    cleaned = ".".join(NOT_IN_NAMES.sub("-", part).strip(".-") for part in parts if part)
    return cleaned[:128]


def _row(new: NewArtefact, node: str, days: float) -> ArtefactRow:
    if not NAME.fullmatch(new.name):
        raise ValueError(f"the name of an artefact must match {NAME.pattern}, got {new.name!r}")
    now = now_ms()
    return ArtefactRow(
        name=new.name,
        kind=new.kind,
        position=new.position,
        implementation=new.implementation,
        media_type=new.media_type,
        nbytes=0,
        sha256="",
        node=node,
        file="",
        error="",
        created_ms=now,
        expires_ms=now + round(days * 86_400_000),
    )
