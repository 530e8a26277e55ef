"""Processes that wait for the next compile report, of a server: when they start, and that none outlives it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.servers import Server, running_server
from tests.service.compile_reports import sources
from tests.service.requests import problem_of
from tests.service.runs.sandboxes import needs_bubblewrap
from tests.service.uploads.problem_sources import SCALE
from tests.service.uploads.processes import reapers_of
from tests.service.uploads.requests import SETTINGS, added_problem, uploaded
from tests.service.uploads.sources import SHORT
from tests.waiting import until

CASE: dict[str, Any] = {"shape": [64, 256], "dtype": "F32", "params": {"dims": [1, 0]}}
MODES = ["off", "trusted", pytest.param("sandboxed", marks=needs_bubblewrap)]


@contextlib.contextmanager
def running(mode: str, folder: Path) -> Iterator[Server]:
    """A server with this value of the setting `uploads`."""
    settings = {**SETTINGS, "WARPCALL_UPLOADS": mode, "WARPCALL_DATA_DIR": str(folder / "data")}
    with running_server(settings) as server:
        if mode == "sandboxed":
            until(lambda: httpx.get(f"{server.url}/readyz").json()["uploads"] == "sandboxed")
        yield server


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """A server with the setting `uploads` that the test names."""
    with running(request.param, tmp_path) as found:
        yield found


def report(server: Server, **fields: Any) -> httpx.Response:
    asked = {"op": "permute", "case": CASE, "texts": [], **fields}
    return httpx.post(f"{server.url}/v1/compile-reports", json=asked, timeout=120)


def kernels(server: Server, **fields: Any) -> int:
    """The number of kernels of a report that must be made."""
    answer = report(server, **fields)
    assert answer.status_code == 200, answer.text
    return len(answer.json()["kernels"])


def reapers(server: Server) -> list[psutil.Process]:
    """The reapers of processes that wait, one of each."""
    return reapers_of(psutil.Process(server.process.pid))


def one_reaper(server: Server) -> psutil.Process:
    """The reaper of the one process that waits, once it runs."""
    until(lambda: len(reapers(server)) == 1)
    return reapers(server)[0]


def family(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


@pytest.mark.parametrize("server", MODES, indirect=True)
def test_a_server_has_a_process_that_waits_once_a_report_was_made(server: Server) -> None:
    assert httpx.get(f"{server.url}/v1/kernels").status_code == 200
    assert reapers(server) == [], "before the first report there is none"

    assert kernels(server) == 1
    first = one_reaper(server)
    assert kernels(server, gpu="sm_80") == 1
    second = one_reaper(server)

    assert first != second
    assert not first.is_running()


@pytest.mark.parametrize("server", MODES[1:], indirect=True)
def test_reports_and_checks_of_uploads_and_problems_take_the_same_process(server: Server) -> None:
    taken = []
    with httpx.Client(base_url=server.url) as http:
        for check in (
            lambda: kernels(server, source=sources.TUNED),
            lambda: uploaded(http, sources.TUNED),
            lambda: added_problem(http, SCALE),
            lambda: kernels(server, source=sources.TUNED, gpu="sm_80"),
        ):
            assert check()
            taken.append(one_reaper(server))

    assert len(set(taken)) == 4
    assert [one.is_running() for one in taken] == [False, False, False, True]


@pytest.mark.parametrize("mode", MODES[1:])
@pytest.mark.parametrize("end", ["terminate", "kill"])
def test_no_process_outlives_the_server(end: str, mode: str, tmp_path: Path) -> None:
    killed = pytest.raises(RuntimeError, match="ended with status -9")
    with killed if end == "kill" else contextlib.nullcontext(), running(mode, tmp_path) as server:
        assert kernels(server)
        assert kernels(server, source=sources.TUNED)
        until(lambda: len(reapers(server)) == 2)
        until(lambda: all(one.children() for one in reapers(server)))
        left = [one for reaper in reapers(server) for one in family(reaper)]

        getattr(server.process, end)()
        server.process.wait(60)

        if end == "terminate":
            assert not any(one.is_running() for one in left)
        until(lambda: not any(one.is_running() for one in left))


@pytest.mark.parametrize("server", ["trusted"], indirect=True)
def test_a_report_after_the_process_that_waits_was_killed_is_made(server: Server) -> None:
    assert kernels(server)
    reaper = one_reaper(server)
    until(lambda: reaper.children())
    reaper.children()[0].kill()

    assert kernels(server, gpu="sm_80") == 1
    assert one_reaper(server)


@pytest.mark.parametrize("server", ["off"], indirect=True)
def test_the_page_starts_the_process_of_its_report(server: Server) -> None:
    page = httpx.get(f"{server.url}/compiled", params={"op": "permute"})
    assert page.status_code == 200
    started = one_reaper(server)
    refused = report(server, source=sources.TUNED)
    assert reapers(server) == [started]

    form = {
        "op": "permute",
        "shape": "64x256",
        "dtype": "F32",
        "params.dims": "1,0",
        "gpu": "sm_90",
    }
    shown = httpx.get(f"{server.url}/compiled", params=form, timeout=120)

    problem_of(refused, 403, "forbidden", None)
    assert "registers" in shown.text.lower()
    assert not started.is_running()
    assert one_reaper(server)


def test_the_page_of_an_upload_starts_none_where_no_uploaded_code_runs(tmp_path: Path) -> None:
    with running("trusted", tmp_path) as server, httpx.Client(base_url=server.url) as http:
        name = uploaded(http, sources.TUNED)["name"]
    with running("off", tmp_path) as server:
        page = httpx.get(f"{server.url}/compiled", params={"implementation": name})

        assert page.status_code == 200
        assert reapers(server) == []


@pytest.mark.parametrize("server", ["trusted"], indirect=True)
def test_an_upload_that_does_not_need_torch_leaves_the_process_to_others(server: Server) -> None:
    with httpx.Client(base_url=server.url) as http:
        assert uploaded(http, SHORT)
        assert reapers(server) == []
        assert uploaded(http, sources.TUNED)
        first = one_reaper(server)
        assert uploaded(http, SHORT + "# again\n")

        assert reapers(server) == [first]
