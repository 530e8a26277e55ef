"""The nginx configuration that docs/deploy.md recommends, with a real nginx before a real server."""

from __future__ import annotations

import json
import re
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.nginx import (
    TIMEOUT_S,
    certificate_in,
    free_port,
    needs_nginx,
    running_nginx,
    temporary_paths,
)
from tests.servers import Server, running_server
from tests.service.requests import log_of
from warpcall import Client

CONFIGURATION = Path(__file__).parents[2] / "docker/nginx.conf"
MIB = 1 << 20

pytestmark = [needs_nginx, pytest.mark.slow]


@dataclass(frozen=True)
class Proxy:
    """nginx at an address, before a server.

    Attributes:
        folder: where it would keep bodies.
        certificate: its own.
    """

    port: int
    server: Server
    folder: Path
    certificate: Path


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    folder = tmp_path_factory.mktemp("nginx")
    certificate, _ = certificate_in(folder)
    with running_server(
        {
            "WARPCALL_TRUSTED_PROXIES": "127.0.0.1",
            "WARPCALL_INSECURE": "true",
            "WARPCALL_ARENA_BYTES": "256MiB",
        }
    ) as server:
        port = free_port()
        text = CONFIGURATION.read_text()
        for old, new in {
            "listen 443": f"listen 127.0.0.1:{port}",
            "127.0.0.1:8000": f"127.0.0.1:{server.port}",
            "/etc/nginx/tls": str(folder),
            "/run/nginx.pid": str(folder / "nginx.pid"),
            "http {": "http {" + temporary_paths(folder),
        }.items():
            assert old in text
            text = text.replace(old, new)
        with running_nginx(folder, text, port):
            yield Proxy(port, server, folder, certificate)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Proxy]:
    """nginx with the usual settings for websockets, which lets nobody reach /v1/me."""
    with running_server() as server:
        port = free_port()
        configuration = f"""
            pid {tmp_path}/nginx.pid;
            events {{}}
            http {{
                access_log off; {temporary_paths(tmp_path)}
                map $http_upgrade $connection_upgrade {{ default upgrade; "" close; }}
                server {{
                    listen 127.0.0.1:{port};
                    location /v1/me {{ return 403; }}
                    location / {{
                        proxy_pass http://127.0.0.1:{server.port};
                        proxy_http_version 1.1;
                        proxy_set_header Host $http_host;
                        proxy_set_header Upgrade $http_upgrade;
                        proxy_set_header Connection $connection_upgrade;
                    }}
                }}
            }}"""
        with running_nginx(tmp_path, configuration, port):
            yield Proxy(port, server, tmp_path, tmp_path)


def used(server: Server) -> float:
    """Bytes of the arena that are allocated."""
    found = re.search(
        r"^warpcall_lane_arena_used\S* (\S+)", server.get("/metrics")[1], re.MULTILINE
    )
    assert found
    return float(found[1])


def test_a_body_reaches_the_server_while_it_is_sent(proxy: Proxy) -> None:
    x = np.arange(2 * MIB, dtype=np.float32).reshape(1024, -1)
    header = json.dumps({"x": {"dtype": "F32", "shape": x.shape, "data_offsets": [0, x.nbytes]}})
    body = len(header).to_bytes(8, "little") + header.encode() + x.tobytes()
    head = (
        "POST /v1/kernels/permute?dims=1,0 HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        f"Content-Type: application/vnd.safetensors\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    context = ssl.create_default_context(cafile=proxy.certificate)
    with (
        socket.create_connection(("127.0.0.1", proxy.port), TIMEOUT_S) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        connection.sendall(head.encode() + body[: len(body) // 2])

        deadline = time.monotonic() + TIMEOUT_S
        while not used(proxy.server):  # the server has begun, with half of it
            assert time.monotonic() < deadline, "nginx keeps the body back"
        connection.sendall(body[len(body) // 2 :])
        answer = b"".join(iter(lambda: connection.recv(MIB), b""))

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(np.ascontiguousarray(x.T).tobytes())


def test_the_sdk_sends_and_gets_large_tensors_through_it(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(proxy.certificate))
    x = np.arange(16 * MIB, dtype=np.float32).reshape(4096, -1)

    with Client(f"https://127.0.0.1:{proxy.port}", progress=False) as gpu:
        y = gpu.permute(x, dims=(1, 0))

    np.testing.assert_array_equal(y, x.T)
    assert not [file for file in (proxy.folder / "bodies").rglob("*") if file.is_file()]


@pytest.mark.parametrize("chunked", [False, True], ids=["sized", "chunked"])
def test_no_request_for_an_upgrade_passes_what_nginx_forbids(guarded: Proxy, chunked: bool) -> None:
    hidden = b"GET /v1/me HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: hidden\r\n\r\n"
    body, framing = hidden, f"Content-Length: {len(hidden)}"
    if chunked:
        body, framing = (
            b"%x\r\n%b\r\n0\r\n\r\n" % (len(hidden), hidden),
            "Transfer-Encoding: chunked",
        )
    head = (
        "POST /v1/kernels/permute HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Upgrade: websocket\r\nConnection: Upgrade\r\n{framing}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", guarded.port), TIMEOUT_S) as sock:
        sock.sendall(head.encode() + body)
        sock.settimeout(TIMEOUT_S)
        came = sock.recv(MIB)
        sock.shutdown(socket.SHUT_WR)
        came += b"".join(iter(lambda: sock.recv(MIB), b""))

    assert came.startswith(b"HTTP/1.1 422 ")
    assert b"hidden" not in came
    served = [line for line in log_of(guarded.server).splitlines() if "/v1/me" in line]
    assert served == []
