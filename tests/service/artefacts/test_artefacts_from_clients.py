"""Artefacts in the SDK and on the command line, on a real server."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from demo.server import Server
from tests.e2e.command import Warpcall, command_for
from tests.servers import running_server
from tests.service.artefacts.kept import TEXT, keeping
from tests.service.databases import Database
from tests.service.stored import finished
from warpcall import AsyncClient, Client, NotFound, TransportError
from warpcall_bench.artefacts.service import NewArtefact

pytestmark = pytest.mark.slow

CONTENT = b'{"traceEvents": []}'
TRACE = NewArtefact(
    name="case-0.warpcall.trace.json",
    kind="torch-profile",
    media_type="application/json",
    position=0,
    implementation="warpcall",
)
LARGE = NewArtefact(name="large", kind="note", media_type="text/plain")


@dataclass(frozen=True)
class Lab:
    """A server with a job that has three artefacts, one of which could not be stored."""

    server: Server
    job: str
    folder: Path


@pytest.fixture
def lab(sqlite: Database) -> Iterator[Lab]:
    store = sqlite.store()
    store.migrate()
    job = finished(store, "local", 1)
    here = keeping(sqlite, store)
    here.add(job, CONTENT, TRACE)
    here.add(job, b"hello")
    here.add(job, bytes(17 << 20), LARGE)
    here.artefacts._threads.close()
    store.close()
    with running_server(sqlite.settings) as server:
        yield Lab(server, job, here.folder)


@pytest.fixture
def warpcall(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Warpcall:
    return command_for(lab.server, monkeypatch, capsys)


def test_artefacts_are_listed_saved_and_deleted(lab: Lab, tmp_path: Path) -> None:
    with Client(lab.server.url) as gpu:
        job = gpu.jobs.get(lab.job)
        found = {one.name: one for one in job.artefacts()}
        trace, notes, large = (found[name] for name in (TRACE.name, TEXT.name, LARGE.name))

        saved = trace.download(tmp_path / "t.json")
        trace.download(str(saved))  # it replaces the first
        with pytest.raises(NotFound, match="it must have at most 16 MiB, got 17 MiB"):
            large.read()
        notes.delete()

        assert (trace.kind, trace.position, trace.implementation) == (
            "torch-profile",
            0,
            "warpcall",
        )
        assert saved.read_bytes() == CONTENT
        assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["t.json"]
        assert notes.name not in [one.name for one in job.artefacts()]
        with pytest.raises(AttributeError):
            trace.name = "other"  # type: ignore[misc]  # as a program without type checks would


def test_artefacts_are_awaited(lab: Lab, tmp_path: Path) -> None:
    async def run() -> list[bytes]:
        async with AsyncClient(lab.server.url) as gpu:
            job = await gpu.jobs.get(lab.job)
            found = {one.name: one for one in await job.artefacts()}
            saved = await found[TRACE.name].download(tmp_path / "t.json")
            content = await found[TEXT.name].read()
            await found[TEXT.name].delete()
            with pytest.raises(NotFound):
                await found[TEXT.name].read()
            return [saved.read_bytes(), content]

    assert asyncio.run(run()) == [CONTENT, b"hello"]


def test_bytes_that_changed_on_the_way_are_not_saved(lab: Lab, tmp_path: Path) -> None:
    with Client(lab.server.url) as gpu:
        found = {one.name: one for one in gpu.jobs.get(lab.job).artefacts()}
        for path in lab.folder.iterdir():
            path.write_bytes(path.read_bytes()[::-1])

        with pytest.raises(TransportError, match="must have the SHA-256"):
            found[TRACE.name].download(tmp_path / "t.json")

    assert not (tmp_path / "t.json").exists()


def test_the_command_lists_and_saves(lab: Lab, warpcall: Warpcall, tmp_path: Path) -> None:
    target = tmp_path / "trace.json"

    listed = warpcall("artefacts", lab.job[:6])
    as_json = json.loads(warpcall("artefacts", lab.job, "--json")[1])
    saved = warpcall("artefacts", lab.job, TRACE.name, "-o", target)
    deleted = warpcall("artefacts", lab.job, TEXT.name, "--delete", "--json")
    left = json.loads(warpcall("artefacts", lab.job, "--json")[1])

    lines = listed[1].splitlines()
    assert lines[0].split() == ["artefact", "size", "kept", "until"]
    assert f"{TRACE.name}  19 bytes" in listed[1]
    assert lines[-1] == "large: it must have at most 16 MiB, got 17 MiB"
    assert {one["name"] for one in as_json} == {TRACE.name, TEXT.name, LARGE.name}
    assert saved == (0, f"{target}: 19 bytes\n", "")
    assert target.read_bytes() == CONTENT
    assert stat.S_IMODE(target.stat().st_mode) & 0o400
    assert (deleted[0], json.loads(deleted[1])["name"]) == (0, TEXT.name)
    assert {one["name"] for one in left} == {TRACE.name, LARGE.name}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["-o", "x"], 2, "--out and --delete are for one artefact: give its NAME"),
        (["n"], 2, "give either --out FILE or --delete with the name of an artefact"),
        (["n", "--delete", "-o", "x"], 2, "give either --out FILE or --delete with the name"),
        (["n", "-o", "x"], 1, "has no artefact 'n'; it has large, notes.txt, case-0.warpcall.trace.json"),
        (["large", "-o", "x"], 1, "the artefact large has no file: it must have at most 16 MiB"),
    ],
)  # fmt: skip
def test_a_wrong_command_says_what_is_right(
    lab: Lab, warpcall: Warpcall, words: list[str], code: int, said: str
) -> None:
    found = warpcall("artefacts", lab.job, *words)

    assert found[0] == code
    assert said in found[2]
