"""Who a server is to others on its database, and when another one's jobs count as lost."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from warpcall_bench.jobs.orphans import OBSERVATIONS, Heartbeat, OrphanDetector
from warpcall_service.nodes import server_identity
from warpcall_service.nodes.server_identity import FILE, IdentityUnavailable, ServerIdentity


def taken(folder: Path) -> str:
    """The id of a server that starts in this folder and ends."""
    server = ServerIdentity(folder)
    assert server.acquire() == server.acquire()
    found = server.id
    server.release()
    server.release()
    return found


def test_a_server_that_starts_again_is_the_same(tmp_path: Path) -> None:
    first = taken(tmp_path / "made")

    assert len(first) == 16
    assert taken(tmp_path / "made") == first
    assert taken(tmp_path / "other") != first


def test_two_servers_that_live_are_not_the_same(tmp_path: Path) -> None:
    first = ServerIdentity(tmp_path)
    first.acquire()

    with pytest.raises(IdentityUnavailable, match=f"another server has {tmp_path}/{FILE}"):
        ServerIdentity(tmp_path).acquire()

    first.release()


@pytest.mark.parametrize("how", ["folder", "file", "moved over"])
def test_a_copy_is_another_server(how: str, tmp_path: Path) -> None:
    first = taken(tmp_path / "a")
    copy = tmp_path / "b"

    if how == "folder":
        shutil.copytree(tmp_path / "a", copy)
    elif how == "file":
        copy.mkdir()
        (copy / FILE).write_bytes((tmp_path / "a" / FILE).read_bytes())
    else:
        taken(copy)
        shutil.copy(tmp_path / "a" / FILE, tmp_path / "new")
        (tmp_path / "new").replace(copy / FILE)

    assert taken(copy) != first
    assert taken(tmp_path / "a") == first


def test_after_a_reboot_it_is_another_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder may have come to another machine meanwhile, while the first one lives."""
    boot = tmp_path / "boot_id"
    monkeypatch.setattr(server_identity, "BOOT_ID", boot)
    boot.write_text("one\n")
    first = taken(tmp_path)
    boot.write_text("two\n")

    second = taken(tmp_path)

    assert first != second == taken(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"id": "x"}', '{"id": "x", "file": []}'])
def test_a_file_that_says_nothing_is_written_anew(text: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(text)

    first = taken(tmp_path)

    assert first not in ("", "x")
    assert taken(tmp_path) == first


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(
        IdentityUnavailable, match=r"no jobs run: .* cannot be written: Not a directory"
    ):
        ServerIdentity(tmp_path / "file" / "folder").acquire()


def test_a_kept_lock_does_not_reach_child_processes(tmp_path: Path) -> None:
    server = ServerIdentity(tmp_path)
    server.acquire()

    assert not os.get_inheritable(server._fd)
    server.release()


def test_a_job_without_a_sign_in_all_looks_is_an_orphan() -> None:
    orphans = OrphanDetector()
    silent, alive = Heartbeat(1, 500), [Heartbeat(1, ran_ms) for ran_ms in range(20)]

    found = [orphans.observe({7: silent, 8: alive[i]}) for i in range(OBSERVATIONS + 2)]

    assert found == [*[{}] * OBSERVATIONS, {7: silent}, {7: silent}]


def test_any_sign_begins_the_count_anew() -> None:
    orphans = OrphanDetector()
    for _ in range(OBSERVATIONS):
        assert orphans.observe({7: Heartbeat(1, 500)}) == {}

    assert orphans.observe({7: Heartbeat(1, 501)}) == {}
    assert orphans.observe({7: Heartbeat(2, 501)}) == {}, "claimed by another one"
    assert orphans.observe({}) == {}
    for _ in range(OBSERVATIONS):
        assert orphans.observe({7: Heartbeat(2, 501)}) == {}
