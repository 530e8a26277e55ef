"""The server with TLS, with a certificate made for these tests."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
import safetensors.numpy

from demo.server import COMMAND
from tests import forks
from tests.servers import Server, running_server
from tests.service.databases import Database, environment
from tests.service.requests import PERMUTE, SAFETENSORS, log_of, well
from warpcall import Client

pytestmark = pytest.mark.skipif(not shutil.which("openssl"), reason="openssl makes the certificate")


PATIENCE_S = 45.0  # less than a handshake may take by default, which is 60 s


@dataclass(frozen=True)
class Pair:
    """A self-signed certificate of 127.0.0.1, and its key."""

    certificate: Path
    key: Path


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("tls")
    pair = Pair(folder / "certificate.pem", folder / "key.pem")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=warpcall test"),
            *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", pair.key, "-out", pair.certificate),
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return pair


@pytest.fixture(scope="module")
def secure(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, str]]:
    """A server with TLS that needs keys, and a key."""
    database = Database("sqlite", {"WARPCALL_DATA_DIR": str(tmp_path_factory.mktemp("data"))})
    key = database.key("alice")
    tls = {"WARPCALL_TLS_CERT": str(pair.certificate), "WARPCALL_TLS_KEY": str(pair.key)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(pair.certificate))
        with running_server({**database.settings, **tls}) as server:
            yield server, key


def test_calls_small_and_large_go_over_tls(secure: tuple[Server, str]) -> None:
    server, key = secure
    assert server.url.startswith("https://")
    x = np.random.default_rng(0).integers(0, 256, (3, 5 << 20), np.uint8)

    with Client(server.url, api_key=key) as gpu:
        for array in (x[:, :7], x, x[:2]):
            np.testing.assert_array_equal(gpu.permute(array, dims=(1, 0)), array.T)


def test_keys_and_problems_are_as_they_are_without(secure: tuple[Server, str], pair: Pair) -> None:
    server, key = secure

    context = ssl.create_default_context(cafile=pair.certificate)
    with httpx.Client(base_url=server.url, verify=context) as http:
        assert http.get("/v1/kernels").status_code == 401
        http.headers["authorization"] = f"Bearer {key}"
        assert well(http).status_code == 200
        assert http.get("/").headers["strict-transport-security"] == "max-age=31536000"


@pytest.mark.parametrize(
    "sends", [b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", b"", b"\x16\x03\x01"]
)
def test_who_does_not_speak_tls_gets_nothing_and_disturbs_nobody(
    secure: tuple[Server, str], sends: bytes
) -> None:
    server, key = secure
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as sock:
        sock.sendall(sends)
        sock.shutdown(socket.SHUT_WR)

        assert b"HTTP" not in sock.recv(1000)

    with Client(server.url, api_key=key) as gpu:
        assert gpu.health().status == "ready"


def connections(server: Server) -> int:
    """The connections that the server has open."""
    established = psutil.Process(server.process.pid).net_connections("tcp")
    return sum(one.status != psutil.CONN_LISTEN for one in established)


def wait_for_none(server: Server) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while connections(server):
        assert time.monotonic() < deadline, "the server keeps connections that nobody uses"
        time.sleep(0.1)


@pytest.mark.parametrize("with_key", [False, True], ids=["without a key", "with a key"])
def test_connections_of_refused_uploads_are_closed(
    with_key: bool, secure: tuple[Server, str], pair: Pair
) -> None:
    server, key = secure
    context = ssl.create_default_context(cafile=pair.certificate)
    headers = {"authorization": f"Bearer {key}"} if with_key else {}

    for _ in range(20):
        with httpx.Client(base_url=server.url, verify=context, headers=headers) as http:
            answer = http.post("/v1/kernels/permute", content=b"x" * 3_000_000)
            assert answer.status_code == (415 if with_key else 401)

    wait_for_none(server)


def test_an_answer_over_tls_is_over_when_it_is_sent(secure: tuple[Server, str], pair: Pair) -> None:
    """The client neither sends nor closes; the memory of its response is freed nevertheless."""
    server, key = secure
    context = ssl.create_default_context(cafile=pair.certificate)
    x = np.zeros((3, 1 << 20), np.uint8)
    with (
        httpx.Client(base_url=server.url, verify=context) as http,
        httpx.Client(base_url=server.url, verify=context) as watcher,
    ):
        http.headers["authorization"] = watcher.headers["authorization"] = f"Bearer {key}"
        answer = http.post(
            f"{PERMUTE}?dims=1,0",
            content=safetensors.numpy.save({"x": x}),
            headers={"content-type": SAFETENSORS},
        )
        assert answer.status_code == 200
        deadline = time.monotonic() + PATIENCE_S
        while watcher.get("/v1/me").json()["in_flight"]["requests"] > 1:  # 1 is this request
            assert time.monotonic() < deadline, "the call does not end"
            time.sleep(0.05)


def test_malformed_requests_over_tls_are_answered_and_leave_no_traceback(
    secure: tuple[Server, str], pair: Pair
) -> None:
    server, _ = secure
    context = ssl.create_default_context(cafile=pair.certificate)
    before = server.log.stat().st_size

    for _ in range(50):
        with (
            socket.create_connection(("127.0.0.1", server.port), timeout=30) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as sock,
        ):
            sock.sendall(b"NONSENSE\r\n\r\n")
            assert sock.recv(1000).startswith(b"HTTP/1.1 400 ")

    wait_for_none(server)
    assert server.log.stat().st_size - before < 5_000
    assert "Traceback" not in log_of(server)


def test_a_client_that_half_closes_over_tls_leaves_no_warning(
    secure: tuple[Server, str], pair: Pair
) -> None:
    server, _ = secure
    context = ssl.create_default_context(cafile=pair.certificate)
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as sock,
    ):
        sock.sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc")
        with contextlib.suppress(OSError):
            sock.unwrap()

    wait_for_none(server)
    assert "has no effect when using ssl" not in log_of(server)


@pytest.mark.slow
def test_a_handshake_that_does_not_end_is_not_waited_for(secure: tuple[Server, str]) -> None:
    server, _ = secure
    wait_for_none(server)
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as sock:
        sock.sendall(b"\x16\x03\x01")

        assert sock.recv(1) == b""  # after 10 s


def test_a_certificate_without_its_key_stops_the_server(pair: Pair, tmp_path: Path) -> None:
    for settings in (
        {"WARPCALL_TLS_CERT": str(pair.certificate)},
        {"WARPCALL_TLS_CERT": str(pair.key), "WARPCALL_TLS_KEY": str(pair.certificate)},
    ):
        done = forks.run(COMMAND, environment({**settings, "WARPCALL_DATA_DIR": str(tmp_path)}))

        assert done.returncode == 2
        assert "WARPCALL_TLS_CERT and WARPCALL_TLS_KEY: " in done.stderr
        assert "Traceback" not in done.stderr
