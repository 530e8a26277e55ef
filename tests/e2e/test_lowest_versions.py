"""The client in an environment of the lowest versions that it asks for."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import pytest

from demo.server import Server
from tests.oip import environments

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

pytestmark = pytest.mark.slow


def test_the_environment_has_the_lowest_versions_that_the_client_allows() -> None:
    project = tomllib.loads((ROOT / "client/pyproject.toml").read_text())["project"]
    bounds = [entry.replace("[asyncio]", "") for entry in project["dependencies"]]

    listed = (HERE / "lowest.txt").read_text().splitlines()

    for bound in bounds:
        name, _, version = bound.partition(">=")
        found = [line for line in listed if line.startswith(f"{name}==")]
        assert len(found) == 1, bound
        assert not version or found == [f"{name}=={version}"]


def in_lowest(server: Server, *words: str | Path) -> str:
    """What a program prints there; the client is the one of this checkout."""
    done = subprocess.run(
        [environments.python_of("lowest", HERE), "-P", *words],
        env={"PYTHONPATH": str(ROOT / "client"), "WARPCALL_URL": server.url},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


def test_calls_and_jobs_work_in_the_lowest_versions(server: Server) -> None:
    in_lowest(server, HERE / "lowest_versions.py", server.url)


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("--help", "Run GPU kernels on a Warpcall server."),
        ("bench --help", "--precision"),
        ("ops", "masked-softmax"),
        ("devices", "cpu"),
        ("bench permute --shape 8x8 --dtype fp32 --dims 1,0 --vs torch --check-only", "right"),
        ("jobs", "permute"),  # the job of the command before
    ],
)
def test_commands_work_in_the_lowest_versions(command: str, shown: str, server: Server) -> None:
    assert shown in in_lowest(server, "-m", "warpcall", *command.split())
