"""What is installed from the wheels, as in the image: pages need files that are no modules."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest

from demo.server import Server, running_server
from tests.template import BRIEF_JOBS
from warpcall import Client

ROOT = Path(__file__).parents[2]
SERVICE = ROOT / "service"

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Installed:
    """A server that runs what a folder has, and no clone."""

    folder: Path
    server: Server


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    wheels, folder = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("installed")
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps"),
            *("--no-build-isolation", "--wheel-dir", wheels, ROOT / "client", ROOT),
        ],
        check=True,
        timeout=120,
    )
    found = list(wheels.glob("*.whl"))
    assert len(found) == 2
    for wheel in found:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    settings = {
        "PYTHONPATH": os.pathsep.join([BRIEF_JOBS, str(folder)]),
        "WARPCALL_ARENA_BYTES": "16MiB",
        "WARPCALL_UPLOADS": "trusted",  # the account of the sandbox may not read pytest's folders
        "WARPCALL_WAITING_PROCESS_S": "0",
    }
    with running_server(settings) as server:
        yield Installed(folder, server)


def test_the_server_is_the_one_of_the_wheels(installed: Installed) -> None:
    shown = subprocess.run(
        [sys.executable, "-P", "-c", "import warpcall_service as s, warpcall as c; print(s, c)"],
        env={"PYTHONPATH": str(installed.folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout

    assert shown.count(f"{installed.folder}/") == 2


def test_a_source_is_evaluated_by_processes_that_are_no_forks_of_another(
    installed: Installed,
) -> None:
    source = "def permute(x, dims):\n    return x.permute(dims).contiguous()\n"
    case = {"shape": [16, 16], "dtype": "float32", "params": {"dims": [1, 0]}}

    with Client(installed.server.url) as gpu:
        found = gpu.evaluate("permute", source, cases=[case], baseline="torch")

    assert (found.ok, found.right, found.compiled) == (True, True, True)


def test_all_files_of_the_pages_are_installed(installed: Installed) -> None:
    folders = [SERVICE / "warpcall_bench/pages" / name for name in ("templates", "static")]
    wanted = {
        path.relative_to(SERVICE)
        for folder in folders
        for path in folder.iterdir()
        if path.is_file()
    }

    missing = [path for path in wanted if not (installed.folder / path).is_file()]

    assert len(wanted) > 20
    assert missing == []


def test_pages_are_served_with_their_files(installed: Installed) -> None:
    with httpx.Client(base_url=installed.server.url, headers={"accept": "text/html"}) as http:
        answers = [
            http.get(path)
            for path in ("/", "/new", "/login", "/docs", "/start", "/kernels/permute")
        ]
        links = {
            urljoin(str(answer.url), link)
            for answer in answers
            for link in re.findall(r'<(?:script|link)[^>]* (?:src|href)="([^"]+)"', answer.text)
        }
        loaded = [http.get(link) for link in links]

    assert [answer.status_code for answer in answers + loaded] == [200] * len(answers + loaded)
    assert {"app.css", "app.js", "htmx.min.js", "swagger-ui-bundle.js"} <= {
        link.rpartition("/")[2].partition("?")[0] for link in links
    }
    with httpx.Client(base_url=installed.server.url, headers={"accept": "text/html"}) as http:
        guide = [http.get(path) for path in ("/guide", "/guide/deploy", "/guide/images/now.png")]
        example = http.get("/guide/examples/my_permute.py")

    assert [answer.status_code for answer in guide] == [200] * 3
    assert example.text == (ROOT / "examples/my_permute.py").read_text()
    assert not list(installed.folder.rglob("*.json")), "results of benchmarks"
    assert "def permute" in re.sub("<.*?>", "", answers[-1].text)
