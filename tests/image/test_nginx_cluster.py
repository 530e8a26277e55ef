"""The nginx configuration of docker/compose.cluster.yaml: a real nginx before two real servers."""

from __future__ import annotations

import json
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.nginx import TIMEOUT_S, free_port, needs_nginx, running_nginx
from tests.servers import Server
from tests.service.databases import new_postgresql, postgres_cluster
from tests.service.nodes.test_nodes import killed, node
from tests.waiting import until
from warpcall import Client

CONFIGURATION = Path(__file__).parents[2] / "docker/nginx.cluster.conf"
ARENA = "256MiB"
MIB = 1 << 20
X = np.arange(6, dtype=np.float32).reshape(2, 3)

pytestmark = [needs_nginx, pytest.mark.slow]


@dataclass(frozen=True)
class Cluster:
    """nginx at an address, and the servers behind it.

    Attributes:
        servers: two; the second one is killed by a test, and nobody minds.
        bodies: where nginx would keep bodies.
    """

    url: str
    servers: list[Server]
    bodies: Path


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        database = new_postgresql(stack.enter_context(postgres_cluster()), tmp_path)
        stack.enter_context(killed())
        servers = [
            stack.enter_context(node(database, tmp_path / name, WARPCALL_ARENA_BYTES=ARENA))
            for name in "ab"
        ]
        stack.callback(servers[1].process.kill)
        port = free_port()
        text = CONFIGURATION.read_text()
        for old, new in {
            "listen 8000": f"listen 127.0.0.1:{port}",
            "server-1:8000": f"127.0.0.1:{servers[0].port}",
            "server-2:8000": f"127.0.0.1:{servers[1].port}",
            "/tmp/": f"{tmp_path}/",
        }.items():
            assert old in text
            text = text.replace(old, new)
        stack.enter_context(running_nginx(tmp_path, text, port))
        yield Cluster(f"http://127.0.0.1:{port}", servers, tmp_path / "bodies")


def used(server: Server) -> float:
    """Bytes of the arena that are allocated."""
    text = server.get("/metrics")[1]
    found = re.search(r"^warpcall_lane_arena_used\S* (\S+)", text, re.MULTILINE)
    assert found
    return float(found[1])


def test_a_body_reaches_a_server_while_it_is_sent(cluster: Cluster) -> None:
    x = np.arange(8 * MIB, dtype=np.float32).reshape(2048, -1)
    header = json.dumps({"x": {"dtype": "F32", "shape": x.shape, "data_offsets": [0, x.nbytes]}})
    body = len(header).to_bytes(8, "little") + header.encode() + x.tobytes()
    head = (
        "POST /v1/kernels/permute?dims=1,0 HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        f"Content-Type: application/vnd.safetensors\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    port = int(cluster.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection:
        connection.sendall(head.encode() + body[: len(body) // 2])
        until(lambda: any(map(used, cluster.servers)), "nginx keeps the body back")
        connection.sendall(body[len(body) // 2 :])
        answer = b"".join(iter(lambda: connection.recv(MIB), b""))

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(np.ascontiguousarray(x.T).tobytes())
    assert not [file for file in cluster.bodies.rglob("*") if file.is_file()]


def test_a_server_that_has_died_is_left_out(cluster: Cluster) -> None:
    def answering() -> str:
        tensor = {"dtype": "F32", "shape": [2, 3], "data": X.tolist()}
        body = {"inputs": {"x": tensor}, "params": {"dims": [1, 0]}}
        answer = httpx.post(f"{cluster.url}/v1/kernels/permute", json=body, timeout=30)
        assert answer.status_code == 200, answer.text
        return answer.headers["x-warpcall-node"]

    before = {answering() for _ in range(20)}
    cluster.servers[1].process.send_signal(signal.SIGKILL)
    cluster.servers[1].process.wait(30)
    after = {answering() for _ in range(20)}

    assert len(before) == 2
    assert after < before


def test_a_tensor_is_found_on_its_server(cluster: Cluster) -> None:
    with Client(cluster.servers[0].url) as gpu:
        path = f"/v1/tensors/{gpu.put(X).id}"
    found: dict[int, httpx.Response] = {}

    def both_answered() -> bool:
        answer = httpx.get(cluster.url + path, timeout=30)
        found[answer.status_code] = answer
        return len(found) == 2

    until(both_answered)
    owner = found[307].headers["location"]
    followed = httpx.get(cluster.url + path, timeout=30, follow_redirects=True)
    with Client(cluster.url) as gpu:
        stored = gpu.put(X)
        got = gpu.transpose_add(stored, X.T.copy())

    assert found.keys() == {200, 307}
    assert followed.status_code == 200
    assert owner.startswith(cluster.servers[0].url + path)
    np.testing.assert_array_equal(got, X.T + X.T)
