"""The account of uploaded code: which one it is, and what is refused where there is none."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.service.runs.sandboxes import ROOT, bubblewraps, needs_bubblewrap, sandbox, settings
from tests.waiting import until
from warpcall_bench.runs import account, sandbox_checks
from warpcall_bench.runs.one_shot import OneShot

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another account")
needs_newuidmap = pytest.mark.skipif(
    shutil.which("newuidmap") is None and not os.environ.get("REQUIRE_BUBBLEWRAP"),
    reason="newuidmap is not installed: apt install uidmap",
)


@contextmanager
def running(folder: Path) -> Iterator[psutil.Process]:
    """A process of ours in a sandbox, which waits for a request."""

    async def start() -> OneShot:
        return OneShot(settings(folder), "tests.service.runs.attempt", trusted=False)

    before = bubblewraps()
    with asyncio.Runner() as runner:
        shot = runner.run(start())
        try:
            until(lambda: in_sandbox(before), "no process starts in the sandbox", timeout_s=30)
            yield in_sandbox(before)[0]
        finally:
            runner.run(shot.end())


def in_sandbox(before: list[psutil.Process]) -> list[psutil.Process]:
    new = [p for p in bubblewraps() if p not in before]
    below = {child for one in new for child in one.children() if child.name() != "bwrap"}
    return [p for p in below if p.uids().real != os.geteuid()]


@needs_bubblewrap
def test_each_sandbox_has_an_account_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", ROOT)
    with running(tmp_path / "a") as one, running(tmp_path / "b") as other:
        users = {*one.uids(), *other.uids()}
        groups = {*one.gids(), *other.gids()}
        ends = [Path(f"/proc/{p.pid}/status").read_text() for p in (one, other)]
        scores = [Path(f"/proc/{p.pid}/oom_score_adj").read_text() for p in (one, other)]

    assert len(users) == len(groups) == 2
    assert not {os.geteuid(), os.getegid()} & (users | groups)
    assert all("\nGroups:\t \n" in status for status in ends)  # none beside its own
    assert scores == ["1000\n"] * 2


def test_what_the_check_of_the_sandbox_tries_works_outside_of_it(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    file = tmp_path / "file"
    file.touch()

    assert sandbox_checks.is_owner(writing)
    assert sandbox_checks.leases(str(file))
    assert sandbox_checks.changes(str(file))
    assert sandbox_checks.sends_descriptors()
    for fd in (reading, writing):
        os.close(fd)


@pytest.fixture
def subordinate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with the subordinate ids, of accounts as well as of groups."""
    file = tmp_path / "subid"
    monkeypatch.setattr(account, "SUBUID", file)
    monkeypatch.setattr(account, "SUBGID", file)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    return file


def test_ids_are_drawn_from_those_of_the_account(
    subordinate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    subordinate.write_text("# of others\nann:100000:65536\nnonsense\n12345:300000:20\n")

    drawn = {account.choose() for _ in range(200)}

    assert {one.user for one in drawn} == {*range(300000, 300020)}
    assert {one.group for one in drawn} == {*range(300000, 300020)}


@pytest.mark.parametrize("text", ["", "ann:100000:65536\n", "12345:100000:0\n", "12345:x:1\n"])
def test_an_account_without_subordinate_ids_learns_what_to_do(
    text: str, subordinate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    subordinate.write_text(text)

    with pytest.raises(account.NoAccount, match=r"package uidmap.*--add-subuids"):
        account.choose()


def test_root_needs_no_subordinate_ids(subordinate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    ids = account.choose()

    first, count = account.OF_ROOT[0]
    assert first <= ids.user < first + count


@needs_bubblewrap
def test_the_sandbox_is_not_used_without_an_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = sandbox(tmp_path / "data")
    bubblewrap = shutil.which("bwrap")
    assert bubblewrap is not None
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "bwrap").symlink_to(bubblewrap)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    if os.geteuid() == 0:
        monkeypatch.setenv("PYTHONPATH", str(without_ids(tmp_path / "modules")))

    trouble = asyncio.run(found.probe())

    assert "uploaded code needs an account of its own" in trouble
    assert "the package uidmap" in trouble


def without_ids(folder: Path) -> Path:
    """A folder with a module that Python imports at its start, after which root has no ids either."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        "from warpcall_bench.runs import account\naccount.OF_ROOT = ()\n"
    )
    return folder


# A mount namespace in which the account `daemon` has subordinate ids, and can read $paths: those that
# it cannot reach are mounted again, below a new first folder.
AS_DAEMON = """
set -e
daemon="setpriv --reuid=daemon --regid=daemon --clear-groups"
echo "daemon:100000:65536" > "$folder/subid"
mount --bind "$folder/subid" /etc/subuid
mount --bind "$folder/subid" /etc/subgid
chmod 711 "$folder"
hidden=""
for path in $paths; do
    $daemon test -x "$path" && continue
    mkdir -p "$folder/mounts$path"
    mount --rbind "$path" "$folder/mounts$path"
    hidden="$hidden $path"
done
for path in $hidden; do
    first="/$(echo "$path" | cut -d/ -f2)"
    [ -e "$first/.ours" ] || { mount -t tmpfs -o mode=755 none "$first"; touch "$first/.ours"; }
    mkdir -p "$path"
    mount --rbind "$folder/mounts$path" "$path"
done
cd /
exec $daemon env HOME="$folder/home" "$@"
"""
PROBE = """
import asyncio, sys
from pathlib import Path
from tests.service.runs.sandboxes import sandbox, settings, tried

folder = Path(sys.argv[1])
assert asyncio.run(sandbox(folder / "data").probe()) == ""
code = "import os\\nreturn [os.getuid(), os.getgid(), open('/proc/self/uid_map').read().split()]"
print(tried({"ids": code}, settings(folder / "data"))["ids"][1])
"""


@needs_root
@needs_bubblewrap
@needs_newuidmap
def test_the_server_of_another_account_than_root_gives_subordinate_ids() -> None:
    paths = f"{ROOT} {sys.prefix} {sys.base_prefix}"
    variables = {"paths": paths, "PYTHONPATH": ROOT, "PYTHONDONTWRITEBYTECODE": "yes"}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder, "home")
        home.mkdir()
        home.chmod(0o777)
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", AS_DAEMON, "sh", sys.executable, "-P", "-c", PROBE, home],
            env={**os.environ, "folder": folder, **variables},
            capture_output=True,
            text=True,
            check=False,
        )

    assert done.returncode == 0, done.stderr
    inside, outside = done.stdout.strip()[1:-1].split(", [")
    assert inside == "1000, 1000"
    numbers = [int(number.strip("'")) for number in outside.rstrip("]").split(", ")]
    assert numbers[:5] == [0, 1, 1, 1000, numbers[4]]
    assert 100000 <= numbers[4] < 165536
