"""Artefacts as a server stores them: whole or not at all, within quotas, until they expire."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa
from pydantic import ByteSize
from sqlalchemy.orm import Session

from tests.service.artefacts.kept import TEXT, Here, keeping
from tests.service.databases import Database
from tests.service.stored import finished
from warpcall_bench.artefacts import database as rows_of
from warpcall_bench.artefacts.files import GRACE_S, ArtefactFiles
from warpcall_bench.artefacts.service import NewArtefact, file_name
from warpcall_bench.artefacts.tables import ArtefactRow
from warpcall_bench.jobs.queue import ClaimLost
from warpcall_bench.jobs.tables import Job
from warpcall_service.store.database import Store

SMALL = ByteSize(2048)


@pytest.fixture
def here(database: Database, store: Store) -> Iterator[Here]:
    made = keeping(database, store, artefact_max_bytes=SMALL, user_max_artefact_bytes=SMALL)
    yield made
    made.artefacts._threads.close()


def age(folder: Path) -> None:
    """Let all files look so old that nobody can be writing them."""
    then = time.time() - GRACE_S - 1
    for path in folder.iterdir():
        os.utime(path, (then, then))


def expire(store: Store) -> None:
    with store.write() as session:
        session.execute(sa.update(ArtefactRow).values(expires_ms=1))


def test_a_file_and_its_row_are_stored(here: Here) -> None:
    job = finished(here.store, "alice", 1)

    why = here.add(job, b"hello")

    (row,) = here.rows()
    assert why == row.error == ""
    assert (row.name, row.user_name, row.nbytes) == ("notes.txt", "alice", 5)
    assert row.sha256 == hashlib.sha256(b"hello").hexdigest()
    assert here.files() == {row.file}
    assert (here.folder / row.file).read_bytes() == b"hello"
    assert (here.folder / row.file).stat().st_mode & 0o777 == 0o600
    assert here.folder.stat().st_mode & 0o777 == 0o700


def test_an_artefact_of_the_same_name_replaces_the_first(here: Here) -> None:
    job = finished(here.store, "alice", 1)
    here.add(job, b"first")

    here.add(job, b"second")
    age(here.folder)
    here.sweep()

    (row,) = here.rows()
    assert row.nbytes == len(b"second")
    assert here.files() == {row.file}


def test_a_file_that_is_too_large_leaves_the_reason(here: Here) -> None:
    job = finished(here.store, "alice", 1)

    why = here.add(job, bytes(2049))

    (row,) = here.rows()
    assert why == row.error == "it must have at most 2 KiB, got 2.001 KiB"
    assert (row.nbytes, row.file, row.sha256) == (0, "", "")
    assert here.files() == set()


def test_the_quota_counts_all_jobs_of_a_user_and_no_expired_files(here: Here) -> None:
    first, second = (finished(here.store, "alice", 1) for _ in range(2))
    of_bob = finished(here.store, "bob", 1)
    here.add(first, bytes(2000))

    refused = here.add(second, bytes(100))
    files_after_refusal = here.files()
    other_user = here.add(of_bob, bytes(100))
    expire(here.store)
    afterwards = here.add(second, bytes(100))

    assert refused == (
        "alice may have 2 KiB of artefacts by the quota user_max_artefact_bytes, with this one it "
        "would be 2.051 KiB; delete some"
    )
    assert len(files_after_refusal) == 1
    assert [other_user, afterwards] == ["", ""]


def test_files_that_are_stored_at_the_same_moment_do_not_exceed_the_quota(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [finished(here.store, "alice", 1) for _ in range(2)]
    both = threading.Barrier(2)
    count = rows_of.used_bytes

    def counted(session: Session, user: str) -> int:
        found = count(session, user)
        with suppress(threading.BrokenBarrierError):
            both.wait(1.0)  # until the other one has counted, unless it cannot
        return found

    monkeypatch.setattr(rows_of, "used_bytes", counted)
    adding = [partial(here.artefacts.add, here.job(job), TEXT, bytes(1500)) for job in jobs]

    async def at_once() -> list[str]:
        return await asyncio.gather(*(add() for add in adding))

    reasons = asyncio.run(at_once())

    assert sum(row.nbytes for row in here.rows()) == 1500
    assert sorted(map(bool, reasons)) == [False, True]


def test_what_has_expired_is_deleted_with_its_file(here: Here) -> None:
    job = finished(here.store, "alice", 1)
    here.add(job, b"hello")
    age(here.folder)
    here.sweep()
    before = here.files()

    expire(here.store)
    with here.store.read() as session:
        found = session.scalars(sa.select(Job).where(Job.id == job)).one()
        shown = rows_of.of_job(session, found)
    here.sweep()

    assert len(before) == 1
    assert list(shown) == [], "an expired one is not shown, even before it is deleted"
    assert (here.rows(), here.files()) == ([], set())


def test_files_without_a_row_are_deleted_once_they_are_old(here: Here) -> None:
    here.add(finished(here.store, "alice", 1), b"kept")
    orphan = ArtefactFiles(here.folder.parent).write(b"orphan")
    part = here.folder / f"{'0' * 32}.part"
    part.write_bytes(b"half")
    stranger = here.folder / "README"
    stranger.write_bytes(b"of the operator")
    (row,) = here.rows()

    here.sweep()
    young = here.files()
    age(here.folder)
    here.sweep()

    assert young == {row.file, orphan, part.name, stranger.name}
    assert here.files() == {row.file, stranger.name}


def test_a_writer_that_is_killed_leaves_no_file_with_a_final_name(tmp_path: Path) -> None:
    program = f"""
        import os, signal
        from pathlib import Path
        from warpcall_bench.artefacts.files import ArtefactFiles
        os.fsync = lambda fd: os.kill(os.getpid(), signal.SIGKILL)
        ArtefactFiles(Path({str(tmp_path)!r})).write(b"hello")
    """

    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=False)

    (left,) = (tmp_path / "artefacts").iterdir()
    assert done.returncode == -signal.SIGKILL
    assert left.suffix == ".part"
    assert ArtefactFiles(tmp_path).names() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="a small disk needs the right to mount")
def test_a_full_disk_is_an_error_of_the_artefact(here: Here) -> None:
    if shutil.which("mount") is None:
        pytest.skip("mount is not installed")
    job = finished(here.store, "alice", 1)
    here.folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(here.folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        (here.folder / "full").write_bytes(bytes(4096))

        why = here.add(job, bytes(2000))

        assert here.files() == {"full"}
    finally:
        subprocess.run(["umount", str(here.folder)], check=True)
    (row,) = here.rows()
    assert why == row.error == "the server cannot write it: No space left on device"


def test_a_run_that_has_lost_its_claim_stores_nothing(here: Here) -> None:
    def lost(session: object) -> Job:
        raise ClaimLost

    with pytest.raises(ClaimLost):
        asyncio.run(here.artefacts.add(lost, TEXT, b"hello"))

    assert (here.rows(), here.files()) == ([], set())


def test_a_server_with_a_new_id_adopts_the_rows_of_its_files(here: Here) -> None:
    here.add(finished(here.store, "alice", 1), b"hello")
    with here.store.write() as session:
        session.execute(sa.update(ArtefactRow).values(node="0" * 16))

    asyncio.run(here.artefacts._adopt())

    assert here.rows()[0].node == here.artefacts._nodes.id


@pytest.mark.parametrize("name", ["", "../x", "a/b", "a b", ".hidden", "<b>", "x" * 129, "a\n"])
def test_a_name_is_safe_in_every_file_system(here: Here, name: str) -> None:
    job = finished(here.store, "alice", 1)
    new = NewArtefact(name=name, kind="note", media_type="text/plain")

    with pytest.raises(ValueError, match="the name of an artefact must match"):
        here.add(job, b"hello", new)

    assert here.rows() == []


def test_names_are_made_of_names_of_implementations() -> None:
    assert file_name("case-0", "ann/mine@3f2a91c0", "trace.json") == (
        "case-0.ann-mine-3f2a91c0.trace.json"
    )
    assert file_name("case-0", "", "<b>.txt") == "case-0.b-.txt"
