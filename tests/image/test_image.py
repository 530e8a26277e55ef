"""The image does what docs/deploy.md promises of it. `make image-test` builds it and runs these."""

from __future__ import annotations

import subprocess
import time

from tests.image.conftest import Box, finished
from tests.image.engine import HARDENED, Engine, data

STOP_S = 10.0  # that `docker stop` waits before it kills


def test_it_does_not_serve_others_without_keys(engine: Engine) -> None:
    with engine.volume() as volume:
        done = engine.tried(*engine.run("--rm", *HARDENED, data(volume), engine.image))

    assert done.returncode == 2
    assert "no API keys exist to tell them apart" in done.stderr
    assert "warpcall-server doctor:\n" in done.stderr
    assert "\nfailed   keys " in done.stderr


def test_it_says_what_it_is(engine: Engine) -> None:
    config = engine.inspect(engine.image)["Config"]

    labels = config["Labels"]
    assert labels["org.opencontainers.image.title"] == "Warpcall"
    assert len(labels["org.opencontainers.image.revision"]) == 40
    assert config["User"] == "10001:10001"
    assert {"PYTHONSAFEPATH=1", "WARPCALL_HOST=0.0.0.0"} <= set(config["Env"])


def test_the_server_has_no_rights(box: Box) -> None:
    status = box.inside("cat", "/proc/1/status")

    assert "\nUid:\t10001\t10001\t10001\t10001\n" in status
    assert "\nCapEff:\t0000000000000000\n" in status
    assert "\nCapBnd:\t0000000000000000\n" in status
    assert "\nNoNewPrivs:\t1\n" in status
    assert box.engine.tried("exec", box.container, "touch", "/usr/lib/warpcall/x").returncode != 0
    interfaces = box.inside("cat", "/proc/net/dev").splitlines()[2:]
    assert [line.split(":")[0].strip() for line in interfaces] == ["lo"]


def test_the_first_process_takes_in_orphans(box: Box) -> None:
    assert box.inside("cat", "/proc/1/comm") == "tini\n"

    box.inside("sh", "-c", "(true &)")  # an orphan that ends

    states = box.inside("sh", "-c", "cat /proc/[0-9]*/stat").splitlines()
    assert not [line for line in states if ") Z " in line]


def test_nothing_is_shipped_that_only_builds(box: Box) -> None:
    for tool in ("gcc", "cc", "make", "ld", "git"):
        done = box.engine.tried("exec", box.container, "sh", "-c", f"command -v {tool}")
        assert not done.stdout

    found = box.inside("sh", "-c", "ls -d /usr/lib/warpcall/lib/python3.*/site-packages/*")
    names = {line.rpartition("/")[2] for line in found.split()}

    assert {"warpcall", "warpcall_bench", "warpcall_kernels", "warpcall_service", "torch"} <= names
    assert not names & {"pip", "hatchling", "pytest", "mypy", "ruff"}  # torch asks for setuptools
    assert not box.inside("sh", "-c", "ls -d ~root/.cache /src /wheels 2>/dev/null || true")


def test_the_health_check_passes(box: Box) -> None:
    if box.engine.name == "podman":
        box.engine("healthcheck", "run", box.container)
    else:
        for _ in range(60):
            state = box.engine.inspect(box.container)["State"]["Health"]["Status"]
            if state == "healthy":
                return
            time.sleep(1)  # Docker checks by its own clock
        raise AssertionError(state)


def test_the_demo_runs_all_ops(box: Box) -> None:
    printed = finished(box.beside("-m", "demo.demo", "--url", "http://127.0.0.1:8000"))

    assert "Every answer is right" in printed


def test_the_pages_and_their_files_are_shipped(box: Box) -> None:
    program = """
from urllib.request import Request, urlopen
with urlopen(Request("http://127.0.0.1:8000/jobs", headers={"accept": "text/html"})) as page:
    print("API key" in page.read().decode(), page.url)
for name in ("app.css", "htmx.min.js", "uplot.min.js"):
    with urlopen(f"http://127.0.0.1:8000/static/{name}") as file:
        print(file.status)
"""

    printed = finished(box.beside("-c", program))

    first, *others = printed.split("\n")
    assert first.startswith("True http://127.0.0.1:8000/login?next=")
    assert others[:3] == ["200"] * 3


def test_a_caller_without_a_key_is_refused(box: Box) -> None:
    done = box.engine.tried("exec", box.container, "warpcall", "kernels")

    assert done.returncode == 1
    assert "API key" in done.stderr


def test_stopped_it_answers_what_is_under_way_and_keeps_its_data(box: Box) -> None:
    command = box.beside("-m", "tests.image.in_flight")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as caller:
        assert caller.stdout
        assert caller.stdout.readline() == "in flight\n"

        began = time.monotonic()
        box.engine("stop", f"--time={STOP_S:.0f}", box.container)
        took_s = time.monotonic() - began

        assert caller.stdout.read() == "answered\n"
        assert caller.wait(60) == 0
    state = box.engine.inspect(box.container)["State"]
    assert state["ExitCode"] == 0, box.engine("logs", box.container)  # 137 is killed
    assert took_s < STOP_S

    with box.engine.server(box.volume) as container:
        again = Box(box.engine, container, box.volume, box.key)
        again.wait_ready()
        printed = finished(again.beside("-m", "demo.demo", "--url", "http://127.0.0.1:8000"))
        usage = again.inside("warpcall-server", "usage", "--user", "alice")

    assert "Every answer is right" in printed  # alice's key still counts
    assert "conv" in usage  # and so does what she did before
