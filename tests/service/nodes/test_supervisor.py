"""Several servers behind one port of one machine, with a SQLite database: `--servers`."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest

from demo.server import COMMAND, Server
from tests import forks
from tests.app.oip.grpc_client import connected
from tests.servers import running_server
from tests.service.databases import environment
from tests.service.job_requests import BRIEF, client, submit
from tests.service.nodes.test_nodes import killed
from tests.service.stopped_lane import stopped_lane
from tests.suspended import suspended
from tests.template import TEMPLATE, WORKER
from tests.waiting import lives
from tests.waiting import until_lasting as until
from warpcall import Client
from warpcall_service.http.listen import ServerError
from warpcall_service.nodes.server_identity import ServerIdentity, own_url
from warpcall_service.settings import Settings
from warpcall_service.supervisor.plan import plan_servers

pytestmark = pytest.mark.slow

X = np.arange(6, dtype=np.float32).reshape(2, 3)
TWO = {"WARPCALL_SERVERS": "2", "WARPCALL_DEVICES": "cpu", "WARPCALL_ARENA_BYTES": "16MiB"}
WAIT_S = 120.0


@contextmanager
def two_servers(folder: Path, **settings: str) -> Iterator[Server]:
    with running_server(
        {**TWO, **BRIEF, "WARPCALL_DATA_DIR": str(folder), **settings}, start_timeout_s=WAIT_S
    ) as server:
        until(lambda: len(alive(server)) == 2, timeout_s=WAIT_S)
        yield server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("two")


@pytest.fixture(scope="module")
def two(folder: Path) -> Iterator[Server]:
    with two_servers(folder, WARPCALL_GRPC_PORT="0") as server:
        yield server


def listed(server: Server) -> list[dict[str, Any]]:
    try:
        found: list[dict[str, Any]] = httpx.get(f"{server.url}/v1/nodes", timeout=30).json()[
            "nodes"
        ]
    except httpx.HTTPError:  # the server that got the connection was killed
        return []
    return found


def alive(server: Server) -> list[dict[str, Any]]:
    return [node for node in listed(server) if node["state"] == "alive"]


def both(server: Server) -> list[dict[str, Any]]:
    """The two servers, once the one that answers knows of the other."""
    found: list[dict[str, Any]] = []

    def know_each_other() -> bool:
        found[:] = alive(server)
        return len(found) == 2

    until(know_each_other, timeout_s=WAIT_S)
    return found


def below(server: Server) -> list[psutil.Process]:
    """The processes of the servers, without those below them."""
    return [
        child
        for child in psutil.Process(server.process.pid).children()
        if lives(child) and "warpcall_service.supervisor.entry" in child.cmdline()
    ]


def run(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """What a command of the server prints, and how it ends."""
    return forks.run([*COMMAND, *arguments], environment(settings), timeout_s=WAIT_S)


def refusal(*arguments: str, **settings: str) -> str:
    """Why a command of the server fails, with status 2."""
    ended = run(*arguments, **settings)
    assert ended.returncode == 2, ended.stderr
    return ended.stderr


def test_both_servers_serve_grpc_on_one_port(two: Server) -> None:
    def addresses() -> list[str]:
        return re.findall(r"grpc://([\d.]+:\d+)", two.log.read_text())

    until(lambda: len(addresses()) >= 2, timeout_s=WAIT_S)
    assert {*addresses()} == {two.grpc_address}

    for _ in range(4):
        with connected(int(two.grpc_address.rpartition(":")[2])) as client:
            assert client.ask("ServerReady")


def test_both_servers_answer_on_one_port_and_each_on_its_own(two: Server) -> None:
    seen = set()
    with httpx.Client(timeout=30) as client:

        def answer(url: str) -> str:
            response = client.get(f"{url}/healthz", headers={"Connection": "close"})
            return str(response.headers["x-warpcall-node"])

        until(lambda: seen.add(answer(two.url)) or len(seen) == 2)  # type: ignore[func-returns-value]
        own = {node["url"]: node["id"] for node in both(two)}
        at_own = {url: answer(url) for url in own}

    assert at_own == own
    assert set(own.values()) == seen
    assert len({two.url, *own}) == 3


def test_a_server_waits_for_the_one_before_it_and_has_its_id(tmp_path: Path) -> None:
    before = ServerIdentity(tmp_path / "servers/cpu-0")
    held = before.acquire()
    with running_server(
        {**TWO, **BRIEF, "WARPCALL_DATA_DIR": str(tmp_path)}, start_timeout_s=WAIT_S
    ) as server:
        until(lambda: alive(server), timeout_s=WAIT_S)
        before.release()
        ids = {node["id"] for node in both(server)}

    assert held in ids


def test_the_sdk_finds_a_stored_tensor_behind_the_port_and_spreads_calls(two: Server) -> None:
    own = {node["id"]: node["url"] for node in both(two)}
    # A client that reads of one server only looks for others after half a minute.
    until(lambda: all(len(nodes_at(url)) == 2 for url in own.values()))
    with Client(two.url) as gpu:
        until(
            lambda: (
                gpu.permute(X, dims=(1, 0)) is not None and len(gpu._core.targets.candidates) == 2
            )
        )
        stored = []
        for owner in [*own] * 2:
            gpu._core.targets.store = owner  # else one server has all of them
            stored.append(gpu.put(X))
        for one in stored:
            np.testing.assert_array_equal(one.get(), X)
            np.testing.assert_array_equal(gpu.transpose_add(one, X.T.copy()), X.T + X.T)
        listed_ids = {one.id for one in gpu.tensors()}

    assert [one.id[-16:] for one in stored] == [*own] * 2
    assert {one.id for one in stored} <= listed_ids


def nodes_at(url: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = httpx.get(f"{url}/v1/nodes", timeout=30).json()["nodes"]
    return [node for node in found if node["state"] == "alive"]


def test_jobs_run_once_each_from_one_queue(two: Server) -> None:
    with client(two) as http:
        ids = [submit(http)["id"] for _ in range(4)]
    with Client(two.url) as gpu:
        results = [gpu.jobs.get(id_).wait(WAIT_S) for id_ in ids]
        sequences = [[event.sequence for event in gpu.jobs.events(id_)] for id_ in ids]

    with client(two) as http:
        answers = [http.get(f"/v1/jobs/{id_}").json() for id_ in ids]
        page, job_page = http.get("/").text, http.get(f"/jobs/{ids[0]}").text
    nodes = {node["id"]: node for node in both(two)}
    ran_at = nodes[answers[0]["node"]]

    assert {answer["node"] for answer in answers} <= nodes.keys()
    assert f"on {ran_at['host']}:{ran_at['url'].rpartition(':')[2]}</span>" in job_page
    for node in nodes.values():
        assert (
            f'<a href="{node["url"]}">{node["host"]}:{node["url"].rpartition(":")[2]}</a>' in page
        )
    assert page.count('<span class="badge succeeded">alive</span>') == 2
    assert [len(found.cases) for found in results] == [1] * 4
    assert all(len(set(found)) == len(found) > 0 for found in sequences)


def test_a_server_that_is_killed_is_started_again_and_nobody_waits_for_it(two: Server) -> None:
    ids = {node["id"] for node in both(two)}
    victim = below(two)[0]
    with Client(two.url) as gpu:
        gpu.permute(X, dims=(1, 0))
        victim.kill()
        for _ in range(50):
            np.testing.assert_array_equal(gpu.permute(X, dims=(1, 0)), X.T)
    victim.wait(WAIT_S)  # until then its socket takes connections, which are reset at its end
    while two.log.read_text().count("the server listens on") < 3:
        assert answers_at_once(two)
        time.sleep(0.01)
    until(
        lambda: {node["id"] for node in alive(two)} == ids and len(below(two)) == 2,
        timeout_s=WAIT_S,
    )

    log = two.log.read_text()
    assert "ended with status -9 and is started again in 0.5 s" in log
    assert '{"server": "cpu-0", ' in log
    assert '{"server": "cpu-1", ' in log


def test_a_server_that_starts_does_not_listen_on_the_public_port(two: Server) -> None:
    known = {process.pid for process in below(two)}
    below(two)[0].kill()
    found: list[psutil.Process] = []

    def starts_its_worker() -> bool:
        new = [process for process in below(two) if process.pid not in known]
        below_them = [child for process in new for child in process.children()]
        found[:] = [child for child in below_them if WORKER in child.cmdline()]
        return bool(found)

    until(starts_its_worker, timeout_s=WAIT_S, passes=True)  # which it does soon
    worker, starting = found[0], found[0].parent()
    assert starting is not None
    with suspended(worker):  # so that the server does not become ready
        early = listens(starting, two.port)
        count = len(below(two))
    until(lambda: listens(starting, two.port), timeout_s=WAIT_S)
    both(two)

    assert count == 2
    assert not early


def listens(process: psutil.Process, port: int) -> bool:
    """Whether a process listens on a port."""
    return any(
        one.status == psutil.CONN_LISTEN and one.laddr.port == port
        for one in process.net_connections("tcp")
    )


def answers_at_once(server: Server) -> bool:
    """Whether a new connection is answered, and not queued for a server that starts."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return connection.recv(100).startswith(b"HTTP/1.1 200")


def test_one_server_tells_of_all(two: Server) -> None:
    ids = {node["id"] for node in both(two)}

    texts: list[str] = []

    def tells_of_both() -> bool:
        texts.append(httpx.get(f"{two.url}/metrics", timeout=30).text)
        return texts[-1].count("\nwarpcall_node_lanes_ready{") == 2

    # The server that answers may have read the table of nodes before the other one was ready.
    until(tells_of_both)
    text = texts[-1]
    printed = subprocess.run(
        [sys.executable, "-m", "warpcall", "top", "--url", two.url],
        capture_output=True,
        text=True,
        check=True,
        timeout=WAIT_S,
    ).stdout

    lines = [line for line in text.splitlines() if line.startswith("warpcall_node_lanes_ready{")]
    assert [line.rpartition(" ")[2] for line in lines] == ["1.0", "1.0"]
    assert all(id_ in text and id_ in printed for id_ in ids)
    assert printed.count("alive") == 2


def test_a_server_is_drained_by_its_id(two: Server, folder: Path) -> None:
    node = both(two)[0]["id"]

    drained = run("drain", node, WARPCALL_DATA_DIR=str(folder))
    until(lambda: {n["id"] for n in listed(two) if n["state"] == "draining"} == {node})
    back = run("drain", "--off", node, WARPCALL_DATA_DIR=str(folder))
    until(lambda: len(alive(two)) == 2)

    assert "takes no more jobs" in drained.stdout
    assert "takes jobs again" in back.stdout


def test_neither_the_port_nor_the_data_folder_is_given_twice(
    two: Server, folder: Path, tmp_path: Path
) -> None:
    taken = f"cannot listen on 127.0.0.1:{two.port}: Address already in use"
    port = {"WARPCALL_PORT": str(two.port)}
    other = {"WARPCALL_DATA_DIR": str(tmp_path)}

    assert taken in refusal(**TWO, **port, **other)
    assert taken in refusal(**port, **other)
    assert f"other servers already use {folder}" in refusal(
        **TWO, WARPCALL_PORT="0", WARPCALL_DATA_DIR=str(folder)
    )


def test_settings_that_a_server_refuses_end_all(tmp_path: Path) -> None:
    said = refusal(
        **TWO,
        WARPCALL_PORT="0",
        WARPCALL_DATA_DIR=str(tmp_path),
        WARPCALL_TLS_CERT=str(tmp_path / "none.pem"),
    )

    assert "WARPCALL_TLS_CERT and WARPCALL_TLS_KEY" in said
    assert "cannot start; the log says why" in said


def test_when_the_supervisor_is_killed_its_servers_end(tmp_path: Path) -> None:
    with killed(), two_servers(tmp_path) as two:
        processes = psutil.Process(two.process.pid).children(recursive=True)
        os.kill(two.process.pid, signal.SIGKILL)
        two.process.wait(30)
        gone, left = psutil.wait_procs(processes, timeout=WAIT_S)

    assert len(gone) >= 4, "two servers, each with a worker"
    assert left == []


def test_sigterm_ends_all_in_good_order(tmp_path: Path) -> None:
    with two_servers(tmp_path) as two:
        processes = psutil.Process(two.process.pid).children(recursive=True)
        two.process.send_signal(signal.SIGTERM)
        status = two.process.wait(WAIT_S)
        log = two.log.read_text()

    assert status == 0
    assert psutil.wait_procs(processes, timeout=10)[1] == []
    assert log.count('"message": "the server has stopped"') == 2
    assert "is started again" not in log


def test_sigterm_to_every_process_at_once_lets_calls_end(tmp_path: Path) -> None:
    """Each server has a call, so that none has ended when the supervisor passes the signal on."""
    x = {"dtype": "F32", "shape": X.shape, "data": X.tolist()}
    request = {"inputs": {"x": x}, "params": {"dims": [1, 0]}}

    def call(url: str) -> httpx.Response:
        headers = {"accept": "application/json"}
        return httpx.post(f"{url}/v1/kernels/permute", json=request, headers=headers)

    with two_servers(tmp_path) as two, ThreadPoolExecutor(2) as threads:
        urls = [node["url"] for node in both(two)]
        for url in urls:
            call(url).raise_for_status()  # its plan is known from here on
        processes = psutil.Process(two.process.pid).children(recursive=True)
        theirs = [process.pid for process in processes if TEMPLATE not in process.cmdline()]
        with stopped_lane(two):
            calls = threads.map(call, urls)
            until(lambda: all('"in_flight":1' in httpx.get(f"{url}/readyz").text for url in urls))
            for pid in (two.process.pid, *theirs):
                os.kill(pid, signal.SIGTERM)
            until(lambda: two.log.read_text().count("SIGINT: the server stops") == 2)
        answers = list(calls)
        status = two.process.wait(WAIT_S)

    assert [answer.json()["outputs"]["out"]["data"] for answer in answers] == [X.T.tolist()] * 2
    assert status == 0


def planned(**settings: Any) -> list[tuple[str, Any, Any, Any]]:
    found = plan_servers(Settings(**settings), {"quiet": True})
    assert all(one.overrides["quiet"] for one in found)
    return [
        (one.name, one.overrides["port"], one.overrides["devices"], one.overrides["uds"])
        for one in found
    ]


def test_devices_and_ports_are_shared_out() -> None:
    listed = {"devices": "cuda:0,cuda:2,cuda:3", "port": 8000, "uds": Path("/run/w.sock")}

    assert planned(**listed, servers="per-gpu") == [
        ("cuda:0", 8001, "cuda:0", Path("/run/w.sock")),
        ("cuda:2", 8002, "cuda:2", None),
        ("cuda:3", 8003, "cuda:3", None),
    ]
    assert planned(**listed, servers="2") == [
        ("cuda:0,cuda:3", 8001, "cuda:0,cuda:3", Path("/run/w.sock")),
        ("cuda:2", 8002, "cuda:2", None),
    ]
    assert planned(devices="cpu", port=0, servers="2") == [
        ("cpu-0", 0, "cpu", None),
        ("cpu-1", 0, "cpu", None),
    ]
    assert planned(devices="cpu", servers="per-gpu") == [("cpu-0", 8001, "cpu", None)]


def test_more_servers_than_gpus_or_ports_are_refused() -> None:
    with pytest.raises(ServerError, match="3 servers need as many GPUs, there are 2"):
        planned(devices="cuda:0,cuda:1", servers="3")
    with pytest.raises(ServerError, match="2 servers need the 2 ports after it, got 65534"):
        planned(devices="cpu", servers="2", port=65_534)


@pytest.mark.parametrize(
    ("advertised", "url"),
    [
        ("http://gpu-1:8000", "http://gpu-1:8001"),
        ("https://[fd00::1]/lab", "https://[fd00::1]:8001/lab"),
    ],
)
def test_each_server_has_its_own_port_in_the_url_that_all_advertise(
    advertised: str, url: str
) -> None:
    assert own_url(advertised, 8001) == url
