"""The command as a process: closed, full and broken streams, pipes as files, and Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.client.command import WARPCALL
from tests.client.scripted import ScriptedServer, Visit
from tests.client.scripted_ops import OpsServer

pytestmark = pytest.mark.slow

PERMUTE = "run permute x.npy --dims 1,0"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.zeros((2, 3)))


@pytest.fixture
def server() -> Iterator[OpsServer]:
    with OpsServer() as running:
        yield running


def shell(
    server: ScriptedServer, command: str, *, unbuffered: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a command in a shell, with or without Python's output buffer.

    A write error appears at another point of the program if output is buffered.
    """
    program = f'warpcall() {{ {" ".join(WARPCALL)} "$@"; }}; {command}'
    ours = {"WARPCALL_URL": server.url, "XDG_CONFIG_HOME": str(Path.cwd())}
    env = {**os.environ, **ours, "PYTHONIOENCODING": "utf-8:strict", "PYTHONUNBUFFERED": unbuffered}
    return subprocess.run(
        ["bash", "-c", program], env=env, capture_output=True, text=True, timeout=120, check=False
    )


# Each command with each stream, and each of both with and without a buffer.
@pytest.mark.parametrize(
    ("arguments", "stream", "unbuffered"),
    [
        ("kernels", ">&-", ""),
        ("kernels", "> /dev/full", "1"),
        ("health --json", ">&-", "1"),
        ("health --json", "> /dev/full", ""),
        (PERMUTE, ">&-", ""),
        (PERMUTE, "> /dev/full", "1"),
        ("--help", ">&-", "1"),
        ("--help", "> /dev/full", ""),
    ],
)
def test_an_output_that_cannot_be_written_is_one_line(
    arguments: str, stream: str, unbuffered: str, server: OpsServer
) -> None:
    why = {">&-": "Bad file descriptor", "> /dev/full": "No space left on device"}[stream]

    done = shell(server, f"warpcall {arguments} {stream}", unbuffered=unbuffered)

    assert (done.returncode, done.stderr) == (1, f"warpcall: standard output: {why}\n")


def test_an_output_larger_than_a_buffer_that_cannot_be_written_is_one_line(
    server: OpsServer,
) -> None:
    server.declared["permute"]["summary"] = "long " * 100_000

    done = shell(server, "warpcall kernels --json > /dev/full")

    assert (done.returncode, done.stderr) == (
        1,
        "warpcall: standard output: No space left on device\n",
    )


def test_a_command_that_prints_nothing_needs_no_output(server: OpsServer) -> None:
    done = shell(server, f"warpcall {PERMUTE} -o y.npy >&-")

    assert (done.returncode, done.stderr) == (0, "")
    assert np.load("y.npy").shape == (3, 2)


def test_a_connection_never_takes_the_place_of_a_closed_output(server: OpsServer) -> None:
    done = shell(server, f"warpcall {PERMUTE} -o y.npy <&- >&- 2>&-")

    assert done.returncode == 0
    assert np.load("y.npy").shape == (3, 2)


@pytest.mark.parametrize("arguments", ["kernels", "health", PERMUTE])
def test_a_closed_input_changes_nothing(arguments: str, server: OpsServer) -> None:
    done = shell(server, f"warpcall {arguments} <&-")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "stream"),
    [
        ("kernels sort", 1, "2>&-"),
        ("kernels sort", 1, "2> /dev/full"),
        ("run permute", 2, "2> /dev/full"),
        ("kernels --nonsense", 2, "2>&-"),
    ],
)
def test_errors_are_exit_codes_where_no_message_can_be_written(
    arguments: str, code: int, stream: str, server: OpsServer
) -> None:
    done = shell(server, f"warpcall {arguments} {stream}")

    assert done.returncode in (code, 1)
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("stream", "code", "why"),
    [
        ("<&-", 1, "standard input cannot be read: Bad file descriptor"),
        ("< /dev/null", 2, "login needs a key, got an empty line"),
        ("< key.bin", 2, "login needs a key in UTF-8 on standard input"),
        ("< /dev/zero", 1, "api_key must be printable ASCII without spaces around it"),
    ],
)
def test_a_key_that_cannot_be_read_is_one_line(
    stream: str, code: int, why: str, server: OpsServer
) -> None:
    Path("key.bin").write_bytes(b"wc_\xff\xfe\n")

    done = shell(server, f"warpcall login {stream}")

    assert (done.returncode, done.stderr) == (code, f"warpcall: {why}\n")


@pytest.mark.parametrize(
    ("arguments", "suffix"),
    [("run permute {} --dims 1,0", ".npy"), ("tensors put {}", ".safetensors")],
)
def test_a_pipe_in_place_of_a_file_is_refused(
    arguments: str, suffix: str, server: OpsServer
) -> None:
    os.mkfifo(f"pipe{suffix}")

    done = shell(server, f"warpcall {arguments.format(f'pipe{suffix}')}")

    assert done.returncode == 1
    assert done.stderr == (
        f"warpcall: pipe{suffix} must be a regular file, got a pipe, socket or device\n"
    )


def test_a_missing_file_of_certificates_is_one_line(server: OpsServer) -> None:
    done = shell(server, "SSL_CERT_FILE=missing.pem warpcall health --url https://127.0.0.1:1")

    assert done.returncode == 1
    assert done.stderr == (
        "warpcall: SSL_CERT_FILE must name a file of certificates in PEM, got 'missing.pem': "
        "No such file or directory\n"
    )


def test_an_output_without_the_characters_needed_escapes_them(server: OpsServer) -> None:
    server.declared["permute"]["summary"] = "µs → ms"

    done = shell(server, "PYTHONIOENCODING=ascii warpcall kernels permute")

    assert (done.returncode, done.stderr) == (0, "")
    assert r"permute: \xb5s \u2192 ms" in done.stdout


# Stops at the first import of a module, says so, and waits there for the signal.
STOPPING = """
import sys, time
class Stop:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            print("there", flush=True)
            while True:
                time.sleep(0.05)
sys.meta_path.insert(0, Stop())
sys.argv = ["warpcall", "health"]
from warpcall._cli.main import main
main()
"""


@pytest.mark.parametrize(
    "module", ["numpy", "typer", "rich.table", "warpcall._client", "httptools"]
)
def test_ctrl_c_during_imports_ends_without_a_word(module: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPING.format(module=module)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "there\n"

    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)

    assert (process.returncode, out, err) == (130, "", "")


def test_an_ignored_ctrl_c_stays_ignored(server: OpsServer) -> None:
    done = shell(server, "trap '' INT; (sleep 0; kill -INT $BASHPID; warpcall health)")

    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_while_a_call_waits_is_130_without_a_traceback() -> None:
    command = ["bash", "-c", f"exec {' '.join(WARPCALL)} health"]

    def interrupt(visit: Visit) -> None:
        process.send_signal(signal.SIGINT)
        process.wait(60)

    with ScriptedServer(interrupt) as server:
        env = {**os.environ, "WARPCALL_URL": server.url}
        process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
        _, err = process.communicate(timeout=60)

    assert (process.returncode, err) == (130, "")
