"""Scratch runs on a real server with the real sandbox: what a command can do, and how its run ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import tempfile
import threading
from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest

from tests.client.command import WARPCALL
from tests.servers import Server, running_server
from tests.service.databases import Database
from tests.service.runs.sandboxes import needs_bubblewrap
from tests.waiting import until
from warpcall import AsyncClient, Client, Forbidden, ScratchResult, WarpcallError
from warpcall._jobs.scratch import Folder

pytestmark = [needs_bubblewrap, pytest.mark.slow]

SETTINGS = {
    "WARPCALL_DEVICES": "cpu",
    "WARPCALL_UPLOADS": "sandboxed",
    "WARPCALL_SCRATCH_MAX_S": "600",
    "WARPCALL_SANDBOX_TMP_BYTES": "64MiB",
    "WARPCALL_JOB_MEMORY_BYTES": "2GiB",
}
LONG_S = 600.0
SLEEPS = "import time; print('here', flush=True); time.sleep(600)"


def knows_sandbox(url: str) -> bool:
    answer: dict[str, Any] = httpx.get(f"{url}/readyz").json()
    return bool(answer["uploads"] == "sandboxed")


@contextmanager
def started(settings: Mapping[str, str]) -> Iterator[Server]:
    with running_server(settings) as running:
        until(lambda: knows_sandbox(running.url))
        yield running


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server whose settings say where NVIDIA's programs are: scripts that print their arguments."""
    programs = {}
    with tempfile.TemporaryDirectory() as folder:  # the sandbox may not read that of pytest
        Path(folder).chmod(0o755)
        for name, setting in (("ncu", "NCU"), ("compute-sanitizer", "COMPUTE_SANITIZER")):
            script = Path(folder) / f"{name}-of-the-settings"
            script.write_text(f"#!/bin/sh\necho {name}: $@\n")
            script.chmod(0o755)
            programs[f"WARPCALL_{setting}"] = str(script)
        with started({**SETTINGS, **programs}) as running:
            yield running


@pytest.fixture
def gpu(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


def python(gpu: Client, code: str, *, send: Folder | None = None, **options: Any) -> ScratchResult:
    """Run code in Python, in a scratch run."""
    return gpu.exec(["python", "-c", code], send=send, **options)


def command(server: Server, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "WARPCALL_URL": server.url}
    return subprocess.run(
        [*WARPCALL, "exec", *arguments], cwd=cwd, env=environment, capture_output=True, check=False
    )


def test_a_command_gets_a_folder_and_sends_files_back(gpu: Client, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "two.py").write_text("TWO = 2\n")
    (tmp_path / "check.py").write_text(
        "import os, sys\n"
        "from lib.two import TWO\n"
        "import warpcall_kernels, torch\n"
        "print('out', TWO, sorted(os.listdir()))\n"
        "print(torch.cuda.is_available(), os.environ['TRITON_INTERPRET'])\n"
        "print('err', file=sys.stderr)\n"
        "os.makedirs('found/deep')\n"
        "open('found/deep/a.bin', 'wb').write(bytes(range(256)))\n"
        "open('found/.hidden', 'w').write('x')\n"
        "os.symlink('/etc/passwd', 'found/link')\n"
        "os.mkfifo('found/pipe')\n"
        "open('one.txt', 'w').write('1')\n"
        "sys.exit(7)\n"
    )
    pieces: list[bytes] = []

    found = gpu.exec(
        ["python", "check.py"],
        send=tmp_path,
        fetch=["found", "one.txt", "absent"],
        on_output=lambda content, left_out: pieces.append(content),
    )

    assert (found.exit_status, found.job.state, found.job.kind) == (7, "failed", "scratch")
    assert found.output == b"".join(pieces)
    assert found.output == b"out 2 ['check.py', 'lib']\nFalse 1\nerr\n", "it sees no device"
    assert found.files == {"found/deep/a.bin": bytes(range(256)), "one.txt": b"1"}
    assert found.errors == {
        "absent": "No such file or directory",
        "found/link": "it is a link, or its path leads through one",
        "found/pipe": "it is no regular file",
    }
    assert found.job.detail == "the command ended with exit status 7"
    assert not found.ok


@pytest.mark.parametrize(
    ("arguments", "status", "output"),
    [
        (["true"], 0, b""),
        (["no-such-program", "x"], 127, b"no-such-program: No such file or directory\n"),
        (["/etc/passwd"], 126, b"/etc/passwd: Permission denied\n"),
        (["sh", "-c", "kill -SEGV $$"], 128 + signal.SIGSEGV, b""),
        (["printf", r"\377\000\033[31m"], 0, b"\xff\x00\x1b[31m"),
    ],
    ids=["empty", "no program", "not executable", "signal", "binary"],
)
def test_the_exit_status_is_that_of_a_shell(
    arguments: list[str], status: int, output: bytes, gpu: Client
) -> None:
    found = gpu.exec(arguments)

    assert (found.exit_status, found.output, found.ok) == (status, output, status == 0)


@pytest.mark.parametrize("name", ["ncu", "compute-sanitizer"])
def test_the_programs_for_kernels_are_those_of_the_settings(
    name: str, gpu: Client, tmp_path: Path
) -> None:
    (tmp_path / name).write_text("own")  # files that are sent are not executable

    by_name = gpu.exec([name, "--version"], send=tmp_path)
    by_path = gpu.exec([f"/usr/local/cuda/bin/{name}", "x"])
    sent = gpu.exec([f"./{name}", "x"], send=tmp_path)

    assert by_name.output == f"{name}: --version\n".encode()
    assert by_path.output == f"{name}: x\n".encode()
    assert sent.output == f"./{name}: Permission denied\n".encode()


def test_a_command_is_ended_at_its_limit_although_it_ignores_sigterm(gpu: Client) -> None:
    code = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('here'); open('kept', 'w').write('kept')\n"
        "os.fork() or os.setsid()\n"
        "time.sleep(600)"
    )

    found = python(gpu, code, limit_s=2, fetch=["kept"])

    assert (found.exit_status, found.job.state, found.output) == (None, "timed_out", b"here\n")
    assert found.job.detail == "the command was not done within 2 s"
    assert found.files == {"kept": b"kept"}


def test_what_a_command_leaves_behind_is_ended(gpu: Client) -> None:
    code = (
        "import os, time\n"
        "if not os.fork():\n"
        "    os.setsid()\n"
        "    while True:\n"
        "        print('more', flush=True); time.sleep(0.1)\n"
        "time.sleep(0.5)"
    )

    found = python(gpu, code)

    assert (found.exit_status, found.job.state) == (0, "succeeded")
    assert found.output.startswith(b"more\n")
    assert not [
        one for one in psutil.process_iter(["cmdline"]) if code in (one.info["cmdline"] or ())
    ]


def test_output_without_end_is_kept_at_its_beginning_and_its_end(gpu: Client) -> None:
    code = (
        "import sys, time\n"
        "end = time.monotonic() + 12\n"
        "n = 0\n"
        "while time.monotonic() < end:\n"
        "    sys.stdout.write(f'{n:09d}\\n' * 10_000); n += 1; time.sleep(0.02)\n"
        "print('the end')"
    )

    found = python(gpu, code)

    assert found.exit_status == 0
    assert found.output.startswith(b"000000000\n")
    assert found.output.endswith(b"the end\n")
    assert found.left_out > 0
    again = gpu.jobs.get(found.job.id)  # what is stored, and not what was sent while it ran
    kept = [event for event in again.events() if event.kind == "output"]
    nbytes = sum(len(event.data["data"]) * 3 // 4 for event in kept)
    assert (512 << 10) < nbytes <= (1 << 20) + 4 * len(kept)
    assert kept[0].data["at"] == 0


def test_a_disk_that_is_full_is_an_error_of_the_command(gpu: Client) -> None:
    code = (
        "try:\n"
        "    for n in range(100):\n"
        "        with open(f'big-{n}', 'wb') as file: file.write(bytes(20 << 20))\n"
        "except OSError as error: print(n, error.strerror)"
    )

    found = python(gpu, code, fetch=["big-0"])

    assert (found.exit_status, found.output) == (0, b"3 No space left on device\n")
    assert list(found.errors) == ["big-0"]
    assert "more than 16777216 bytes" in found.errors["big-0"]


def test_a_command_that_takes_too_much_memory_is_ended(gpu: Client) -> None:
    found = python(gpu, "import time; x = bytearray(b'x') * (3 << 30); time.sleep(60)")

    assert found.job.state == "failed"
    assert found.job.exit_class in ("oom", "error")  # its own MemoryError, or the limit on all
    assert not found.ok


def test_a_command_that_ends_the_process_above_it_has_no_exit_status(gpu: Client) -> None:
    found = python(gpu, "import os, signal, time; os.kill(os.getppid(), 9); time.sleep(60)")

    assert (found.exit_status, found.job.state, found.job.exit_class) == (None, "failed", "killed")
    assert python(gpu, "print('well')").output == b"well\n"


def test_a_command_sees_no_network_and_no_other_files(gpu: Client, server: Server) -> None:
    code = (
        "import os, signal, socket\n"
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
        f"print(os.path.exists({str(server.uds.parent)!r}))\n"
        "try: socket.create_connection(('127.0.0.1', 80))\n"
        "except OSError as error: print('refused')\n"
        "try: open(f'/proc/{os.getppid()}/mem', 'r+b')\n"
        "except OSError as error: print('closed')"
    )

    found = python(gpu, code)

    assert found.output == b"False\nrefused\nclosed\n"


@contextmanager
def running(server: Server, **options: Any) -> Iterator[tuple[str, list[ScratchResult]]]:
    """A run that sleeps until the block ends, where it must have ended: its id and its result."""
    results: list[ScratchResult] = []
    begun = threading.Event()

    def run() -> None:
        with Client(server.url) as gpu:
            results.append(
                python(gpu, SLEEPS, limit_s=LONG_S, on_output=lambda *_: begun.set(), **options)
            )

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert begun.wait(60)
        with Client(server.url) as gpu:
            [entry] = gpu.jobs.queue().entries
        yield entry.id, results
    finally:
        thread.join(60)


def test_calls_wait_while_a_command_has_the_device_and_cancelling_ends_it(
    gpu: Client, server: Server
) -> None:
    x = np.zeros((2, 3), np.float32)
    with running(server, name="busy") as (id_, results):
        [entry] = gpu.jobs.queue().entries
        with Client(server.url, timeout_s=2, retries=0) as hasty, pytest.raises(WarpcallError):
            hasty.permute(x, dims=(1, 0))
        gpu.jobs.cancel(id_)

    [found] = results
    assert (entry.kind, entry.op, entry.name) == ("scratch", "scratch", "busy")
    assert (found.exit_status, found.job.state, found.output) == (None, "cancelled", b"here\n")
    assert gpu.permute(x, dims=(1, 0)).shape == (3, 2)


def test_a_run_goes_on_when_its_callers_connection_breaks(gpu: Client, server: Server) -> None:
    code = "import time; print('here', flush=True); time.sleep(3); print('end')"
    with httpx.Client(base_url=server.url) as http:
        body = {"command": ["python", "-c", code]}
        id_ = http.post("/v1/scratch", json=body).json()["id"]
        with http.stream("GET", f"/v1/jobs/{id_}/events") as answer:
            for line in answer.iter_lines():
                if '"output"' in line:
                    break
    until(lambda: gpu.jobs.get(id_).ended)

    job = gpu.jobs.get(id_)
    assert job.state == "succeeded"
    texts = [b64decode(one.data["data"]) for one in job.events() if one.kind == "output"]
    assert b"".join(texts) == b"here\nend\n"


def test_an_awaited_run_is_cancelled_with_its_task(server: Server) -> None:
    async def play() -> tuple[str, ScratchResult]:
        async with AsyncClient(server.url) as gpu:
            begun = asyncio.Event()
            task = asyncio.create_task(
                gpu.exec(["python", "-c", SLEEPS], limit_s=LONG_S, on_output=lambda *_: begun.set())
            )
            await asyncio.wait_for(begun.wait(), 60)
            [running] = [job for job in await gpu.jobs.list(kind="scratch") if not job.ended]
            task.cancel()
            await asyncio.wait((task,))
            found = await gpu.exec(["echo", "after"])
            return (await gpu.jobs.get(running.id)).state, found

    state, found = asyncio.run(play())

    assert (state, found.output) == ("cancelled", b"after\n")


def test_the_command_passes_output_files_and_exit_status_on(server: Server, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "run.sh").write_text("printf 'a\\377'; mkdir d; echo 1 > d/x; exit 9")
    options = ("--send", "work", "--fetch", "d", "--to", "back", "--")

    found = command(server, *options, "sh", "run.sh", cwd=tmp_path)

    assert (found.returncode, found.stdout, found.stderr) == (9, b"a\xff", b"")
    assert (tmp_path / "back" / "d" / "x").read_text() == "1\n"


def test_the_command_has_exit_codes_for_runs_without_a_status(
    server: Server, tmp_path: Path
) -> None:
    late = command(server, "--limit-s", "1", "--", "sleep", "60", cwd=tmp_path)
    refused = command(server, "--limit-s", "6000", "--", "true", cwd=tmp_path)

    assert late.returncode == 124
    assert b"ended as timed out: the command was not done within 1 s" in late.stderr
    assert refused.returncode == 125
    assert b"a scratch run may take at most 600 s here, got 6000" in refused.stderr


def test_ctrl_c_cancels_the_run(gpu: Client, server: Server, tmp_path: Path) -> None:
    with subprocess.Popen(
        [*WARPCALL, "exec", "--limit-s", "600", "--name", "stopped", "--", "python", "-c", SLEEPS],
        env={**os.environ, "WARPCALL_URL": server.url},
        stdout=subprocess.PIPE,
        cwd=tmp_path,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130

    [job] = [job for job in gpu.jobs.list(kind="scratch") if job.name == "stopped"]
    until(lambda: job.refresh().ended)
    assert job.state == "cancelled"


def test_watch_shows_a_run_again(gpu: Client, server: Server, tmp_path: Path) -> None:
    found = gpu.exec(["sh", "-c", "echo hello; exit 4"])

    again = subprocess.run(
        [*WARPCALL, "watch", found.job.id],
        env={**os.environ, "WARPCALL_URL": server.url},
        capture_output=True,
        check=False,
    )

    assert (again.returncode, again.stdout) == (4, b"hello\n")


def begin_and_kill(settings: Mapping[str, str], key: str, ids: list[str]) -> None:
    """Begin a run, append its id, and kill the server while it sleeps."""
    headers = {"authorization": f"Bearer {key}"}
    with (
        started(settings) as server,
        httpx.Client(base_url=server.url, headers=headers) as http,
    ):
        body = {"command": ["python", "-c", SLEEPS], "limit_s": LONG_S}
        ids.append(http.post("/v1/scratch", json=body).json()["id"])
        with http.stream("GET", f"/v1/jobs/{ids[0]}/events") as events:
            assert any("output" in line for line in events.iter_lines())
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()


def test_a_restarted_server_does_not_start_a_run_again_and_keeps_others_out(
    sqlite: Database,
) -> None:
    settings = {**SETTINGS, **sqlite.settings}
    keys = {role: sqlite.key(role, role) for role in ("upload", "scratch", "admin")}
    ids: list[str] = []
    with pytest.raises(RuntimeError, match="ended with status -9"):
        begin_and_kill(settings, keys["scratch"], ids)
    [id_] = ids
    with (
        started(settings) as server,
        Client(server.url, api_key=keys["scratch"]) as gpu,
        Client(server.url, api_key=keys["upload"]) as other,
        Client(server.url, api_key=keys["admin"]) as admin,
    ):
        until(lambda: gpu.jobs.get(id_).ended)
        job = gpu.jobs.get(id_)

        assert (job.state, job.attempts) == ("interrupted", 1)
        assert job.detail == "the server that ran it was lost; a scratch run is not started again"
        assert gpu.exec(["echo", "well"]).output == b"well\n"
        with pytest.raises(Forbidden, match="the role scratch"):
            other.exec(["true"])
        answer = httpx.get(
            f"{server.url}/v1/jobs/{id_}/events",
            headers={"authorization": f"Bearer {keys['upload']}"},
        )
        assert answer.status_code == 404
        assert "output" in [event.kind for event in admin.jobs.events(id_)]
    assert not [
        one for one in psutil.process_iter(["cmdline"]) if SLEEPS in (one.info["cmdline"] or ())
    ]
