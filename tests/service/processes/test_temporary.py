"""Temporary folders: those of killed processes are removed, those of others are left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from warpcall_service.processes import temporary

HOLDER = """
from warpcall_service.processes import temporary
with temporary.folder() as folder:
    (folder / "source.py").touch()
    print(folder, flush=True)
    input()
"""


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_the_folder_of_a_killed_process_is_removed_and_that_of_a_living_one_stays(
    base: Path,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        env={**os.environ, "TMPDIR": str(base)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout
        held = Path(holder.stdout.readline().strip())
        temporary.sweep()
        with temporary.folder() as own:
            beside = {*base.iterdir()}
        stayed = (held / "source.py").exists()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    left = [*base.iterdir()]
    temporary.sweep()

    assert (beside, stayed, left) == ({held, own}, True, [held])
    assert [*base.iterdir()] == []


def test_links_files_and_the_folders_of_others_are_left_alone(base: Path) -> None:
    (base / "mine").mkdir()
    (base / f"{temporary.PREFIX}link").symlink_to(base / "mine")
    (base / f"{temporary.PREFIX}file").touch()
    (base / "warpcall-other").mkdir()
    before = {*base.iterdir()}

    temporary.sweep()

    assert {*base.iterdir()} == before
