"""The client without a clone of this repository: from the server, as a wheel, and from git."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from demo.server import Server
from warpcall import __version__
from warpcall_service.api.install import NAME, wheel

ROOT = Path(__file__).parents[2]
CALL = """
import numpy, warpcall
with warpcall.Client() as gpu:
    print(warpcall.__file__, gpu.permute(numpy.zeros((2, 3)), dims=(1, 0)).shape)
"""


def installed(folder: Path, what: str) -> None:
    """Install a client, without what it depends on, into a folder of its own."""
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-qq", "--no-deps", "--target", folder, what],
        check=True,
        capture_output=True,
        text=True,
        timeout=240,
    )


def run_installed(folder: Path, server: Server, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-P", *arguments],
        env={**os.environ, "PYTHONPATH": str(folder), "WARPCALL_URL": server.url},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout


@pytest.mark.slow
def test_the_server_says_how_to_install_its_client_and_pip_can(
    server: Server, tmp_path: Path
) -> None:
    status, command = server.get("/install")
    pip, install, url = command.split()

    installed(tmp_path, url)

    assert (status, pip, install) == (200, "pip", "install")
    assert url == f"{server.url}/install/warpcall-{__version__}-py3-none-any.whl"
    assert run_installed(tmp_path, server, "-m", "warpcall", "--version") == (
        f"warpcall {__version__}\n"
    )
    assert (
        run_installed(tmp_path, server, "-c", CALL) == f"{tmp_path}/warpcall/__init__.py (3, 2)\n"
    )
    assert os.access(tmp_path / "bin/warpcall", os.X_OK)


def test_a_client_of_another_version_is_not_there(server: Server) -> None:
    status, text = server.get("/install/warpcall-0.0.1-py3-none-any.whl")

    assert status == 404
    assert NAME in text


def test_the_wheel_of_the_server_is_the_one_that_make_wheels_builds(tmp_path: Path) -> None:
    subprocess.run(
        ["make", "-s", "-o", "setup", "wheels", f"WHEELS={tmp_path}", f"BIN={Path(sys.executable).parent}"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=240,
    )  # fmt: skip

    (built,) = tmp_path.glob("warpcall-*.whl")
    with zipfile.ZipFile(built) as theirs, zipfile.ZipFile(io.BytesIO(wheel())) as ours:
        assert built.name == NAME
        assert sorted(theirs.namelist()) == sorted(ours.namelist())
        for name in theirs.namelist():
            if not name.endswith(("/WHEEL", "/RECORD", "/METADATA")):
                assert ours.read(name) == theirs.read(name)


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a clone")
def test_pip_installs_the_client_from_a_clone_url(server: Server, tmp_path: Path) -> None:
    installed(tmp_path, f"warpcall @ git+file://{ROOT}#subdirectory=client")

    assert (
        run_installed(tmp_path, server, "-c", CALL) == f"{tmp_path}/warpcall/__init__.py (3, 2)\n"
    )
